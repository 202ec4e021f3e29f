"""Changes a player's files on a thread of its own, beside the decoder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from consumer.recoverylog.file_changes import FileChange, WriteFile
from consumer.recoverylog.played_files import PlayedFiles

ResultT = TypeVar("ResultT")

WAITING_BYTES_MAX: Final = 8 << 20
"""Played and not yet handed to the disk, bytes; a disk that is slower than the log holds the player up."""


class FileThread:
    """Of one playback; used by one task.

    One batch of changes is under way at a time. What comes meanwhile is the next batch: the busier the machine, the
    larger they are, and the less each byte costs.
    """

    def __init__(self, files: PlayedFiles) -> None:
        """Take what is used on the thread only."""
        self._files = files
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="play")
        self._waiting: list[FileChange] = []
        self._waiting_bytes = 0
        self._writing: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None

    async def run(self, function: Callable[[], ResultT]) -> ResultT:
        """Return `function()`, run on the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def write(self, changes: list[FileChange]) -> None:
        """Have changes performed behind those before, and wait if too much waits for that.

        Raises:
            OSError: one of those before could not be made.
        """
        self._waiting += changes
        self._waiting_bytes += sum(
            len(each.content) for each in changes if isinstance(each, WriteFile)
        )
        self._begin()
        while self._waiting_bytes > WAITING_BYTES_MAX:
            await self._wait()

    async def drain(self) -> None:
        """Wait until all changes are made.

        Raises:
            OSError: one could not be made.
        """
        while self._writing is not None:
            await self._wait()
        self._check()

    async def end(self, last: Callable[[], None]) -> None:
        """Run `last` behind what is under way, and end the thread; what waits is given up.

        Who cancels us waits for that, too, so that nobody finds files that are just being removed; not if cancelled
        again, but it is done all the same.
        """
        self._waiting.clear()
        ending = asyncio.get_running_loop().run_in_executor(self._executor, last)
        self._executor.shutdown(wait=False)
        await asyncio.shield(ending)

    def _begin(self) -> None:
        self._check()
        if self._writing is not None or not self._waiting:
            return
        changes, self._waiting, self._waiting_bytes = self._waiting, [], 0
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._executor, self._files.apply, changes)
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if not writing.cancelled():
            self._failure = self._failure or writing.exception()
        if self._failure is None:
            self._begin()

    async def _wait(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
