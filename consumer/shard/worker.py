"""The thread on which a shard's application and store run: calls in order, one at a time.

The event loop passes whole batches, so that the switch between threads costs little.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from broadsheet.consumer.errors import ShardStoppedError

ResultT = TypeVar("ResultT")


class ShardWorker(Protocol):
    """Runs the calls of one shard in order: `PythonWorkerCache`, or another executor."""

    cpu_seconds: float
    """CPU time that calls took."""

    def submit(self, function: Callable[..., ResultT], *args: Any) -> Future[ResultT]:
        """Run `function(*args)` after the earlier calls. Never blocks; for the event loop.

        Raises:
            ShardStoppedError: `close` was called.
        """
        ...

    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(*args)`; if the caller is cancelled, a call that has not begun is dropped."""
        ...

    def stack(self) -> str:
        """Return the present stack of the calls, innermost last; empty if nothing runs."""
        ...

    def close(self) -> None:
        """Accept no more calls; end after those already accepted. Idempotent."""
        ...

    async def join(self, *, timeout_seconds: float) -> bool:
        """Wait for the end; False if a call still runs by then."""
        ...


class ShardThread:
    """Runs calls first in, first out, on a separate thread."""

    def __init__(self, name: str) -> None:
        """Start the thread.

        Args:
            name: Shown in thread dumps; the shard's id.
        """
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._closed = False
        self.cpu_seconds = 0.0
        """CPU time of the thread, up to the last call that it finished. Written there, read anywhere."""
        # A daemon, so that a callback which never returns cannot keep the process from ending.
        # In a copy of our context, so that what the application logs is bound to the shard as well.
        run = partial(copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name=f"shard {name}", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., ResultT], *args: Any) -> Future[ResultT]:
        """Run `function(*args)` after the earlier calls. Never blocks; for the event loop.

        Raises:
            ShardStoppedError: `close` was called.
        """
        if self._closed:
            raise ShardStoppedError(self._name, detail="its worker thread has ended")
        call = _Call(function, args)
        self._calls.put(call)
        return call.future

    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(*args)`; if the caller is cancelled, a call that has not begun is dropped."""
        return await asyncio.wrap_future(self.submit(function, *args))

    def stack(self) -> str:
        """Return the thread's present stack, innermost call last; empty if it has ended."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - documented, for debugging
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def close(self) -> None:
        """Let the thread end after the accepted calls. Idempotent."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)

    async def join(self, *, timeout_seconds: float) -> bool:
        """Wait for the thread to end; False if a call still runs by then.

        Requires:
            `close` was called.
        """
        await asyncio.to_thread(self._thread.join, timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            self.cpu_seconds = time.thread_time()


class _Call:
    """One call, and the future of its result."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.future: Future[Any] = Future()
        self._function = function
        self._args = args

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._function(*self._args)
        except BaseException as error:  # belongs to the caller
            self.future.set_exception(_portable(error))
        else:
            self.future.set_result(result)


def _portable(error: BaseException) -> Exception:
    """Return an error that can be awaited: others would end the awaiting task or the loop, or never arrive."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"a call on the worker thread raised {error!r}")
    wrapped.__cause__ = error
    return wrapped
