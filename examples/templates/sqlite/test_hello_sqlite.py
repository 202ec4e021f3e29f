"""The application in a cluster within this process: its query, and that no kill changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broadsheet.testing import TestCluster, assert_exactly_once

from hello_sqlite.app import Visit, Visits

PROJECT = Path(__file__).parent
SPECS: dict[str, Any] = {
    "journals": PROJECT / "journals.yaml",
    "shards": PROJECT / "shards.yaml",
}
SHARD, JOURNAL = "hello_sqlite/part-000", "hello_sqlite/visits/part-000"
MESSAGES = [
    Visit(page="/", milliseconds=10),
    Visit(page="/news", milliseconds=4),
    Visit(page="/", milliseconds=30),
]

pytestmark = pytest.mark.broadsheet(application=Visits, **SPECS)


def test_visits_are_added_up_by_page(cluster: TestCluster) -> None:
    """The query shows what was committed, most visits first."""
    cluster.publish(JOURNAL, *MESSAGES)
    cluster.read_through()

    assert cluster.query(lambda store: store.top(10), shard=SHARD) == [
        {"page": "/", "visits": 2, "milliseconds": 40},
        {"page": "/news", "visits": 1, "milliseconds": 4},
    ]


def test_every_kill_point_leads_to_the_same_table() -> None:
    """The primary is killed after each step in turn: no visit may be lost, or count twice."""
    assert_exactly_once(Visits, {JOURNAL: MESSAGES}, **SPECS)
