"""File operations of the broker, and the threads they run in.

They are in one place so that tests can inject failing disks. The event loop touches no file, except that small commits
may be made on it (`journal.InlineCommits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

from broadsheet.runtime.file_sync import sync_content

P = ParamSpec("P")


class _Job(NamedTuple):
    """A function for a thread to run, and the future that gets its result."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    function: Callable[[], Any]


class DiskThreads:
    """A pool of `count` threads for blocking jobs of an event loop; runs jobs first in, first out.

    A job costs half as much as with `loop.run_in_executor`, which creates two futures and copies one to the other. The
    difference matters because small commits are as short as that.
    """

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in a thread; if the future is done before it begins, it never runs.

        Raises:
            RuntimeError: closed.
        """
        if self._closed:
            raise RuntimeError(f"{self._name}: closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(loop, future, function))
        if len(self._threads) < self._count:
            self._start_thread()
        return future

    def _start_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _run(job)
            # The job holds references to content, and the next job may come much later.
            del job

    def close(self, *, waits: bool = True) -> None:
        """End the threads, and wait for all jobs unless told not to. Idempotent."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads if waits else ():
            thread.join()


def _run(job: _Job) -> None:
    # Cancelled, or failed by a stop that did not wait for it.
    if job.future.done():
        return
    result, error = None, None
    try:
        result = job.function()
    except BaseException as raised:
        error = raised
    # If the loop is closed, no task is left that waits for the result.
    with contextlib.suppress(RuntimeError):
        job.loop.call_soon_threadsafe(_settle, job.future, result, error)


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
THREADS_MAX = 16
"""More threads than this would only queue at the disk."""
HASHERS = 2
"""Threads that compute hashes beside a running commit."""
VECTORS_MAX = 512
"""Most buffers of one call; Linux takes 1,024."""


class Disk:
    """Blocking file operations, and a bounded pool to run them in."""

    def __init__(self, *, writes_durably: bool = hasattr(os, "RWF_DSYNC")) -> None:
        """Create the pool; threads start with the first jobs.

        Args:
            writes_durably: Whether to write and sync in one call, if the file system can.
        """
        self._writes_durably = writes_durably
        threads = min(THREADS_MAX, 2 * (os.cpu_count() or 1))
        self._threads = DiskThreads(threads, name="broker-disk")
        # A separate pool, because jobs of the first one wait for these.
        self._hashers = ThreadPoolExecutor(HASHERS, thread_name_prefix="broker-hash")

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Start a blocking function in the pool; its future is awaited later, or never."""
        future = self._threads.submit(function)
        future.add_done_callback(_note_retrieved)
        return future

    def start_hashing(self, function: Callable[[], T]) -> Future[T]:
        """Start a computation that a job of the pool will wait for; it must not use the pool itself."""
        return self._hashers.submit(function)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function in the pool and return what it returns."""
        return await self.submit(partial(function, *args, **kwargs))

    async def run_owned(self, function: Callable[[], T], give_back: Callable[[T], None]) -> T:
        """Run a blocking function that opens a resource.

        Args:
            function: Its thread finishes even if the caller gives up.
            give_back: Called on the loop in that case, with the opened resource.
        """
        opening = self.submit(function)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda opened: _give_back(opened, give_back))
            raise

    def close(self) -> None:
        """Wait for running operations and end the threads."""
        self._threads.close()
        self._hashers.shutdown(wait=True)

    def write_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers at a position and return the position after them, bytes.

        Raises:
            OSError: the disk refused, or took only a part.
        """
        return _write_all(fd, buffers, position)

    def write_durably(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers at a position, force them to the disk, and return the position after them, bytes.

        Earlier writes elsewhere in the file may stay unsynced. Source: pwritev(2), RWF_DSYNC.

        Raises:
            OSError: the disk refused, or took only a part.
        """
        if self._writes_durably:
            try:
                return _write_all(fd, buffers, position, os.RWF_DSYNC)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                self._writes_durably = False
        end = self.write_at(fd, buffers, position)
        self.sync_data(fd)
        return end

    def sync_data(self, fd: int) -> None:
        """Force a file's content to the disk."""
        sync_content(fd)

    def sync_file(self, path: Path) -> None:
        """Force the content of a closed file to the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync_data(fd)
        finally:
            os.close(fd)

    def sync_directory(self, directory: Path) -> None:
        """Force a directory's entries to the disk."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_file(self, path: Path, content: bytes) -> None:
        """Create or replace a small file atomically: a crash leaves the old content or the new."""
        temporary = path.with_name(f".{path.name}.new")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self.write_at(fd, [content], 0)
            os.fsync(fd)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        temporary.replace(path)
        self.sync_directory(path.parent)

    def free_bytes(self, directory: Path) -> int:
        """Return the space that an unprivileged writer may still use, bytes."""
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize


def _write_all(fd: int, buffers: Sequence[Buffer], position: int, flags: int = 0) -> int:
    pending = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while pending:
        group = pending[:VECTORS_MAX]
        written = os.pwritev(fd, group, position, flags)
        if written <= 0:
            raise OSError(f"a write at {position} wrote no bytes")
        position += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
    return position


def _note_retrieved(future: asyncio.Future[T]) -> None:
    """Mark a failure as retrieved, so that asyncio does not report one whose caller has gone."""
    if not future.cancelled():
        future.exception()


def _give_back(opened: asyncio.Future[T], give_back: Callable[[T], None]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        give_back(opened.result())


def is_out_of_space(error: OSError) -> bool:
    """Tell whether an operation failed because the disk, or a user's quota, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def close_quietly(fd: int) -> None:
    """Close a descriptor and ignore failures, because its content no longer matters."""
    with contextlib.suppress(OSError):
        os.close(fd)
