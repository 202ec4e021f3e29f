"""Purchases: where they are published, and the features that they make, computed at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broadsheet.examples.features.app import LAST
from broadsheet.journals import JsonType, KeyColumn, MappedJournal, Publisher

PURCHASES: Final = "features/purchases"
JOURNALS: Final = tuple(f"{PURCHASES}/part-{index:03d}" for index in range(2))
CATEGORIES: Final = ("books", "food", "games", "shoes")
BEGIN: Final = datetime(2030, 1, 1, tzinfo=UTC)
_JSON: Final = JsonType()
_BY_USER: Final = KeyColumn(
    "user", lambda: [MappedJournal(journal, _JSON.content_type) for journal in JOURNALS]
)


def purchases(users: int, extra: int, *, seed: int = 0) -> pa.Table:
    """Return purchases in the order of their times: one of each user, and more of random ones."""
    chance = np.random.default_rng(seed)
    who = np.concatenate([np.arange(users), chance.integers(0, users, extra)])
    chance.shuffle(who)
    at = [BEGIN + timedelta(milliseconds=10 * number) for number in range(len(who))]
    return pa.table(
        {
            "user": [f"user-{number}" for number in who.tolist()],
            "category": [CATEGORIES[each] for each in chance.integers(0, 4, len(who)).tolist()],
            "cents": chance.integers(1, 100_000, len(who)),
            "at": pa.array(at, pa.timestamp("us", "UTC")),
        }
    )


def publish(publisher: Publisher, some: pa.Table) -> None:
    """Have a publisher publish purchases, each user's into one journal; its acknowledgements commit them."""
    publisher.publish_batch(_BY_USER, some, _JSON)


def features_of(some: pa.Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the features of each user of some purchases: what shards find out purchase by purchase."""
    by_user: dict[str, list[dict[str, Any]]] = {}
    for row in some.to_pylist():
        by_user.setdefault(row["user"], []).append(row)
    for user, rows in by_user.items():
        cents = [row["cents"] for row in rows]
        by_category: dict[str, int] = {}
        for row in rows:
            by_category[row["category"]] = by_category.get(row["category"], 0) + row["cents"]
        yield (
            user,
            {
                "purchases": len(rows),
                "spent": {
                    "cents": sum(cents),
                    "mean": sum(cents) / len(cents),
                    "greatest": max(cents),
                },
                "last_at": max(row["at"] for row in rows),
                "last_cents": cents[-LAST:],
                "by_category": sorted(by_category.items()),
            },
        )
