"""A shard that is assigned to this process: it starts, serves, fails, restarts, and stops here.

    new ─► STANDBY ─► (slot 0) ─► attempt 1: restore ─► ready, PRIMARY ─► transactions ─┐
                                      ▲                                                 │ error
                                      └──────── back-off ◄── FAILED (errors, next retry)┘

Each *attempt* to be the primary has its own worker thread, store, publisher and append service, and ends for good.
`ShardReference` is how others use a shard: it belongs to one attempt, which is not torn down while it is held.

Source: gazette/core consumer/shard.go (what a shard does, and when it tells etcd). Restarts in place are our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from allocator.core.model import Assignment, ItemId
from allocator.runtime.backoff import Backoff
from allocator.runtime.task_group import TaskGroup
from consumer.application import Store
from consumer.core.replica_status import failed_status
from consumer.journal.client import JournalClient
from consumer.local_state import LocalState
from consumer.protocol.shard_pb2 import ReplicaStatus, ShardSpec
from consumer.shard.environment import ShardEnvironment
from consumer.shard.primary import (
    AssignmentLostError,
    PrimaryAttempt,
    UnsupportedSpecError,
    check_supported,
)
from consumer.shard.replica_status_writer import ReplicaStatusWriter

ResultT = TypeVar("ResultT")

_log = structlog.get_logger()


class ShardReference:
    """Holds one attempt of a shard: until `release`, its store is not destroyed.

    Take it *before* any wait, and release it on every path (`with shard.acquire() as reference:`).
    """

    def __init__(self, attempt: PrimaryAttempt) -> None:
        """Hold `attempt`.

        Raises:
            ShardStoppedError: it has ended.
        """
        attempt.hold()
        self._attempt = attempt
        self._released = False

    @property
    def store(self) -> Store:
        """The store; touch it through `call` unless its class says otherwise.

        Requires:
            `wait_ready` returned.
        """
        assert self._attempt.store is not None, "the store is not restored yet"
        return self._attempt.store

    async def wait_ready(self) -> None:
        """Wait until the store is restored and the shard serves.

        Raises:
            ShardStoppedError: the attempt ended; the message has its cause.
        """
        attempt = self._attempt
        await asyncio.wait((attempt.ready, attempt.terminal), return_when=asyncio.FIRST_COMPLETED)
        if attempt.ended:
            raise attempt.stopped_error()

    async def wait_for_offsets(self, offsets: Mapping[str, int]) -> None:
        """Wait until completed transactions have read through `offsets`, bytes by journal.

        Raises:
            ShardStoppedError: the attempt ended; the message has its cause.
        """
        if not await self._attempt.progress.wait_for(offsets, ended=self._attempt.terminal):
            raise self._attempt.stopped_error()

    async def call(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(store, *args)`, run on the worker thread between batches.

        Requires:
            `wait_ready` returned.

        Raises:
            ShardStoppedError: the attempt ended before the call could run.
        """
        result: ResultT = await self._attempt.call(function, *args)
        return result

    def release(self) -> None:
        """Let go. Idempotent."""
        if not self._released:
            self._released = True
            self._attempt.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class LiveShard:
    """A shard of this process; implements `consumer.application.Shard`.

    The resolver makes one for a new assignment, keeps it over a promotion, and stops it when the assignment is gone or
    was made anew (`consumer.core.local_diff`).
    """

    def __init__(
        self, spec: ShardSpec, assignment: Assignment, environment: ShardEnvironment
    ) -> None:
        """Make a shard, on the event loop; nothing runs before `start`.

        Args:
            spec: Its current spec. Never changed, replaced by `on_assignment_changed`.
            assignment: Our own assignment as observed; slot 0 is the primary.
            environment: The services and limits of this process.
        """
        self._spec = spec
        self._assignment = assignment
        self._environment = environment
        self._fqn = environment.keys.item(ItemId(spec.id)).decode()
        self._random = environment.new_random()
        self._status = ReplicaStatusWriter(
            environment.etcd,
            environment.key_space,
            lambda: self._assignment,
            random=self._random,
        )
        self._backoff = Backoff(
            initial_seconds=environment.config.restart_delay_seconds,
            max_seconds=environment.config.restart_delay_seconds_max,
            random=self._random,
        )
        self._promoted = asyncio.Event()
        self._spec_changed = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._attempt = self._new_attempt()
        if self.primary:
            self._promoted.set()

    # -- what the application sees

    @property
    def id(self) -> str:
        """The shard's id."""
        return self._spec.id

    @property
    def fqn(self) -> str:
        """Full etcd key of the shard's spec."""
        return self._fqn

    @property
    def spec(self) -> ShardSpec:
        """The current spec; read-only."""
        return self._spec

    @property
    def journals(self) -> JournalClient:
        """A journal client, for use on the event loop."""
        return self._environment.journals

    @property
    def local_state(self) -> LocalState | None:
        """None: shards with a recovery log are refused (`check_supported`)."""
        return None

    def progress(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return (read_through, publish_at) of the current attempt's completed transactions, bytes by journal."""
        return self._attempt.progress.copies()

    # -- what the resolver uses

    @property
    def assignment(self) -> Assignment:
        """Our own assignment as last observed."""
        return self._assignment

    @property
    def primary(self) -> bool:
        """Whether our slot is 0."""
        return self._assignment.slot == 0

    @property
    def terminal(self) -> asyncio.Future[BaseException | None]:
        """Resolves, never raising, with the cause when the current attempt ends by any exit."""
        return self._attempt.terminal

    def start(self, group: TaskGroup) -> None:
        """Start to serve, in a task of `group`; that task never fails."""
        assert self._task is None, "a shard is started once"
        if not self._stopping:
            self._task = group.start_soon(self._run(), name=f"shard {self.id}")
            # Also if it is cancelled before its first step.
            self._task.add_done_callback(lambda _: self._end_attempt())

    def on_assignment_changed(self, spec: ShardSpec, assignment: Assignment) -> None:
        """Take over a newer spec, status or slot (a promotion). Called at each applied change of the key space."""
        before, self._spec = self._spec, spec
        self._assignment = assignment
        if self.primary:
            self._promoted.set()
        if spec != before:
            self._spec_changed.set()
            sources_changed = list(spec.sources) != list(before.sources)
            self._attempt.on_spec_changed(sources_changed=sources_changed)

    def acquire(self) -> ShardReference:
        """Take a reference on the current attempt, at once.

        Raises:
            ShardStoppedError: the attempt ended (and the next did not begin yet), or the shard was stopped.
        """
        return ShardReference(self._attempt)

    async def stop(self, *, grace_seconds: float | None = None) -> None:
        """Finish or abort the transaction, destroy the store, end the worker thread. Idempotent.

        Called again with a grace of 0, it ends the grace that an earlier call gave.

        Args:
            grace_seconds: How long the transaction may take to finish; None is as configured, 0 aborts it.
        """
        first, self._stopping = not self._stopping, True
        if self._task is None:
            self._end_attempt()
            return
        if grace_seconds is None:
            grace_seconds = self._environment.config.stop_grace_seconds
        if first:
            if self._attempt.request_stop() and grace_seconds > 0:
                await asyncio.wait((self._task,), timeout=grace_seconds)
            self._task.cancel()
        elif grace_seconds == 0:
            self._task.cancel()
        await asyncio.wait((self._task,))

    # -- life

    def _new_attempt(self) -> PrimaryAttempt:
        return PrimaryAttempt(self, lambda: self._assignment, self._environment)

    async def _run(self) -> None:
        await self._stand_by()
        while not self._stopping:
            cause = await self._attempt_once()
            if cause is None or self._stopping:
                return
            await self._back_off(cause)
            self._attempt = self._new_attempt()

    def _end_attempt(self) -> None:
        """Tell those who wait for an attempt that never ran."""
        if not self._attempt.ended:
            self._attempt.terminal.set_result(None)

    async def _stand_by(self) -> None:
        """Say STANDBY until we are promoted; a shard whose state is remote has nothing to prepare."""
        if self.primary:
            return
        async with TaskGroup() as group:
            standby = ReplicaStatus(code=ReplicaStatus.STANDBY)
            group.start_soon(self._status.publish(standby), name=f"standby {self.id}")
            await self._promoted.wait()
            group.stop()

    async def _attempt_once(self) -> BaseException | None:
        attempt = self._attempt
        self._spec_changed.clear()
        try:
            check_supported(self._spec)
        except UnsupportedSpecError as error:
            attempt.terminal.set_result(error)
            return error
        cause = await attempt.run(self._say_primary)
        if cause is not None:
            self._environment.metrics.record_failure(self.fqn)
            if self._was_healthy(attempt):
                self._backoff.reset()
        return cause

    def _was_healthy(self, attempt: PrimaryAttempt) -> bool:
        since = attempt.ready_at_monotonic_seconds
        now = self._environment.clock.monotonic_seconds()
        return since is not None and now - since >= self._environment.config.healthy_seconds

    async def _say_primary(self) -> None:
        await self._status.replace(ReplicaStatus(code=ReplicaStatus.PRIMARY))
        _log.info("shard.primary", shard=self.id, attempt=self._backoff.attempt + 1)

    async def _back_off(self, cause: BaseException) -> None:
        """Say FAILED and why; wait for the next attempt, or for another spec if only that can help."""
        delay = self._backoff.next_seconds()
        hopeless = isinstance(cause, UnsupportedSpecError)
        outlook = self._outlook(None if hopeless else delay)
        _log.warning("shard.failed", shard=self.id, error=str(cause), outlook=outlook)
        async with TaskGroup() as group:
            if not isinstance(cause, AssignmentLostError):
                status = failed_status((_text(cause), outlook))
                group.start_soon(self._status.replace(status), name=f"failed {self.id}")
            try:
                async with asyncio.timeout(None if hopeless else delay):
                    await self._spec_changed.wait()
            except TimeoutError:
                pass  # The delay is over.
            group.stop()

    def _outlook(self, delay_seconds: float | None) -> str:
        attempt = f"attempt {self._backoff.attempt} failed"
        if delay_seconds is None:
            return f"{attempt}; not retried before the spec changes"
        at = self._environment.clock.wall_seconds() + delay_seconds
        return f"{attempt}; next at {datetime.fromtimestamp(at, UTC).isoformat(timespec='seconds')}"


def _text(cause: BaseException) -> str:
    notes = "".join(f"; {note}" for note in getattr(cause, "__notes__", ()))
    return f"{str(cause) or type(cause).__name__}{notes}"
