"""Changes a player's files on a thread of its own, one step behind the decoder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from consumer.recoverylog.file_changes import FileChange
from consumer.recoverylog.played_files import PlayedFiles


class FileThread:
    """Of one playback; used by one task."""

    def __init__(self, files: PlayedFiles) -> None:
        """Take what is used on the thread only."""
        self._files = files
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="play")
        self._writing: asyncio.Future[Any] | None = None

    async def run(self, function: Callable[[], None]) -> None:
        """Run on the thread."""
        await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def write(self, changes: list[FileChange]) -> None:
        """Begin to perform changes, when those before are done."""
        await self.drain()
        if changes:
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(self._executor, self._files.apply, changes)

    async def drain(self) -> None:
        """Wait until all changes are made.

        Raises:
            OSError: one could not be made.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def end(self, last: Callable[[], None]) -> None:
        """Run `last` behind all that was begun, and end the thread.

        Who cancels us waits for that, too, so that nobody finds files that are just being removed; not if cancelled
        again, but it is done all the same.
        """
        if self._writing is not None:
            self._writing.add_done_callback(_heard)
        ending = asyncio.get_running_loop().run_in_executor(self._executor, last)
        self._executor.shutdown(wait=False)
        await asyncio.shield(ending)


def _heard(writing: asyncio.Future[Any]) -> None:
    """Take note of how a write ended that nobody waits for any more: something else failed before."""
    if not writing.cancelled():
        writing.exception()
