"""Futures of operations under way: resolved once, awaited from the loop or from a shard's worker thread.

An `OpFuture` is a `concurrent.futures.Future`, because a commit is started on a worker thread and awaited on the
event loop: `future.result()` blocks the former, `asyncio.wrap_future(future)` awaits on the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

ResultT = TypeVar("ResultT")

OpFuture: TypeAlias = "Future[None]"
"""An operation under way: `result()` blocks a worker thread, `asyncio.wrap_future()` is awaited on the event loop."""


@dataclass(frozen=True, slots=True)
class AppendToken:
    """An append that was sent to a broker; later appends can be ordered after it."""

    endpoint: str
    name: bytes
    """Which that broker knows it by."""


class TurnFuture(Future[ResultT], Generic[ResultT]):
    """Result of an append that can be pipelined: it also says when the append has been sent.

    An operation that depends on the result can be sent without waiting for it, if the same broker appends it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn: AppendToken | None = None
        """The append; None before it is sent, and if it is not sent in turn."""
        self._when_sent: list[Callable[[AppendToken], None]] = []

    def sent(self, turn: AppendToken) -> None:
        """Report that the append has been sent."""
        self.turn = turn
        waiting, self._when_sent = self._when_sent, []
        for callback in waiting:
            callback(turn)

    def when_sent(self, callback: Callable[[AppendToken], None]) -> None:
        """Call back once the append was sent, on the sending thread; at once if it was already. At most twice."""
        self._when_sent.append(callback)
        if self.turn is not None:
            callback(self.turn)


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
