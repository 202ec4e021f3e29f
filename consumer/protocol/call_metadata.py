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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec
import structlog
from google.protobuf.message import DecodeError

from broadsheet.allocator.documents import DocumentError, decode_json
from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.errors import BoundExceededError
from broadsheet.consumer.protocol.auth import Claims
from broadsheet.consumer.protocol.journal_pb2 import Header
from broadsheet.consumer.protocol.shard_pb2 import Status

log = structlog.get_logger()

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
FORWARDED = "broadsheet-forwarded"
"""Metadata of a request that a member forwarded, which is not forwarded again; of other callers it is ignored."""
ACTOR = "broadsheet-actor"
"""Key of the metadata. Only printable ASCII is passed."""
ACTOR_CHARACTERS_MAX = 128

# A broker says what it is in the initial metadata of its answer to List.
#
#     broker → client   `broadsheet-version`   of the package
#                       `broadsheet-time`      its clock as it begins to answer, nanoseconds since 1970, decimal
VERSION = "broadsheet-version"
WALL_TIME = "broadsheet-time"


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


def _printable(text: str, characters_max: int = ACTOR_CHARACTERS_MAX) -> str:
    return "".join(each if " " <= each <= "~" else "?" for each in text[:characters_max])


# Audit log: one event for each call that changes something, after it, whatever its outcome.
#
#     audit.apply_shards  subject=maria actor=maria@workstation peer=ipv4:10.0.0.7:51324 upserted=['a/b'] deleted=[]
#                         outcome=OK revision=1729
#
# The subject is proven, by the token or the certificate; the actor is what the client says of itself. Texts of requests
# are bounded and made printable, because a request is logged even if it is malformed.
AUDIT_ENTRIES_MAX = 128
"""Most names of one event; etcd takes no larger transactions."""
AUDIT_CHARACTERS_MAX = 512

# `Any`: requests differ in type.
_Describe = Callable[[Any], "dict[str, Any] | None"]
"""Describes a request; None if it changes nothing."""


def _applied(request: Any) -> dict[str, Any]:
    return {
        "upserted": [
            getattr(change.upsert, "id", "") or getattr(change.upsert, "name", "")
            for change in request.changes
            if change.HasField("upsert")
        ],
        "deleted": [change.delete for change in request.changes if change.delete],
    }


_AUDITED: Mapping[str, tuple[str, _Describe]] = {
    "/consumer.Shard/Apply": ("apply_shards", _applied),
    "/consumer.Shard/Unassign": (
        "unassign_shards",
        lambda request: (
            None
            if request.dry_run
            else {"shards": request.shards, "only_failed": request.only_failed}
        ),
    ),
    "/broadsheet.v1.AllocationService/ApplyPlan": (
        "apply_plan",
        lambda request: {"plan": request.plan_id},
    ),
    "/broadsheet.v1.AllocationService/CordonMembers": (
        "cordon_members",
        lambda request: {"members": request.members, "cordoned": request.cordoned},
    ),
    "/broadsheet.v1.RecoveryService/Prune": (
        "prune",
        lambda request: {"delay_seconds": request.delay_seconds},
    ),
    "/broadsheet.v1.RecoveryService/Rewind": (
        "rewind",
        lambda request: {
            "shard": request.shard,
            "backup": request.backup,
            "force": request.force,
        },
    ),
    "/broadsheet.v1.RecoveryService/ResetSource": (
        "reset_source",
        lambda request: {
            "shard": request.shard,
            "journal": request.journal,
            "offset": request.offset,
        },
    ),
    "/protocol.Journal/Apply": ("apply_journals", _applied),
    "/broadsheet.v1.FragmentService/DeleteFragments": (
        "delete_fragments",
        lambda request: {"journal": request.journal, "fragments": len(request.fragments)},
    ),
    "/broadsheet.v1.FragmentService/PurgeQuarantine": (
        "purge_quarantine",
        lambda request: {"entry": request.id},
    ),
    "/broadsheet.v1.FragmentService/VerifyJournal": (
        "discard_damaged",
        lambda request: {"journal": request.journal} if request.discard_damaged else None,
    ),
}
AUDITED_METHODS = frozenset(_AUDITED)
"""`/package.Service/Method` of those that change something."""


class AuditRecord:
    """The event of one call: `answered` by each answer, then `closed`."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._event = f"audit.{name}"
        self._fields = dict(fields)
        self._outcome = "OK"
        self._revision: int | None = None

    def answered(self, response: Any) -> None:
        """Take what an answer says: its status, and the revision of the change."""
        status = response.DESCRIPTOR.fields_by_name.get("status")
        if status is not None:
            self._outcome = status.enum_type.values_by_number[response.status].name
        for path in (("header", "etcd"), ("rewind",), ("reset",), ()):
            found = response
            for name in path:
                found = getattr(found, name, None)
            if revision := getattr(found, "revision", 0):
                self._revision = revision
                break
        pruned = getattr(response, "log", None)
        if pruned is not None:
            self._fields["fragments"] = self._fields.get("fragments", 0) + pruned.removed.fragments

    def closed(self, *, failure: str = "") -> None:
        """Log the event; `failure` is the code of the status that ended the call."""
        log.info(
            self._event,
            **self._fields,
            outcome=failure or self._outcome,
            revision=self._revision,
        )


def is_forwarded(metadata: Pairs, *, is_hop: bool) -> bool:
    """Report whether a member passed a call on.

    Args:
        metadata: Of the call.
        is_hop: Whether its claims are those of a member's hop: anybody can write the metadata.
    """
    return is_hop and any(key == FORWARDED for key, _ in metadata)


def audit_record(method: str, request: Any, claims: Claims, context: Any) -> AuditRecord | None:
    """Return the record of a call; None if it changes nothing.

    Args:
        method: `/package.Service/Method`.
        request: Its message; `Any`, because they differ in type.
        claims: Of the caller.
        context: Of the call; `Any`, because gRPC's and its wrappers have no common class.
    """
    name, describe = _AUDITED.get(method, ("", lambda _: None))
    what = describe(request)
    if what is None:
        return None
    metadata = tuple(context.invocation_metadata() or ())
    return AuditRecord(
        name,
        {
            "subject": claims.subject,
            "actor": actor_of(metadata, context.peer()),
            "peer": context.peer(),
            # Of a call that another member passed on, which logs it too.
            "forwarded": is_forwarded(metadata, is_hop=claims.is_hop),
            **{key: _loggable(value) for key, value in what.items()},
        },
    )


@contextmanager
def audited(
    record: AuditRecord | None, code_of: Callable[[BaseException], str]
) -> Iterator[Callable[[Any], None]]:
    """Log a record when the block has ended, also by an exception; the block passes each answer to what it yields.

    Args:
        record: None: nothing is logged.
        code_of: Returns the code of the status that an exception becomes.
    """
    if record is None:
        yield lambda _: None
        return
    try:
        yield record.answered
    except BaseException as error:
        # Whether the change was made is not known then.
        record.closed(failure=code_of(error) if isinstance(error, Exception) else "CANCELLED")
        raise
    record.closed()


def _loggable(value: Any) -> Any:
    if isinstance(value, str):
        return _printable(value, AUDIT_CHARACTERS_MAX)
    if isinstance(value, bool | int | float):
        return value
    return [_printable(each, AUDIT_CHARACTERS_MAX) for each in value[:AUDIT_ENTRIES_MAX]]


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
