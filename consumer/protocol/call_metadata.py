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

import getpass
import socket
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from broadsheet.allocator.documents import DocumentError, decode_json
from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.errors import BoundExceededError
from broadsheet.consumer.protocol.journal_pb2 import Header
from broadsheet.consumer.protocol.shard_pb2 import Status

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


# Actor of a call, as a client names itself: logged where an operator's actions must be
# distinguished from the cluster's own.
#
#     client → member   `broadsheet-actor`    e.g. maria@workstation; of a forwarded request, as it was first received
#
# It proves nothing, because a caller's permissions depend on its token. A client without this
# metadata is identified by its address.
ACTOR = "broadsheet-actor"
"""Key of the metadata. Only printable ASCII is passed."""
ACTOR_CHARACTERS_MAX = 128


def local_actor() -> str:
    """Return the name by which a client of this process identifies itself."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # the user is unknown here: a container with an arbitrary id.
    return _printable(f"{user}@{socket.gethostname()}")


def actor_of(metadata: Pairs, peer: str) -> str:
    """Return the actor of a call.

    Args:
        metadata: Of the call.
        peer: The caller's address, as gRPC knows it.
    """
    for key, value in metadata:
        if key == ACTOR and value:
            return _printable(value if isinstance(value, str) else value.decode(errors="replace"))
    return _printable(peer)


def _printable(text: str) -> str:
    return "".join(each if " " <= each <= "~" else "?" for each in text)[:ACTOR_CHARACTERS_MAX]


# Metadata of a Read.
#
#     client → broker   `broadsheet-tail`     "brief": content that continues the open fragment, and reaches the write
#                                             head, may come without a message that describes the fragment again
#                       `broadsheet-linger`   "50": once something is appended, wait this many milliseconds for more
#                                             before it is sent, if the reader is at the write head; 0 to 250
#
# Brokers that do not know the first describe the fragment before each content; then a tailing
# reader is woken twice for each append. Content that comes alone ends at the end of the fragment
# and at the write head. Brokers that do not know the second send appended content at once.
#
# Source: Kafka's `fetch.max.wait.ms` (a reader that can wait is sent more at a time).

TAIL: Final = "broadsheet-tail"
BRIEF: Final = "brief"
BRIEF_TAIL: Final = (TAIL, BRIEF)
"""Metadata of a reader that accepts brief messages at the tail."""
LINGER: Final = "broadsheet-linger"
LINGER_SECONDS_MAX: Final = 0.25
"""Longest time for which the end of a stream may have to wait."""
Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]] | None"


def takes_brief_tail(metadata: Metadata) -> bool:
    """Tell whether a call carries `BRIEF_TAIL`."""
    return BRIEF_TAIL in (metadata or ())


def check_linger(seconds: float) -> float:
    """Return a valid linger time, seconds.

    Raises:
        ValidationError: it is not from 0 to `LINGER_SECONDS_MAX`.
    """
    if not 0 <= seconds <= LINGER_SECONDS_MAX:
        raise ValidationError(
            "linger_seconds", f"expected 0 to {LINGER_SECONDS_MAX:g} seconds, got {seconds:g}"
        )
    return seconds


def metadata_of_linger(seconds: float) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a reader that lingers this long, in whole milliseconds; none for zero."""
    milliseconds = round(check_linger(seconds) * 1000)
    return ((LINGER, str(milliseconds)),) if milliseconds else ()


def linger_seconds_of(metadata: Metadata) -> float:
    """Return the linger time of a call, seconds.

    Raises:
        ValidationError: the call says something else than whole milliseconds up to the maximum.
    """
    for key, value in metadata or ():
        if key == LINGER:
            if not isinstance(value, str) or not value.isascii() or not value.isdecimal():
                raise ValidationError(LINGER, f"expected whole milliseconds, got {value!r}")
            return check_linger(int(value) / 1000)
    return 0.0
