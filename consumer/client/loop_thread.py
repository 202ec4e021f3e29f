"""An event loop on a separate thread, for programs without one: drivers, notebooks, command lines."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from broadsheet.runtime.event_loop import new_event_loop

T = TypeVar("T")

JOIN_SECONDS = 10.0
"""Longest wait for the thread to end."""

_CLOSED = "the client is closed"


class LoopThread:
    """Runs coroutines on its loop and hands their results to the calling thread. Safe to call from several threads."""

    def __init__(self, *, name: str) -> None:
        """Start the thread.

        Args:
            name: Of the thread, for debuggers.
        """
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self._loop = self._runner.get_loop()
        self._closing = False
        self._submitting = threading.Lock()
        """Held while a call is handed over, so that each comes before the loop's end or is refused."""
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_a_forks_copy(self) -> bool:
        """Report whether a fork copied this object: a fork copies no threads, so calls would never return."""
        return os.getpid() != self._process_id

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result, or raise its error.

        An interrupt of the caller (Ctrl-C, a notebook's stop button) cancels the coroutine.

        Raises:
            RuntimeError: the thread is closed, or was closed meanwhile; or the call could never end: it comes from a
                forked process, or from the loop itself.
        """
        future = self.start(coroutine)
        try:
            return future.result()
        except CancelledError as error:
            if self._closing:
                raise RuntimeError(_CLOSED) from error
            raise
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the background, and return its future; closing cancels it, and waits for its end.

        Raises:
            RuntimeError: as `call` does, before anything runs.
        """
        try:
            return self._submit(coroutine)
        except RuntimeError:
            coroutine.close()
            raise

    def close(self) -> None:
        """Cancel running coroutines, and end the loop and its thread. Idempotent; does nothing in a forked process."""
        if self.is_a_forks_copy:
            return
        with self._submitting:
            first, self._closing = not self._closing, True
        if first:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_SECONDS)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if self.is_a_forks_copy:
            raise RuntimeError(
                f"the client was opened in process {self._process_id}, and this is a fork of it: open one here"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on its own loop would wait for itself: await it")
        with self._submitting:
            if self._closing:
                raise RuntimeError(_CLOSED)
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        # Closing the runner cancels what is left and waits for it, so that every call ends.
        with self._runner:
            self._loop.run_forever()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
