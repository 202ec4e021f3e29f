"""Features of users: what is served by key, and what is trained on, are one state, and that of all purchases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from broadsheet.examples.features.app import create
from broadsheet.examples.features.purchases import JOURNALS, features_of, purchases
from broadsheet.examples.features.skew import FEATURES, skew
from broadsheet.journals import fnv1a_32
from broadsheet.testing import Step, TestCluster
from tests.support.documents import REPOSITORY

EXAMPLE = REPOSITORY / "examples/features"
SHARDS = ("features-000", "features-001")


def place_of(user: str) -> int:
    """Return the number of the journal, and of the shard, that has a user."""
    return fnv1a_32(user.encode()) % len(JOURNALS)


def rows_of(table: Any) -> dict[str, dict[str, Any]]:
    """Return rows by user."""
    return {row["user"]: {name: row[name] for name in FEATURES} for row in table.to_pylist()}


def test_online_and_training_values_agree_though_a_primary_dies() -> None:
    """Skew is a difference between what is served and what is trained on: there is none, and both are what a batch over
    all purchases says, with a primary killed between them.
    """
    some = purchases(60, 120, seed=3)
    rows = [{**row, "at": row["at"].isoformat()} for row in some.to_pylist()]
    served: dict[str, Any] = {}
    trained: dict[str, Any] = {}
    with TestCluster(
        create, shards=EXAMPLE / "shards.yaml", journals=EXAMPLE / "journals.yaml"
    ) as cluster:
        for begin in range(0, len(rows), 60):
            if begin == 60:
                cluster.kill_primary(SHARDS[0], after=Step.CONSUMED)
            for place, journal in enumerate(JOURNALS):
                part = [row for row in rows[begin : begin + 60] if place_of(row["user"]) == place]
                cluster.publish(journal, *part)
            cluster.read_through()
        for place, shard in enumerate(SHARDS):
            users = [(row["user"],) for row in rows if place_of(row["user"]) == place]
            asked = partial(_of_users, users)
            served |= rows_of(cluster.query(asked, shard=shard))
            trained |= rows_of(cluster.query(_whole_table, shard=shard))
    assert len(served) == 60
    assert skew(served, trained) == 0
    assert skew(trained, dict(features_of(some))) == 0


def _of_users(users: Sequence[tuple[str]], store: Any) -> Any:
    return store.queries.get("", users).table


def _whole_table(store: Any) -> Any:
    with store.scan("state") as scan:
        return scan.schema.empty_table().from_batches(list(scan.batches))
