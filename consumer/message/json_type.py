"""JSON messages, a line each, with their UUID at `_meta.uuid`.

The UUID is found by a partial decode that builds nothing else; whole messages are decoded when the application asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from consumer.message.framing import NDJSON
from consumer.message.uuid import NIL_UUID, format_uuid

_UUID_CHARACTERS: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)
_ERRORS: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""Of msgspec's decoders: brackets that are nested too deep for Python's stack are not among those that it documents."""


class Meta(msgspec.Struct):
    """What a message says of itself; the value of `_meta`."""

    uuid: str = ""
    """Text form of the message's UUID; empty before it is published."""


class _ProbedMeta(msgspec.Struct, gc=False):
    uuid: str | None = None


class _Probe(msgspec.Struct, gc=False):
    """The only part of a payload that sequencing looks at."""

    meta: _ProbedMeta | None = msgspec.field(name="_meta", default=None)


_probe = msgspec.json.Decoder(_Probe).decode


def json_uuid_of(payload: bytes) -> bytes:
    """Return the 16-byte UUID of a JSON payload; zero bytes if it has none.

    Raises:
        ValueError: not a JSON object, or its `_meta.uuid` is no UUID.
    """
    try:
        meta = _probe(payload).meta
    except _ERRORS as error:
        raise ValueError(f"not a JSON message: {error}") from error
    if meta is None or not meta.uuid:
        return NIL_UUID
    try:
        return _from_texts([meta.uuid])
    except ValueError as error:
        raise ValueError(f"_meta.uuid {meta.uuid!r} is no UUID: {error}") from error


def json_uuids_of(payloads: Sequence[bytes]) -> bytes:
    """Return the UUIDs of JSON payloads, 16 bytes each; zero bytes where there is none.

    Raises:
        ValueError: see `json_uuid_of`.
    """
    try:
        # An absent `_meta` or UUID is rare, and raises here; the slow path below tells what it was.
        texts: list[str] = [_probe(payload).meta.uuid for payload in payloads]  # type: ignore[union-attr,misc]
        return _from_texts(texts)
    except (*_ERRORS, AttributeError, TypeError):
        return b"".join([json_uuid_of(payload) for payload in payloads])


def _from_texts(texts: list[str]) -> bytes:
    """Parse many UUIDs in a few passes over one string."""
    joined = "".join(texts)
    count = len(texts)
    digits = joined.replace("-", "")
    in_place = len(digits) == 32 * count and all(
        joined[hyphen::_UUID_CHARACTERS] == "-" * count for hyphen in _HYPHENS
    )
    if not in_place or set(map(len, texts)) != {_UUID_CHARACTERS}:
        raise ValueError("a UUID is not of the form 8-4-4-4-12")
    uuids = bytes.fromhex(digits)
    if len(uuids) != 16 * count:
        raise ValueError("a UUID holds white space")
    return uuids


class JsonType:
    """Messages are dicts."""

    content_type = NDJSON

    def decode(self, payload: bytes) -> Any:
        """Return the JSON value of a payload."""
        try:
            return msgspec.json.decode(payload)
        except _ERRORS as error:
            raise ValueError(f"not a JSON message: {error}") from error

    def encode(self, message: Any) -> bytes:
        """Return a dict as JSON on one line."""
        return msgspec.json.encode(message)

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID at `_meta.uuid`."""
        return json_uuid_of(payload)

    def uuids_of(self, payloads: Sequence[bytes]) -> bytes:
        """Return the UUIDs of many payloads."""
        return json_uuids_of(payloads)

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Write `_meta.uuid`; what else `_meta` holds stays."""
        message.setdefault("_meta", {})["uuid"] = format_uuid(uuid)

    def new_acknowledgement(self, journal: str) -> Any:
        """Return an empty dict."""
        del journal
        return {}


class JsonStructType:
    """Messages are of one `msgspec.Struct` class, decoded and validated as such.

    The class keeps the UUID in a field of type `Meta`, named `_meta` in JSON:

        class Flight(msgspec.Struct):
            meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
            tail: str = ""
    """

    content_type = NDJSON

    def __init__(self, struct_class: type[msgspec.Struct], *, meta_field: str = "meta") -> None:
        """Describe messages of `struct_class`.

        Raises:
            TypeError: a field has no default, or none is `_meta`: acknowledgements could not be made or read.
        """
        fields = {field.name: field for field in msgspec.structs.fields(struct_class)}
        required = [name for name, field in fields.items() if field.required]
        if required:
            raise TypeError(
                f"{struct_class.__name__} needs defaults for {', '.join(required)}: "
                "acknowledgements are messages with nothing but a UUID"
            )
        if meta_field not in fields or fields[meta_field].encode_name != "_meta":
            raise TypeError(
                f"{struct_class.__name__} needs a field {meta_field}: Meta = msgspec.field("
                'name="_meta", default_factory=Meta) to hold the UUID'
            )
        self._struct_class = struct_class
        self._meta_field = meta_field
        self._decode = msgspec.json.Decoder(struct_class).decode

    def decode(self, payload: bytes) -> Any:
        """Return the Struct of a payload."""
        try:
            return self._decode(payload)
        except _ERRORS as error:
            raise ValueError(f"not a {self._struct_class.__name__}: {error}") from error

    def encode(self, message: Any) -> bytes:
        """Return a Struct as JSON on one line."""
        return msgspec.json.encode(message)

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID at `_meta.uuid`."""
        return json_uuid_of(payload)

    def uuids_of(self, payloads: Sequence[bytes]) -> bytes:
        """Return the UUIDs of many payloads."""
        return json_uuids_of(payloads)

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Replace the meta field by one with this UUID."""
        setattr(message, self._meta_field, Meta(format_uuid(uuid)))

    def new_acknowledgement(self, journal: str) -> Any:
        """Return a Struct of defaults."""
        del journal
        return self._struct_class()
