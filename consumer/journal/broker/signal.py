"""Waking whoever waits for the next change, without a lost wake-up."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes every present waiter at each notification.

    On one event loop nothing can happen between a waiter's look at the state and its `wait`, so none is missed as
    long as it does not await in between. An idle signal costs nothing.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Return at the next notification."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def notify(self) -> None:
        """Wake all who wait now."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
