"""How the loops of a worker go on: they wait between rounds, survive what may succeed next time, and are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import structlog

from consumer.errors.leasing import LeasingError

JITTER_RATIO = 0.2
"""By which part of it the time between looks varies, so that workers do not look together."""

_log = structlog.get_logger()


class Pacing:
    """Shared by all loops of one worker."""

    def __init__(self, random: Random) -> None:
        """Go on until told to stop.

        Args:
            random: Varies the pauses.
        """
        self._random = random
        self._stopping = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether the worker was told to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Let the loops end. Idempotent."""
        self._stopping.set()

    async def until_stopped(self) -> None:
        """Wait for that."""
        await self._stopping.wait()

    async def pause(self, seconds: float) -> None:
        """Wait about so long, or until told to stop."""
        await self.wait(seconds * self._random.uniform(1 - JITTER_RATIO, 1 + JITTER_RATIO))

    async def wait(self, seconds: float) -> None:
        """Wait so long, or until told to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return


@asynccontextmanager
async def retryable(event: str, worker: str) -> AsyncIterator[None]:
    """Log what fails and may succeed the next time."""
    try:
        yield
    except LeasingError as error:
        if not error.retryable:
            raise
        _log.warning(event, worker=worker, cause=str(error))
