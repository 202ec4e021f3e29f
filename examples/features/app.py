"""The application: features of each user, kept current by each purchase; nothing else stores them.

features/purchases/part-000…001 ─► features-000…001: state by user
├─► KeyedService: the features of one user, or of some, while it runs
└─► the table `state`: all users, to train on
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from broadsheet.consumer.keyed import (
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    TxnTime,
)

KEY = "user string"
ROWS = "user string, category string, cents long, at timestamp"
LAST = 5
"""Amounts that are kept in their order."""


class Features(KeyedProcessor):
    """Keeps what a model wants to know of a user."""

    def init(self, state: StateHandle) -> None:
        """Declare the features: each variable is a column of the table."""
        self.purchases = state.value("purchases", int)
        self.spent = state.value("spent", "cents long, mean double, greatest long")
        self.last_at = state.value("last_at", datetime)
        self.last_cents = state.list("last_cents", int)
        self.by_category = state.map("by_category", str, int)

    def handle_rows(
        self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime
    ) -> Iterable[Any] | None:
        """Count the purchases of a user."""
        del key, time
        count = self.purchases.get() or 0
        cents, _, greatest = self.spent.get() or (0, 0.0, 0)
        last, last_at = list(self.last_cents.get()), self.last_at.get()
        for row in rows:
            count += 1
            cents += row.cents
            greatest = max(greatest, row.cents)
            last.append(row.cents)
            last_at = row.at if last_at is None else max(last_at, row.at)
            before = self.by_category.get(row.category) or 0
            self.by_category.put(row.category, before + row.cents)
        self.purchases.update(count)
        self.spent.update((cents, cents / count, greatest))
        self.last_cents.put(last[-LAST:])
        self.last_at.update(last_at)
        return None


def create() -> KeyedApplication:
    """Make the application."""
    return KeyedApplication(Features, key=KEY, rows=ROWS)
