"""JSON messages, one a line, with their UUID at `_meta.uuid` and their trace context at `_meta.traceparent`.

The UUID is found by a partial decode that builds nothing else; whole messages are decoded when the application asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.row_encoding import RowsEncoder, Stamps
from broadsheet.journals.content.traceparents import LOOKS_MAX
from broadsheet.journals.message.framing import LineFraming, Payloads
from broadsheet.journals.message.json_errors import why_not_json
from broadsheet.journals.message.json_tables import json_table
from broadsheet.journals.message.json_values import encode_value, path_not_finite
from broadsheet.journals.message.uuid import FEW, NIL_UUID, UUID_BYTES, format_uuid
from broadsheet.serving.tracing import TRACEPARENT
from broadsheet.wire.journal_pb2 import LabelSet

if TYPE_CHECKING:
    import pyarrow as pa

NDJSON: Final = "application/x-ndjson"
"""The content type of JSON messages, one a line."""
_TRACE_KEY: Final = f'"{TRACEPARENT}"'.encode()
_UUID_CHARACTERS: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)
_DIGITS: Final = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
"""Begin and end of each group of digits in a UUID's text."""
_ERRORS: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""Errors of msgspec's decoders. RecursionError, raised for brackets nested too deep, is not documented there."""


class Meta(msgspec.Struct):
    """The metadata of a JSON message: the value of `_meta`."""

    uuid: str = ""
    """Text form of the message's UUID; empty before it is published."""
    traceparent: str | msgspec.UnsetType = msgspec.UNSET
    """The W3C trace context of what published the message, if that was traced."""


class _ProbedMeta(msgspec.Struct, gc=False):
    uuid: str | None = None


class _Probe(msgspec.Struct, gc=False):
    """The only part of a payload that sequencing looks at."""

    meta: _ProbedMeta | None = msgspec.field(name="_meta", default=None)


_NULL: Final = b"null"
_NIL_TEXT: Final = format_uuid(NIL_UUID)
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")
_probe = msgspec.json.Decoder(_Probe).decode
_probe_lines = msgspec.json.Decoder(_Probe).decode_lines


def json_uuid_of(payload: bytes) -> bytes:
    """Return the 16-byte UUID of a JSON payload; zero bytes if it has none.

    Raises:
        ValueError: the payload is not a JSON object, or its `_meta.uuid` is not a UUID.
    """
    try:
        meta = _probe(payload).meta
    except _ERRORS as error:
        raise ValueError(f"not a JSON message: {why_not_json(payload, error)}") from error
    if meta is None or not meta.uuid:
        return NIL_UUID
    try:
        return _from_text(meta.uuid)
    except ValueError as error:
        raise ValueError(f"_meta.uuid {meta.uuid!r} is not a UUID: {error}") from error


def json_uuids_of(payloads: Sequence[bytes]) -> bytes:
    """Return the UUIDs of JSON payloads, 16 bytes each; zero bytes where there is none.

    Raises:
        ValueError: see `json_uuid_of`.
    """
    try:
        texts = [
            _NIL_TEXT if (meta := probe.meta) is None else meta.uuid or _NIL_TEXT
            for probe in _probes(payloads)
        ]
        return _from_texts(texts)
    except _ERRORS:
        # One by one, to find the one that is no message.
        return b"".join([json_uuid_of(payload) for payload in payloads])


def _probes(payloads: Sequence[bytes]) -> list[_Probe]:
    lines = json_lines(payloads)
    # One call for all lines; anything that it may not take apart as lines is asked one by one.
    if lines is not None and len(probes := _probe_lines(lines)) == len(payloads):
        return probes
    return [_probe(payload) for payload in payloads]


def json_lines(payloads: Sequence[bytes]) -> memoryview | None:
    """Return the payloads as lines in one buffer, for parsers that know no lines; None if they might err.

    It is also None for so few payloads that each is parsed in less time than this takes.

    If such a parser finds as many JSON objects as there are payloads, the payloads are these objects: each begins with
    an opening brace and ends with a closing one. No string of valid JSON holds a newline, and after a closing brace
    within an object no opening brace may follow, so that no object goes on in the next line.
    """
    if not isinstance(payloads, Payloads) or len(payloads) < FEW:
        return None
    edges = payloads.edges()
    if edges is None or not ((edges[0] == _OPENING).all() and (edges[1] == _CLOSING).all()):
        return None
    return payloads.lines()


