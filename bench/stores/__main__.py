"""Transactions and rows a second of each store, recorded and not: `make bench BENCH=stores`.

Each figure runs in turn with its limit: the bare library doing the same writes, synced as often. The recorder here
takes what it is given and drops it, so that a figure says what recording costs the store itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench.report import alternate, emit_pair
from bench.stores.bare import BARE
from bench.stores.driven import DRIVEN, Side

BENCH = "stores"
ROUNDS = 5
SMALL_ROWS, SMALL_TXNS = 10, 300
LARGE_ROWS, LARGE_TXNS = 10_000, 10
"""What a shard commits when it is quiet, and when it catches up."""

NEVER_RECORDED = ("sql_sqlite",)


def main() -> None:
    """Measure every store."""
    for store in DRIVEN:
        for recorded in (False,) if store in NEVER_RECORDED else (False, True):
            with _directories() as directories:
                _measure(store, recorded, directories)


def _measure(store: str, recorded: bool, directories: Callable[[], Path]) -> None:
    ours, bare = DRIVEN[store], BARE[store]

    def rate(side: Callable[[Path, bool], Side], txns: int, rows: int, *, per: int) -> float:
        return txns * per / side(directories(), recorded)(txns, rows)

    for figure, txns, rows, per, unit in (
        ("txn_per_s", SMALL_TXNS, SMALL_ROWS, 1, "transactions/s"),
        ("rows_per_s", LARGE_TXNS, LARGE_ROWS, LARGE_ROWS, "rows/s"),
    ):
        medians = alternate(
            lambda txns=txns, rows=rows, per=per: rate(ours, txns, rows, per=per),  # type: ignore[misc]
            lambda txns=txns, rows=rows, per=per: rate(bare, txns, rows, per=per),  # type: ignore[misc]
            ROUNDS,
        )
        emit_pair(
            BENCH,
            figure,
            medians,
            unit,
            limit="the bare library, the same rows, synced as often",
            store=store,
            recorded=recorded,
            rows_per_txn=rows,
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
