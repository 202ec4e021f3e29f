"""The application that is split and merged: totals by key, with bytes and work as are asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.keyed.app import OUTPUT, OUTPUT_ROWS, ROWS, Measured, Totals
from broadsheet.consumer.keyed import JournalOutput, KeyRows, StateHandle, TxnTime
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal

BYTES_OF_ROW: Final = "BENCH_ELASTIC_ROW_BYTES"
"""Environment variable of the members: bytes that each key has beside its total."""
WORK_OF_ROW: Final = "BENCH_ELASTIC_ROW_WORK"
"""Environment variable of the members: microseconds of CPU that a row takes beside its state."""


class Padded(Totals):
    """Totals whose state is large without many keys, or whose rows are work.

    What was loaded has bytes that a codec makes half as many.
    """

    def init(self, state: StateHandle) -> None:
        """Declare a total and the bytes."""
        super().init(state)
        self.pad = state.value("pad", "content binary")
        self.pad_bytes = int(os.environ.get(BYTES_OF_ROW, "0"))
        self.work_ns = int(os.environ.get(WORK_OF_ROW, "0")) * 1_000

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Add each row, and give a key its bytes once."""
        if self.pad_bytes and self.total.get() is None:
            # As rows, which repeat themselves: their files are about half as long.
            self.pad.update((os.urandom(self.pad_bytes // 2) * 2,))
        if self.work_ns:
            _work(self.work_ns * len(rows))
        yield from super().handle_rows(key, rows, time)


def _work(nanoseconds: int) -> None:
    """Be busy, as a callback that computes something in Python is; time that others run does not count."""
    end = time.thread_time_ns() + nanoseconds
    while time.thread_time_ns() < end:
        pass


def create() -> Measured:
    """Make the application, in a member."""
    return Measured(
        Padded,
        key="key long",
        rows=ROWS,
        output=JournalOutput(MappedJournal(OUTPUT, NDJSON), JsonType(), OUTPUT_ROWS),
        time="processing",
    )
