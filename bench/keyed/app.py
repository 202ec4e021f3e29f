"""The application that is measured: a total by key that expires, timers, and an answer to each probe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from broadsheet.consumer.keyed import (
    JournalOutput,
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    TxnTime,
)
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal

ROWS = "key long, n long, probe long, due long"
OUTPUT_ROWS = "probe long, key long, total long, pid long"
OUTPUT = "keyed/out"
TTL_MS = 24 * 3600 * 1000
STORM_END = -1
"""The key whose timer is the last of a storm."""


class Totals(KeyedProcessor):
    """One read and one write of state for each row, as Spark's benchmark of its operator has."""

    def init(self, state: StateHandle) -> None:
        """Declare a total."""
        self.total = state.value("total", "n long, rows long", ttl_ms=TTL_MS)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Add each row, and answer those that are probes."""
        del time
        for row in rows:
            n, count = self.total.get() or (0, 0)
            self.total.update((n + (row.n or 0), count + 1))
            if row.due is not None:
                self.timers.register(row.due)
            if row.probe is not None:
                yield row.probe, *key, n, os.getpid()

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Count, and tell of the last."""
        del time
        n, count = self.total.get() or (0, 0)
        self.total.update((n, count + 1))
        if key[0] == STORM_END:
            yield expiry_ms, *key, n, os.getpid()


class Measured(KeyedApplication):
    """With the end that a member gives its application."""

    def close(self) -> None:
        """Nothing is open."""


def create() -> Measured:
    """Make the application, in a member."""
    return Measured(
        Totals,
        key="key long",
        rows=ROWS,
        output=JournalOutput(MappedJournal(OUTPUT, NDJSON), JsonType(), OUTPUT_ROWS),
        time="processing",
    )
