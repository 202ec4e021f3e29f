"""Pacing of a worker's loops: waits between rounds, retryable errors, and stopping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import structlog

from broadsheet.leases.errors import LeasingError

JITTER_RATIO = 0.2
"""Fraction by which the time between scans varies, so that workers do not scan in step."""

_log = structlog.get_logger()


class Pacing:
    """Pauses and the stop signal of one worker, shared by all its loops."""

    def __init__(self, random: Random) -> None:
        """Run until told to stop.

        Args:
            random: Varies the pauses.
        """
        self._random = random
        self._stopping = asyncio.Event()
        self._bells: list[asyncio.Event] = []

    @property
    def is_stopping(self) -> bool:
        """True once the worker was told to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Tell the loops to end. Idempotent."""
        self._stopping.set()
        for bell in self._bells:
            bell.set()

    def new_bell(self) -> asyncio.Event:
        """Return an event for `pause` and `wait`: set it to end the wait of a loop, clear it as a round begins.

        It is also set when the worker is told to stop.
        """
        bell = asyncio.Event()
        self._bells.append(bell)
        return bell

    async def until_stopped(self) -> None:
        """Wait until the worker is told to stop."""
        await self._stopping.wait()

    async def pause(self, seconds: float, *, bell: asyncio.Event | None = None) -> None:
        """Wait for about that time, or until told to stop, or until the bell is set."""
        varied = seconds * self._random.uniform(1 - JITTER_RATIO, 1 + JITTER_RATIO)
        await self.wait(varied, bell=bell)

    async def wait(self, seconds: float, *, bell: asyncio.Event | None = None) -> None:
        """Wait for that time, or until told to stop, or until the bell is set."""
        await wait_at_most(seconds, bell or self._stopping)


class EndedShards:
    """Wakes the shards that wait for a parent when a shard ends in this process."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """The event of the next end; get it before checking the parents, so that no end is missed."""
        return self._next

    def announce(self) -> None:
        """Announce that a shard's end is committed."""
        self._next.set()
        self._next = asyncio.Event()


async def wait_at_most(seconds: float, event: asyncio.Event) -> None:
    """Wait for an event, up to a time limit."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


@asynccontextmanager
async def retryable(event: str, worker: str) -> AsyncIterator[None]:
    """Log retryable errors of the block, and continue."""
    try:
        yield
    except LeasingError as error:
        if not error.retryable:
            raise
        _log.warning(event, worker=worker, cause=str(error))
