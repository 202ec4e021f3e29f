"""A shard's worker without a thread: each call runs in a turn of the loop of its own, a little later."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import Any, TypeVar

from consumer.errors import ShardStoppedError

ResultT = TypeVar("ResultT")

CALL_SECONDS_MAX = 0.01


class InlineWorker:
    """Implements `consumer.shard.worker.ShardWorker` on the event loop."""

    def __init__(self, name: str, random: Random) -> None:
        """Begin with nothing to do.

        Args:
            name: The shard's id.
            random: Draws how long calls take.
        """
        self.cpu_seconds = 0.0
        self._name = name
        self._random = random
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def submit(self, function: Callable[..., ResultT], *args: Any) -> Future[ResultT]:
        """Have `function(*args)` run after the calls before it."""
        if self._closed:
            raise ShardStoppedError(self._name, detail="its worker has ended")
        future: Future[ResultT] = Future()
        self._calls.append((future, partial(function, *args)))
        if len(self._calls) == 1:
            self._idle.clear()
            self._run_soon()
        return future

    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(*args)`."""
        return await asyncio.wrap_future(self.submit(function, *args))

    def stack(self) -> str:
        """Calls take no time that could be looked into."""
        return ""

    def close(self) -> None:
        """Take no more calls."""
        self._closed = True

    async def join(self, *, timeout_seconds: float) -> bool:
        """Wait until nothing is left to run."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _run_soon(self) -> None:
        seconds = self._random.uniform(0.0, CALL_SECONDS_MAX)
        asyncio.get_running_loop().call_later(seconds, self._run_next)

    def _run_next(self) -> None:
        future, call = self._calls[0]
        if future.running() or future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except Exception as error:  # belongs to whoever asked
                future.set_exception(error)
        self._calls.popleft()
        if self._calls:
            self._run_soon()
        else:
            self._idle.set()
