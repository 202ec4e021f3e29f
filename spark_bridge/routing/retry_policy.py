"""Classifies the outcome of a call's attempt, and decides whether another one follows.

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
from typing import assert_never

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.spark_bridge.errors import (
    MembersGoneError,
    ShardNotServedError,
    TokenIgnoredError,
)
from broadsheet.spark_bridge.routing.routes import ShardRoute, later_route
from broadsheet.wire.journal_pb2 import Header
from broadsheet.wire.shard_metadata import Pairs, Token, is_honoured, refusal_in
from broadsheet.wire.shard_pb2 import Status

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
class CallAnswered:
    """The attempt was answered."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The shard is not served there at the moment: try again, elsewhere if `header` says so."""

    cause: str
    header: Header | None = None


@dataclass(frozen=True, slots=True)
class Questioned:
    """The wrong process may have been asked; if not, the call ends with `error`, or for None with TokenIgnoredError."""

    cause: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed with an error that another one would meet, too."""

    error: Exception


Outcome = CallAnswered | Moved | Questioned | Failed


def of_answer(shard_id: str, response: object, initial: Pairs | None, *, asked: Token) -> Outcome:
    """Return the outcome of an attempt that was answered.

    Args:
        shard_id: The shard.
        response: The message.
        initial: Metadata that came before it.
        asked: The token, if the answer must acknowledge it; else empty.
    """
    status, header = _in_band(response)
    if status != Status.OK:
        return _of_status(shard_id, status, header)
    if asked and not is_honoured(initial):
        return Questioned("the answer does not say that it honours the token", None)
    return CallAnswered()


def of_error(shard_id: str, error: grpc.RpcError) -> Outcome:
    """Return the outcome of an attempt that failed."""
    trailing = error.trailing_metadata() or ()
    refusal = refusal_in((one.key, one.value) for one in trailing)
    # A status of ours says more than gRPC's code beside it.
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
    return Moved(name, header) if status in _MOVING else CallAnswered()


def _in_band(response: object) -> tuple[int, Header | None]:
    if not isinstance(response, Message):
        return Status.OK, None
    has_status, has_header = _fields(response.DESCRIPTOR)
    if not has_status:
        return Status.OK, None
    status: int = getattr(response, "status")  # noqa: B009 - known by its descriptor only
    header: Header | None = getattr(response, "header") if has_header else None  # noqa: B009
    # A status that this version does not know is left to the caller.
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


FOLLOWED_MAX = 3
"""Most moves followed without a pause, because two members that name each other must not be asked in a busy loop."""
ASKED_MAX = 8
"""Most members that an error lists: the last ones asked."""
CAUSE_CHARACTERS_MAX = 300
_NO_MEMBER = "no member"


@dataclass(frozen=True, slots=True)
class Done:
    """The attempt's answer is the call's."""


@dataclass(frozen=True, slots=True)
class Final:
    """The call ends with an error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt follows."""

    learned: ShardRoute | None = None
    """The shard's new route; None: look it up."""
    pause: bool = True


@dataclass(frozen=True, slots=True)
class Confirm:
    """The call ends with an error if the primary was asked, which must be looked up."""

    error: Exception


Step = Done | Final | Again | Confirm


class CallHistory:
    """Decides what follows each attempt of one call, and remembers the members asked; pure.

    Answered ─► Done                 Failed ─► Final
    Moved, to where its header says ─► Again, at once
    Moved ─► Again, after a pause and a new look-up
    Questioned, by the primary as heard lately ─► Final
    Questioned ─► Confirm: look the primary up; the same ─► Final, another ─► Again
    """

    def __init__(self, shard_id: str, method: str, *, seconds: float) -> None:
        """Start a call.

        Args:
            shard_id: The shard that the call is for.
            method: The method's full name.
            seconds: Until the call's deadline.
        """
        self._shard_id = shard_id
        self._method = method
        self._seconds = seconds
        self._asked: dict[str, tuple[int, str]] = {}
        self._followed = 0
        self._is_alone = False
        """Whether no member was found for the last attempt."""
        self.attempts = 0

    def after(
        self,
        outcome: Outcome,
        route: ShardRoute | None,
        *,
        confirmed: bool,
        cut_short: bool = False,
    ) -> Step:
        """Return the step after an attempt.

        Args:
            outcome: Of the attempt.
            route: The member that it asked; None if no member was known.
            confirmed: Whether a member named this primary just now.
            cut_short: Whether the call's own deadline passed in the attempt.
        """
        self.attempts += 1
        self._is_alone = route is None
        match outcome:
            case CallAnswered():
                return Done()
            case Failed(error):
                return Final(error)
            case Moved(cause, header):
                self._note(route, cause, cut_short=cut_short)
                learned = None if route is None else later_route(route, header)
                return self._again(route, learned)
            case Questioned(cause, error):
                self._note(route, cause, cut_short=cut_short)
                end = error or TokenIgnoredError(self._shard_id, self._method)
                return Final(end) if confirmed else Confirm(end)
            case _:
                assert_never(outcome)

    def confirmed(self, asked: ShardRoute, found: ShardRoute, error: Exception) -> Step:
        """Return the step after the primary was looked up.

        Args:
            asked: The member that the attempt asked.
            found: The primary.
            error: The attempt's error.
        """
        # The right member was asked, so its refusal is the answer.
        if found.endpoint == asked.endpoint:
            return Final(error)
        return self._again(asked, found)

    def too_late(self) -> ShardNotServedError:
        """Return the error of a call whose deadline passed."""
        asked = {endpoint: f"{_times(n)}{cause}" for endpoint, (n, cause) in self._asked.items()}
        kind = MembersGoneError if self._is_alone else ShardNotServedError
        return kind(
            self._shard_id,
            self._method,
            attempts=self.attempts,
            seconds=self._seconds,
            asked=asked,
        )

    def _again(self, asked: ShardRoute | None, learned: ShardRoute | None) -> Again:
        elsewhere = learned is not None and (asked is None or learned.endpoint != asked.endpoint)
        # Somewhere else: no pause, because that member is most likely the primary.
        if elsewhere and self._followed < FOLLOWED_MAX:
            self._followed += 1
            return Again(learned, pause=False)
        self._followed = 0
        return Again(learned if elsewhere else None)

    def _note(self, route: ShardRoute | None, cause: str, *, cut_short: bool) -> None:
        endpoint = _NO_MEMBER if route is None or not route.endpoint else route.endpoint
        # Taken out and put back, so that the last ones asked are the last in the dictionary.
        times, earlier = self._asked.pop(endpoint, (0, ""))
        # The call's own deadline says nothing of the member; what an earlier attempt met does.
        if cut_short and earlier:
            cause = earlier
        self._asked[endpoint] = (times + 1, cause[:CAUSE_CHARACTERS_MAX])
        while len(self._asked) > ASKED_MAX:
            self._asked.pop(next(iter(self._asked)))


def _times(count: int) -> str:
    return "" if count == 1 else f"{count} times, last "
