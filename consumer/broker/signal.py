"""Wake-up of all tasks that wait for the next change, without lost wake-ups."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes every present waiter at each notification, in the order in which they came.

    On one event loop nothing can happen between a waiter's check of the state and its `wait`, so it misses no
    notification as long as it does not await in between. An idle signal costs nothing.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}
        """An ordered set, so that waiters wake in the same order each time, regardless of how futures' addresses
        hash.
        """

    async def wait(self) -> None:
        """Return at the next notification."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def notify(self) -> None:
        """Wake all present waiters."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
