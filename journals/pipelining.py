"""Pipelined appends: sent before their predecessors are acknowledged; the broker preserves the order.

    sequential   append A ─► answer ─► append B ─► answer       two round trips
    pipelined    append A ─┐
                 append B ─┴► A done, then B ─► answers          one

Only appends to the same broker can be pipelined. The broker refuses an append whose predecessors did not succeed,
having written nothing; the client then sends it again once they are answered, without naming them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

ResultT = TypeVar("ResultT")

_PREFIX_BYTES = 12
_COUNT_BYTES = 8
AFTER_MAX = 16
"""Most predecessors of a pipelined append; one that depends on more waits for their answers."""


@dataclass(frozen=True, slots=True)
class AppendToken:
    """An append that was sent to a broker; later appends can be ordered after it."""

    endpoint: str
    name: bytes
    """Which that broker knows it by."""


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Place of an append in the pipelined order."""

    name: bytes
    """The append's name; never used again."""
    after: tuple[AppendToken, ...] = ()
    """Predecessors that must have succeeded; a broker other than theirs refuses the append."""
    on_sent: Callable[[AppendToken], None] = lambda _: None
    """Called when the append was sent pipelined; not called if it is sent without."""


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


class TokenSource:
    """Generator of unique names."""

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        """Draw a random prefix, shared by all names."""
        self._prefix = random_bytes(_PREFIX_BYTES)
        self._counts = itertools.count()

    def next(self) -> bytes:
        """Return a new name, 20 bytes."""
        return self._prefix + next(self._counts).to_bytes(_COUNT_BYTES)
