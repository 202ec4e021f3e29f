"""Performs calls to a shard's primary, in attempts until it answers or the deadline passes.

believed route ─► channel ─► attempt ─► outcome ─► `retry` decides ─┬─► the answer, or an error
      ▲                                                             │
      └────────────── look up, learn, pause ◄───────────────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

import grpc
from google.protobuf.message import Message

from broadsheet.runtime.backoff import Backoff
from broadsheet.spark_bridge.errors import NoMemberError
from broadsheet.spark_bridge.routing.channels import PythonWorkerCache, this_worker
from broadsheet.spark_bridge.routing.lookup import Metadata, believed_route, credentials, selecting
from broadsheet.spark_bridge.routing.plan import ResolverPlan
from broadsheet.spark_bridge.routing.retry_policy import (
    Again,
    CallHistory,
    Confirm,
    Done,
    Final,
    Moved,
    Outcome,
    Step,
    of_answer,
    of_error,
    takes_token,
)
from broadsheet.spark_bridge.routing.route_watch import keep_watch
from broadsheet.spark_bridge.routing.routes import ShardRoute
from broadsheet.wire.shard_metadata import Token, request_metadata

PAUSE_SECONDS_MAX = 0.5
"""Longest pause between attempts, because a hand-over takes less than a second."""
_NO_PRIMARY = "NO_SHARD_PRIMARY"

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTarget:
    """A shard that calls are for, and the method and token that they carry."""

    plan: ResolverPlan
    shard_id: str
    token: Callable[[], Token]
    """Offsets that answers must have read through at the time of the call, bytes by journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as its caller made it. `Any`: each method has its own messages."""

    method: str
    request: Any
    timeout_seconds: float | None = None
    """None: the resolver's deadline."""
    metadata: Iterable[tuple[str, str | bytes]] = ()
    compression: grpc.Compression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAttempt:
    """Arguments of an attempt's call of gRPC."""

    channel: grpc.Channel
    release: Callable[[], None]
    """Called once, when the attempt is over."""
    request: Any
    seconds: float
    metadata: Metadata
    asked: Token
    """The token, if the answer must acknowledge it; else empty."""


Perform = Callable[[CallAttempt], tuple[AnswerT | None, Outcome]]
"""Makes an attempt; returns the answer and its outcome."""


def perform(target: CallTarget, call: Call, attempt: Perform[AnswerT]) -> AnswerT:
    """Return the answer of a shard's primary.

    Raises:
        ShardNotServedError: the deadline passed.
        ShardNotFoundError: there is no such shard.
        TokenIgnoredError: the method does not honour tokens.
        grpc.RpcError: the primary answered with an error that another attempt would meet, too.
    """
    return _Calling(target, call).run(attempt)


def of_unary(shard_id: str, attempt: CallAttempt, begin: Callable[..., Any]) -> tuple[Any, Outcome]:
    """Make an attempt of a method with one response; return (response, call) and the outcome.

    Args:
        shard_id: The shard.
        attempt: The attempt.
        begin: A gRPC callable's `with_call`. `Any`: it is generic in messages only.
    """
    try:
        response, call = begin(attempt.request, timeout=attempt.seconds, metadata=attempt.metadata)
    except grpc.RpcError as error:
        return None, of_error(shard_id, error)
    finally:
        attempt.release()
    return (response, call), of_answer(
        shard_id, response, call.initial_metadata(), asked=attempt.asked
    )


class _Calling:
    """The state of one call."""

    def __init__(self, target: CallTarget, call: Call) -> None:
        plan = target.plan
        seconds = plan.deadline_seconds if call.timeout_seconds is None else call.timeout_seconds
        self._target = target
        self._plan = plan
        self._shard_id = target.shard_id
        self._call = call
        self._deadline = time.monotonic() + seconds
        self._worker: PythonWorkerCache = this_worker()
        self._table = self._worker.routes(plan.cluster)
        self._history = CallHistory(target.shard_id, call.method, seconds=seconds)
        self._backoff = Backoff(max_seconds=PAUSE_SECONDS_MAX, random=self._worker.random)

    def run(self, attempt: Perform[AnswerT]) -> AnswerT:
        while (remaining := self._deadline - time.monotonic()) > 0:
            answer, outcome, route = self._try_once(attempt, remaining)
            now = time.monotonic()
            heard = self._table.heard_lately(self._shard_id, now)
            step = self._history.after(
                outcome, route, confirmed=heard, cut_short=now >= self._deadline
            )
            if isinstance(step, Confirm):
                assert route is not None, "somebody answered"
                step = self._confirm(route, step.error)
            if isinstance(step, Done):
                assert answer is not None, "an answered attempt has an answer"
                return answer
            self._follow(step)
        raise self._history.too_late()

    def _try_once(
        self, attempt: Perform[AnswerT], remaining: float
    ) -> tuple[AnswerT | None, Outcome, ShardRoute | None]:
        try:
            route = self._route()
        except NoMemberError as error:
            return None, Moved(str(error)), None
        # The shard is between two primaries: wait, and look it up again.
        if not route.endpoint:
            return None, Moved(_NO_PRIMARY), route
        if not self._plan.permits(route.endpoint):
            return None, Moved(f"{route.endpoint} does not speak TLS"), route
        request, metadata, asked = self._carrying_token(route)
        metadata += credentials(
            self._plan.access.auth_keys,
            self._plan.capability,
            selecting(self._shard_id) if self._plan.access.auth_keys else None,
            seconds=remaining,
        )
        channel, release = self._worker.channels.borrow(route.endpoint, self._plan.access.tls)
        answer, outcome = attempt(
            CallAttempt(
                channel=channel,
                release=release,
                request=request,
                seconds=remaining,
                metadata=metadata,
                asked=asked,
            )
        )
        return answer, outcome, route

    def _route(self) -> ShardRoute:
        keep_watch(self._plan, self._worker)
        return believed_route(self._plan, self._worker, self._shard_id, deadline=self._deadline)

    def _carrying_token(self, route: ShardRoute) -> tuple[Any, Metadata, Token]:
        token = self._plan.relevant(self._target.token(), route)
        request = self._call.request
        metadata = (*self._call.metadata, *request_metadata(self._shard_id, token))
        if token and takes_token(request):
            # Sent both ways, because the service may use either; with the field it waits as a Stat does, and need not
            # acknowledge.
            return _reading_through(request, token), metadata, {}
        return request, metadata, token

    def _confirm(self, asked: ShardRoute, error: Exception) -> Step:
        self._table.doubt(self._shard_id)
        try:
            return self._history.confirmed(asked, self._route(), error)
        except NoMemberError:
            # Whether the primary was asked is unknown, so the error may not be final.
            return Again()

    def _follow(self, step: Final | Again | Confirm) -> None:
        match step:
            case Final(error):
                raise error
            case Again(learned, pause):
                if learned is None:
                    self._table.doubt(self._shard_id)
                else:
                    self._table.learn((learned,), time.monotonic())
                if pause:
                    remaining = self._deadline - time.monotonic()
                    time.sleep(max(0.0, min(self._backoff.next_seconds(), remaining)))
            case Confirm():
                raise AssertionError("a confirmation is final, or another attempt follows")
            case _:
                assert_never(step)


def _reading_through(request: Message, token: Token) -> Message:
    """Return a copy of a request that asks for the token too; larger offsets that it asks for are kept."""
    copy = type(request)()
    copy.CopyFrom(request)
    offsets = getattr(copy, "read_through")  # noqa: B009 - known by its descriptor only
    for journal, offset in token.items():
        offsets[journal] = max(offset, offsets.get(journal, 0))
    return copy
