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
from types import TracebackType
from typing import Any, Self, TypeVar

from allocator.core.model import Assignment
from allocator.runtime.task_group import TaskGroup
from consumer.journal.client import JournalClient
from consumer.protocol import shard_pb2
from consumer.shard_environment import ShardEnvironment

ResultT = TypeVar("ResultT")


class ShardReference:
    """Holds one attempt of a shard: until `release`, its store is not destroyed.

    Take it *before* any wait, and release it on every path (`with shard.acquire() as reference:`).
    """

    async def wait_ready(self) -> None:
        """Wait until the store is restored and the shard serves.

        Raises:
            ShardStoppedError: the attempt ended; the message has its cause.
        """
        raise NotImplementedError

    async def wait_for_offsets(self, offsets: Mapping[str, int]) -> None:
        """Wait until completed transactions have read through `offsets`, bytes by journal.

        Raises:
            ShardStoppedError: the attempt ended; the message has its cause.
        """
        raise NotImplementedError

    async def call(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(store, *args)`, run on the worker thread between batches.

        Requires:
            `wait_ready` returned.

        Raises:
            ShardStoppedError: the attempt ended before the call could run.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Let go. Idempotent."""
        raise NotImplementedError

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
        self, spec: shard_pb2.ShardSpec, assignment: Assignment, environment: ShardEnvironment
    ) -> None:
        """Make a shard; nothing runs before `start`.

        Args:
            spec: Its current spec. Never changed, replaced by `on_assignment_changed`.
            assignment: Our own assignment as observed; slot 0 is the primary.
            environment: The services and limits of this process.
        """
        raise NotImplementedError

    # -- what the application sees: id, fqn, spec, journals, progress()

    @property
    def id(self) -> str: ...
    @property
    def fqn(self) -> str: ...
    @property
    def spec(self) -> shard_pb2.ShardSpec: ...
    @property
    def journals(self) -> JournalClient: ...
    def progress(self) -> tuple[Mapping[str, int], Mapping[str, int]]: ...

    # -- what the resolver uses

    @property
    def assignment(self) -> Assignment: ...
    @property
    def primary(self) -> bool:
        """Whether our slot is 0."""
    @property
    def store_ready(self) -> asyncio.Event:
        """Set while the current attempt serves."""
    @property
    def terminal(self) -> asyncio.Future[BaseException | None]:
        """Resolves (with its cause, never raising) when the current attempt ends by any exit."""

    def start(self, group: TaskGroup) -> None:
        """Start to serve, in a task of `group`; that task never fails."""
    def on_assignment_changed(self, spec: shard_pb2.ShardSpec, assignment: Assignment) -> None:
        """Take over a newer spec, status value or slot (a promotion). Called at each applied change of the key space."""
    async def stop(self, *, grace_seconds: float | None = None) -> None:
        """Finish or abort the transaction, destroy the store, end the worker thread. Idempotent.

        Args:
            grace_seconds: How long the transaction may take to finish; None is the configured, 0 aborts.
        """
    def acquire(self) -> ShardReference:
        """Take a reference on the current attempt, at once.

        Raises:
            ShardStoppedError: the attempt ended (and the next did not begin yet), or the shard was stopped.
        """
