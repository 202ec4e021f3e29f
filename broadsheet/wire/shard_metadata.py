"""Metadata of calls to an application's service: the shard, and the offsets that an answer must reflect.

    client → member   `broadsheet-shard-bin`          id of the shard that the call is for
                      `broadsheet-read-through-bin`   the token: the answer must reflect what is before these offsets
    member → client   `broadsheet-read-through`       "honoured": it does; initial metadata, those below are trailing
                      `broadsheet-shard-status`       name of a `consumer.Status` other than OK: nothing was answered
                      `broadsheet-shard-header-bin`   a `protocol.Header`, whose route tells where to go instead

A token is a mapping of journals to offsets, bytes; on the wire it is a JSON object. Services whose messages have fields
for these (`header`, `status`, `read_through`, as `consumer.StatRequest` has) need no metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from google.protobuf.message import DecodeError

from broadsheet.runtime.documents import DocumentError, decode_json
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.wire.journal_pb2 import Header
from broadsheet.wire.shard_pb2 import Status

SHARD = "broadsheet-shard-bin"
READ_THROUGH = "broadsheet-read-through-bin"
HONOURED = "broadsheet-read-through"
STATUS = "broadsheet-shard-status"
HEADER = "broadsheet-shard-header-bin"
HONOURED_VALUE = "honoured"
TOKEN_BYTES_MAX = 4096
"""Longest token on the wire: gRPC takes 8 KiB of metadata in all."""
_STATUS_BY_NAME = {name.encode(): number for name, number in Status.items()}
Pairs = Iterable[tuple[str, str | bytes]]
"""Metadata as passed by gRPC."""
Token = Mapping[str, int]
"""Offsets, bytes by journal, up to which an answer must have read."""


def merge_tokens(*tokens: Token) -> dict[str, int]:
    """Return the token that includes all `tokens`: the greatest offset of every journal."""
    merged: dict[str, int] = {}
    for token in tokens:
        for journal, offset in token.items():
            merged[journal] = max(offset, merged.get(journal, 0))
    return merged


def check_token(token: Token) -> None:
    """Check that a mapping is a valid token.

    Raises:
        ValidationError: a journal is no text, or an offset no number of bytes.
    """
    entries: Iterable[tuple[object, object]] = token.items()  # a notebook's types are not checked
    for journal, offset in entries:
        if not isinstance(journal, str) or not journal:
            raise ValidationError("token", f"expected names of journals, got {journal!r}")
        if not isinstance(offset, int) or offset < 0:
            raise ValidationError(f"token[{journal}]", f"expected an offset >= 0, got {offset!r}")


def request_metadata(shard_id: str, token: Token) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata that a client attaches to a call.

    Raises:
        BoundExceededError: the token names more journals than metadata can hold.
    """
    if not token:
        return ((SHARD, shard_id.encode()),)
    encoded = msgspec.json.encode(dict(token))
    if len(encoded) > TOKEN_BYTES_MAX:
        raise BoundExceededError(
            f"the token of {len(token)} journals takes {len(encoded)} bytes, metadata hold {TOKEN_BYTES_MAX}: "
            "leave out journals that the shard does not read"
        )
    return (SHARD, shard_id.encode()), (READ_THROUGH, encoded)


def shard_in(metadata: Pairs | None) -> str:
    """Return the shard that a call is for; empty if none is named."""
    found = _value(metadata, SHARD)
    return "" if found is None else found.decode(errors="replace")


def token_in(metadata: Pairs | None) -> dict[str, int]:
    """Return the token of a call; empty if it has none.

    Raises:
        ValidationError: it is malformed.
    """
    found = _value(metadata, READ_THROUGH)
    if found is None:
        return {}
    try:
        token = decode_json(found, dict[str, int])
    except DocumentError as error:
        expected = "expected a JSON object of offsets by journal"
        raise ValidationError(f"metadata[{READ_THROUGH}]", f"{expected}: {error}") from error
    check_token(token)
    return token


def refusal_metadata(
    status: Status.ValueType, header: Header | None
) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata that a member attaches to a call that it cannot answer."""
    named = (STATUS, Status.Name(status))
    return (named,) if header is None else (named, (HEADER, header.SerializeToString()))


def refusal_in(metadata: Pairs | None) -> tuple[Status.ValueType, Header | None] | None:
    """Return the status and the header with which a member refused a call, or None."""
    pairs = tuple(metadata or ())
    name = _value(pairs, STATUS)
    number = None if name is None else _STATUS_BY_NAME.get(name)
    return None if number is None else (number, _header(_value(pairs, HEADER)))


def is_honoured(metadata: Pairs | None) -> bool:
    """Tell whether an answer has read through the call's token."""
    return _value(metadata, HONOURED) == HONOURED_VALUE.encode()


def _header(value: bytes | None) -> Header | None:
    if value is None:
        return None
    try:
        return Header.FromString(value)
    except DecodeError:
        return None  # the status alone suffices: the client asks other members who the primary is


def _value(metadata: Pairs | None, wanted: str) -> bytes | None:
    for key, value in metadata or ():
        if key == wanted:
            return value if isinstance(value, bytes) else value.encode()
    return None
