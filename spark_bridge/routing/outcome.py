"""What came of one attempt of a call, and what it means for the next.

answer, status OK or none of ours                           Answered
status of a shard that moves (in the message or metadata)   Moved
UNAVAILABLE, CANCELLED, DEADLINE_EXCEEDED                   Moved
NOT_FOUND, UNIMPLEMENTED, ABORTED                           Questioned: final only if the primary is who was asked
an answer that does not acknowledge the token               Questioned
any other failure                                           Failed
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from consumer.errors import ShardNotFoundError
from consumer.protocol.call_metadata import Pairs, Token, is_honoured, refusal_in
from consumer.protocol.journal_pb2 import Header
from consumer.protocol.shard_pb2 import Status

_TRY_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
_ASK_AGAIN = frozenset(
    {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.ABORTED}
)
_MOVING = frozenset({Status.NO_SHARD_PRIMARY, Status.NOT_SHARD_PRIMARY, Status.SHARD_STOPPED})
_MAP_KEY_TEXT, _MAP_VALUE_INT64 = 9, 3
"""Numbers of protobuf's types."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The call is done."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The shard is not served there at the moment: ask again, elsewhere if `header` says so."""

    cause: str
    header: Header | None = None


@dataclass(frozen=True, slots=True)
class Questioned:
    """It may be that the wrong process was asked; if it was the primary, `error` is the end. None: the token is."""

    cause: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Another attempt would meet the same."""

    error: Exception


Outcome = Answered | Moved | Questioned | Failed


def of_answer(shard_id: str, response: object, initial: Pairs | None, *, asked: Token) -> Outcome:
    """Return the outcome of an attempt that was answered.

    Args:
        shard_id: The shard.
        response: The message.
        initial: Metadata that came before it.
        asked: The token, if its being honoured must be acknowledged; else empty.
    """
    status, header = _in_band(response)
    if status != Status.OK:
        return _of_status(shard_id, status, header)
    if asked and not is_honoured(initial):
        return Questioned("the answer does not say that it honours the token", None)
    return Answered()


def of_error(shard_id: str, error: grpc.RpcError) -> Outcome:
    """Return the outcome of an attempt that failed."""
    trailing = error.trailing_metadata() or ()
    refusal = refusal_in((one.key, one.value) for one in trailing)
    if refusal is not None and refusal[0] != Status.OK:
        return _of_status(shard_id, *refusal)
    code = error.code()
    cause = f"{code.name}: {error.details()}"
    if code in _TRY_AGAIN:
        return Moved(cause)
    return Questioned(cause, error) if code in _ASK_AGAIN else Failed(error)


def takes_token(request: object) -> bool:
    """Return whether a request has a field `read_through` of offsets by journal, as `consumer.StatRequest` has."""
    return isinstance(request, Message) and _has_read_through(request.DESCRIPTOR)


def _of_status(shard_id: str, status: int, header: Header | None) -> Outcome:
    name = Status.Name(Status.ValueType(status))
    if status == Status.SHARD_NOT_FOUND:
        return Questioned(name, ShardNotFoundError(shard_id, header))
    return Moved(name, header) if status in _MOVING else Answered()


def _in_band(response: object) -> tuple[int, Header | None]:
    if not isinstance(response, Message):
        return Status.OK, None
    has_status, has_header = _fields(response.DESCRIPTOR)
    if not has_status:
        return Status.OK, None
    status: int = getattr(response, "status")  # noqa: B009 - known by its descriptor only
    header: Header | None = getattr(response, "header") if has_header else None  # noqa: B009
    return (status if status in Status.values() else Status.OK), header


@lru_cache(maxsize=256)
def _fields(kind: Descriptor) -> tuple[bool, bool]:
    """Return whether a message has a status and a header as `consumer.StatResponse` has."""
    fields = kind.fields_by_name
    status, header = fields.get("status"), fields.get("header")
    return (
        status is not None
        and status.enum_type is not None
        and status.enum_type.full_name == Status.DESCRIPTOR.full_name,
        header is not None
        and header.message_type is not None
        and header.message_type.full_name == Header.DESCRIPTOR.full_name,
    )


@lru_cache(maxsize=256)
def _has_read_through(kind: Descriptor) -> bool:
    found = kind.fields_by_name.get("read_through")
    entry = None if found is None else found.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return False
    parts = entry.fields_by_name
    return (parts["key"].type, parts["value"].type) == (_MAP_KEY_TEXT, _MAP_VALUE_INT64)
