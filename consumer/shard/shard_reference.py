"""References to a shard of this process: each holds one attempt, which is not torn down while it is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from broadsheet.consumer.application import Store
from broadsheet.consumer.shard.primary import PrimaryAttempt

ResultT = TypeVar("ResultT")


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
        """The store; use it through `call` unless its class says otherwise.

        Requires:
            `wait_ready` returned.
        """
        assert self._attempt.store is not None, "the store is not restored yet"
        return self._attempt.store

    @property
    def ended(self) -> asyncio.Future[BaseException | None]:
        """Future that resolves, never raising, when the attempt has ended: its store then waits for our `release`."""
        return self._attempt.terminal

    async def wait_ready(self) -> None:
        """Wait until the store is restored and the shard serves.

        Raises:
            ShardStoppedError: the attempt ended; the message has its cause.
        """
        attempt = self._attempt
        if not attempt.ready.done():
            await asyncio.wait(
                (attempt.ready, attempt.terminal), return_when=asyncio.FIRST_COMPLETED
            )
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