def _from_text(text: str) -> bytes:
    digits = text.replace("-", "")
    in_place = len(text) == _UUID_CHARACTERS and all(text[hyphen] == "-" for hyphen in _HYPHENS)
    if not in_place or len(digits) != _UUID_CHARACTERS - len(_HYPHENS):
        raise ValueError("it is not of the form 8-4-4-4-12")
    uuid = bytes.fromhex(digits)
    if len(uuid) != UUID_BYTES:
        raise ValueError("it holds white space")
    return uuid


def _from_texts(texts: list[str]) -> bytes:
    """Parse many UUIDs in a few passes over one string."""
    count = len(texts)
    if count < FEW:
        return b"".join(map(_from_text, texts))
    joined = "".join(texts)
    # Checked one by one, because a longer text could make up for a shorter one.
    if set(map(len, texts)) != {_UUID_CHARACTERS} or not joined.isascii():
        raise ValueError("a UUID is not of the form 8-4-4-4-12")
    rows = np.frombuffer(joined.encode("ascii"), dtype=np.uint8).reshape(count, _UUID_CHARACTERS)
    return _from_rows(rows)


def _from_rows(rows: NDArray[np.uint8]) -> bytes:
    """Parse the texts of N UUIDs, shape (N, 36)."""
    if not (rows[:, _HYPHENS] == ord("-")).all():
        raise ValueError("a UUID is not of the form 8-4-4-4-12")
    digits = np.concatenate([rows[:, begin:end] for begin, end in _DIGITS], axis=1)
    uuids = bytes.fromhex(str(digits.data, "ascii"))
    if len(uuids) != UUID_BYTES * len(rows):
        raise ValueError("a UUID holds white space")
    return uuids


_decode_lines = msgspec.json.Decoder().decode_lines


def _decoded(
    decode_lines: Callable[[memoryview], list[Any]], payloads: Sequence[bytes]
) -> Sequence[Any] | None:
    lines = json_lines(payloads)
    if lines is None:
        return None
    try:
        found = decode_lines(lines)
    except _ERRORS:
        return None
    return found if len(found) == len(payloads) else None


class JsonType:
    """JSON messages as dicts, one a line."""

    content_type = NDJSON

    def decode_all(self, payloads: Sequence[bytes]) -> Sequence[Any] | None:
        """Return the JSON values of many payloads; None if one of them needs to be named."""
        return _decoded(_decode_lines, payloads)

    def decode(self, payload: bytes) -> Any:
        """Return the JSON value of a payload."""
        try:
            return msgspec.json.decode(payload)
        except _ERRORS as error:
            raise ValueError(f"not a JSON message: {why_not_json(payload, error)}") from error

    # A dict as JSON on one line; the function itself, because a call more for each message can be measured.
    encode = staticmethod(encode_value)

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID at `_meta.uuid`."""
        return json_uuid_of(payload)

    def uuids_of(self, payloads: Sequence[bytes]) -> bytes:
        """Return the UUIDs of many payloads."""
        return json_uuids_of(payloads)

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Write `_meta.uuid`; other fields of `_meta` are kept."""
        message.setdefault("_meta", {})["uuid"] = format_uuid(uuid)

    def set_traceparent(self, message: Any, traceparent: str) -> None:
        """Write `_meta.traceparent`."""
        message.setdefault("_meta", {})[TRACEPARENT] = traceparent

    def new_acknowledgement(self, journal: str) -> Any:
        """Return an empty dict."""
        del journal
        return {}


