"""Threads for blocking jobs of an event loop.

A job costs half of what `loop.run_in_executor` takes, which makes two futures for it and copies one to the other: small
commits are as short as that.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Job(NamedTuple):
    """What a thread is to do, and whom to tell."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    function: Callable[[], Any]


class DiskThreads:
    """Runs jobs in the order in which they come, `count` at a time."""

    def __init__(self, count: int, *, name: str) -> None:
        """Start no thread yet."""
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have a thread run a function; if the future is cancelled before it begins, it never does.

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
            # It holds on to content, and the next one may be long in coming.
            del job

    def close(self) -> None:
        """Wait for all jobs, and end the threads. Idempotent."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads:
            thread.join()


def _run(job: _Job) -> None:
    if job.future.cancelled():
        return
    result, error = None, None
    try:
        result = job.function()
    except BaseException as raised:
        error = raised
    # A loop that is closed has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        job.loop.call_soon_threadsafe(_settle, job.future, result, error)


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
