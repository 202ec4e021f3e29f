"""An event loop on a thread of its own, for programs that have none: drivers, notebooks, command lines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

JOIN_SECONDS = 10.0
"""Longest wait for the thread to end."""


class LoopThread:
    """Runs coroutines on its loop and hands their results to the calling thread."""

    def __init__(self, *, name: str) -> None:
        """Start the thread.

        Args:
            name: Of the thread, for debuggers.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result, or raise its error.

        An interrupt of the caller (Ctrl-C, a notebook's stop button) cancels the coroutine.

        Requires:
            Not called on the loop itself; `close` was not called.
        """
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and its thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