class JsonStructType:
    """JSON messages as one `msgspec.Struct` class, decoded and validated as such.

    The class keeps the UUID in a field of type `Meta`, named `_meta` in JSON:

        class Flight(msgspec.Struct):
            meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
            tail: str = ""
    """

    content_type = NDJSON

    def __init__(self, struct_class: type[msgspec.Struct], *, meta_field: str = "meta") -> None:
        """Check that `struct_class` can hold an acknowledgement.

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
        decoder = msgspec.json.Decoder(struct_class)
        self._decode = decoder.decode
        self._decode_lines = decoder.decode_lines

    def decode_all(self, payloads: Sequence[bytes]) -> Sequence[Any] | None:
        """Return the Structs of many payloads; None if one of them needs to be named."""
        return _decoded(self._decode_lines, payloads)

    def decode(self, payload: bytes) -> Any:
        """Return the Struct of a payload."""
        try:
            return self._decode(payload)
        except _ERRORS as error:
            reason = why_not_json(payload, error)
            raise ValueError(f"not a {self._struct_class.__name__}: {reason}") from error

    def encode(self, message: Any) -> bytes:
        """Return a Struct as JSON on one line.

        Raises:
            ValueError: a number is not finite, which would come back as null, or not at all.
        """
        text = msgspec.json.encode(message)
        # Only what became null may have been such a number.
        if _NULL in text and (path := path_not_finite(message)) is not None:
            raise ValueError(f"{path} is not finite, and JSON has no such number")
        return text

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID at `_meta.uuid`."""
        return json_uuid_of(payload)

    def uuids_of(self, payloads: Sequence[bytes]) -> bytes:
        """Return the UUIDs of many payloads."""
        return json_uuids_of(payloads)

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Replace the meta field by one with this UUID."""
        setattr(message, self._meta_field, Meta(format_uuid(uuid)))

    def set_traceparent(self, message: Any, traceparent: str) -> None:
        """Write the meta field's `traceparent`."""
        meta = getattr(message, self._meta_field)
        # A derived type may keep the UUID in a class of its own.
        if isinstance(meta, Meta):
            meta.traceparent = traceparent

    def new_acknowledgement(self, journal: str) -> Any:
        """Return a Struct of defaults."""
        del journal
        return self._struct_class()


# ---- The content type ----


class _TracedMeta(msgspec.Struct, gc=False):
    traceparent: str = ""


class _TraceProbe(msgspec.Struct, gc=False):
    meta: _TracedMeta = msgspec.field(name="_meta", default_factory=_TracedMeta)


_trace_probe = msgspec.json.Decoder(_TraceProbe).decode


def _message_type(labels: LabelSet, message_class: type[Any] | None) -> MessageType:
    del labels
    return JsonType() if message_class is None else JsonStructType(message_class)


def _made_of(message_type: MessageType, values: Sequence[Any]) -> Any:
    (value,) = values
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {msgspec.json.encode(value)[:40].decode()}")
    # Any other type of JSON messages knows its own objects.
    if type(message_type) is not JsonType:
        return message_type.decode(msgspec.json.encode(value))
    if not isinstance(value.get("_meta", {}), dict):
        raise ValueError("_meta: expected an object, in which the UUID is written")
    return value


def _traceparents(payloads: Sequence[bytes]) -> Iterator[str]:
    for line in _lines_with_key(payloads):
        try:
            yield _trace_probe(line).meta.traceparent
        except (msgspec.MsgspecError, RecursionError):
            continue  # The key is elsewhere in it.


def _lines_with_key(payloads: Sequence[bytes]) -> Iterator[bytes]:
    if not isinstance(payloads, Payloads):
        yield from (each for each in islice(payloads, LOOKS_MAX) if _TRACE_KEY in each)
        return
    if not len(payloads):
        return
    buffer, at, end = payloads.buffer, int(payloads.begins[0]), int(payloads.ends[-1])
    for _ in range(LOOKS_MAX):
        at = buffer.find(_TRACE_KEY, at, end)
        if at < 0:
            return
        index = int(np.searchsorted(payloads.begins, at, side="right")) - 1
        stop = int(payloads.ends[index])
        # Else it belongs to a message between these, which is not one of the batch.
        if at < stop:
            yield payloads[index]
        at = max(at + len(_TRACE_KEY), stop)


def _rows_encoder(message_type: MessageType) -> RowsEncoder | None:
    # Not a class derived from these: it may keep the UUID elsewhere, or write values in another way.
    if type(message_type) not in {JsonType, JsonStructType}:
        return None
    return partial(_encode_rows, names_not_finite=type(message_type) is JsonType)


def _encode_rows(rows: pa.RecordBatch, stamps: Stamps, *, names_not_finite: bool) -> bytes:
    from broadsheet.journals.message.json_rows import JsonRows, check_columns

    check_columns(rows.schema)
    writer = JsonRows(traceparent=stamps.traceparent, names_not_finite=names_not_finite)
    content, _ = writer.lines(rows, stamps.take(rows.num_rows))
    return bytes(content)


CONTENT: Final = ContentType(
    name=NDJSON,
    framing=LineFraming(),
    message_type=_message_type,
    shown=lambda message: [message],
    is_text=True,
    made_of=_made_of,
    table=json_table,
    rows_encoder=_rows_encoder,
    traceparents=_traceparents,
    spark_columns="json",
)
