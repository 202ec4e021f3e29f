"""Results of operations under way: resolved once, awaited from the loop or from a shard's worker thread.

An `OpFuture` is a `concurrent.futures.Future`, because a commit is started on a worker thread and awaited on the
event loop: `future.result()` blocks the former, `asyncio.wrap_future(future)` awaits on the latter.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import TypeAlias

OpFuture: TypeAlias = "Future[None]"


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


def wait_all(futures: Iterable[Future[object]]) -> None:
    """Block the calling (worker) thread until every future is done; raise the first failure.

    Requires:
        Not called on the event loop.
    """
    for future in futures:
        future.result()
