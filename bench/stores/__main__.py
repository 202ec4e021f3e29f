"""Transactions and rows a second of each store, recorded and not: `make bench BENCH=stores`.

Each figure runs in turn with its limit: the bare library doing the same writes, synced as often. The recorder here
takes what it is given and drops it, so that a figure says what recording costs the store itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.report import Params, alternate, emit_pair
from bench.stores.bare import BARE, BARE_BY_RUNS
from bench.stores.driven import DRIVEN, DRIVEN_BY_RUNS, Side

BENCH = "stores"
ROUNDS = 5
SMALL_ROWS, SMALL_TXNS = 10, 300
LARGE_ROWS, LARGE_TXNS = 10_000, 10
"""What a shard commits when it is quiet, and when it catches up."""

NEVER_RECORDED = ("sql_sqlite",)


def main() -> None:
    """Measure every store."""
    with _directories() as directories:
        for store in dict.fromkeys((*DRIVEN, *DRIVEN_BY_RUNS)):
            for recorded in (False,) if store in NEVER_RECORDED else (False, True):
                if store in DRIVEN:
                    _measure(
                        Sides(DRIVEN[store], BARE[store], recorded, directories), {"store": store}
                    )
                if store in DRIVEN_BY_RUNS:
                    sides = Sides(DRIVEN_BY_RUNS[store], BARE_BY_RUNS[store], recorded, directories)
                    _measure(sides, {"store": store, "api": "run"})


@dataclass(frozen=True, slots=True)
class Sides:
    """The runs, in turn."""

    ours: Callable[[Path, bool], Side]
    bare: Callable[[Path, bool], Side]
    recorded: bool
    new_directory: Callable[[], Path]

    def rate(self, side: Callable[[Path, bool], Side], txns: int, rows: int) -> float:
        """Return the transactions a second of one side."""
        return txns / side(self.new_directory(), self.recorded)(txns, rows)


def _measure(sides: Sides, params: Params) -> None:
    for figure, txns, rows, per, unit in (
        ("txn_per_s", SMALL_TXNS, SMALL_ROWS, 1, "transactions/s"),
        ("rows_per_s", LARGE_TXNS, LARGE_ROWS, LARGE_ROWS, "rows/s"),
    ):
        medians = alternate(
            lambda txns=txns, rows=rows: sides.rate(sides.ours, txns, rows),  # type: ignore[misc]
            lambda txns=txns, rows=rows: sides.rate(sides.bare, txns, rows),  # type: ignore[misc]
            ROUNDS,
        )
        emit_pair(
            BENCH,
            figure,
            [per * median for median in medians],
            unit,
            limit="the bare library, the same rows, synced as often",
            recorded=sides.recorded,
            rows_per_txn=rows,
            **params,
        )


@contextmanager
def _directories() -> Iterator[Callable[[], Path]]:
    """Yield a function that returns a new directory each time."""
    with tempfile.TemporaryDirectory() as name:
        numbers = count()

        def new_directory() -> Path:
            directory = Path(name) / str(next(numbers))
            directory.mkdir()
            return directory

        yield new_directory


if __name__ == "__main__":
    main()
