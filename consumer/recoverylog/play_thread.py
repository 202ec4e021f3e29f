"""The thread that a player decodes and writes on, beside the event loop, which reads ahead meanwhile.

Decoding and writing share a thread: a thread of its own for each would hand the interpreter over at every system call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ResultT = TypeVar("ResultT")


class PlayThread:
    """Of one playback; used by one task."""

    def __init__(self) -> None:
        """Start it with the first call."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="play")

    async def run(self, function: Callable[[], ResultT]) -> ResultT:
        """Return `function()`, run on the thread; if we are cancelled it runs all the same."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def end(self, last: Callable[[], None]) -> None:
        """Run `last` behind what is under way, and end the thread.

        Who cancels us waits for that, too, so that nobody finds files that are just being removed; not if cancelled
        again, but it is done all the same.
        """
        ending = asyncio.get_running_loop().run_in_executor(self._executor, last)
        self._executor.shutdown(wait=False)
        await asyncio.shield(ending)
