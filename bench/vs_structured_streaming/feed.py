"""Rows at a steady pace, to whatever takes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from bench.vs_structured_streaming.results import Pace, SentRow
from bench.vs_structured_streaming.rows import Row

Send: TypeAlias = "Callable[[Row], None]"
"""Takes a row at once, or soon: it does not wait for a result."""


class Trickle:
    """Sends rows 0, 1, 2 … at one pace after another, from a thread of its own."""

    def __init__(
        self, send: Send, paces: Sequence[Pace], after_first: Callable[[], object] = lambda: None
    ) -> None:
        """Describe the rows; `start` begins with them.

        Args:
            send: Takes each row.
            paces: One after the other.
            after_first: Called once row 0 is sent; the other rows are due from its return on.
        """
        self._send = send
        self._after_first = after_first
        self._paces = paces
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self.sent: list[SentRow] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> int:
        """Wait until every row is sent; return how many."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return len(self.sent)

    def stop(self) -> int:
        """Send no more; return how many rows were sent."""
        self._stop.set()
        return self.join()

    def _run(self) -> None:
        due = time.monotonic()
        try:
            for pace in self._paces:
                for _ in range(pace.rows):
                    if self._stop.wait(max(0.0, due - time.monotonic())):
                        return
                    row = Row(len(self.sent))
                    self._send(row)
                    self.sent.append(SentRow(row, due))
                    if row.number == 0:
                        self._after_first()
                        due = time.monotonic()
                    due += 1.0 / pace.rows_per_second
        except BaseException as error:
            self._failure = error
