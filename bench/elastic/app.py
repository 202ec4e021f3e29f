"""The application that is split and merged: totals by key, each with as many bytes as are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from bench.keyed.app import OUTPUT, OUTPUT_ROWS, ROWS, Measured, Totals
from broadsheet.consumer.keyed import JournalOutput, KeyRows, StateHandle, TxnTime
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal

BYTES_OF_ROW: Final = "BENCH_ELASTIC_ROW_BYTES"
"""Environment variable of the members: bytes that each key has beside its total."""


class Padded(Totals):
    """Totals whose state is large without many keys: what was loaded has bytes that no codec makes fewer."""

    def init(self, state: StateHandle) -> None:
        """Declare a total and the bytes."""
        super().init(state)
        self.pad = state.value("pad", "content binary")
        self.pad_bytes = int(os.environ.get(BYTES_OF_ROW, "0"))

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Add each row, and give a key its bytes once."""
        if self.pad_bytes and self.total.get() is None:
            self.pad.update((os.urandom(self.pad_bytes),))
        yield from super().handle_rows(key, rows, time)


def create() -> Measured:
    """Make the application, in a member."""
    return Measured(
        Padded,
        key="key long",
        rows=ROWS,
        output=JournalOutput(MappedJournal(OUTPUT, NDJSON), JsonType(), OUTPUT_ROWS),
        time="processing",
    )
