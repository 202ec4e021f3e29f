"""Futures of operations under way: resolved once, awaited from the loop or from a shard's worker thread.

An `OpFuture` is a `concurrent.futures.Future`, because a commit is started on a worker thread and awaited on the
event loop: `future.result()` blocks the former, `asyncio.wrap_future(future)` awaits on the latter.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeAlias

OpFuture: TypeAlias = "Future[None]"
"""An operation under way: `result()` blocks a worker thread, `asyncio.wrap_future()` is awaited on the event loop."""


def completed() -> OpFuture:
    """Return a future that has already succeeded."""
    future: OpFuture = Future()
    future.set_result(None)
    return future


def failed(error: BaseException) -> OpFuture:
    """Return a future that has already failed with `error`."""
    future: OpFuture = Future()
    future.set_exception(error)
    return future
