"""The libuv event loop, for servers and for clients that are called from other threads; and wake-ups of its tasks.

Source: uvloop, https://uvloop.readthedocs.io.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop; its owner closes it."""
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program's main coroutine to completion, as `asyncio.run` does, and return its result."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


class Signal:
    """Wakes every task that waits for the next change, in the order in which they came; no wake-up is lost.

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
