"""Results of operations under way: resolved once, awaited from the loop or from a shard's worker thread.

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
    """An append on its way to a broker, to which others can be sent that come after it."""

    endpoint: str
    name: bytes
    """Which that broker knows it by."""


class TurnFuture(Future[ResultT], Generic[ResultT]):
    """The result of what is durable once a certain append is, and no sooner; tells which one, once that is on its way.

    Whatever depends on such a result can be sent without waiting for it, if it is appended by the same broker.
    """

    def __init__(self) -> None:
        """Create one of an append that is not on its way yet."""
        super().__init__()
        self.turn: AppendToken | None = None
        """The append; None before it is sent, and if it is not sent in turn."""
        self._when_sent: list[Callable[[AppendToken], None]] = []

    def sent(self, turn: AppendToken) -> None:
        """Tell that the append is on its way."""
        self.turn = turn
        waiting, self._when_sent = self._when_sent, []
        for callback in waiting:
            callback(turn)

    def when_sent(self, callback: Callable[[AppendToken], None]) -> None:
        """Call back once the append is on its way, on the thread that tells; at once if it is. Twice at worst."""
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
