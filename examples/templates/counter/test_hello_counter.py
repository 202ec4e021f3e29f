"""The application in a cluster within this process: what it counts, and that no kill changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broadsheet.testing import Step, TestCluster, assert_exactly_once

from hello_counter.app import Counter

PROJECT = Path(__file__).parent
SPECS: dict[str, Any] = {
    "journals": PROJECT / "journals.yaml",
    "shards": PROJECT / "shards.yaml",
}
EVENTS = "hello_counter/events/part-000"
COUNTS = "hello_counter/counts"
MESSAGES = [{"key": "a"}, {"key": "b"}, {"key": "a"}]

pytestmark = pytest.mark.broadsheet(application=Counter, **SPECS)


def test_messages_are_counted_by_key(cluster: TestCluster) -> None:
    """Each message counts once, and each new count is published."""
    cluster.publish(EVENTS, *MESSAGES)
    cluster.read_through()

    assert cluster.state() == {"a": 2, "b": 1}
    assert cluster.published(COUNTS) == [
        {"key": "a", "count": 1},
        {"key": "b", "count": 1},
        {"key": "a", "count": 2},
    ]


def test_killed_primary_loses_nothing(cluster: TestCluster) -> None:
    """The process dies within a commit: another one continues, and counts no message twice."""
    cluster.kill_primary("hello_counter/part-000", after=Step.COMMIT_SENT)
    cluster.publish(EVENTS, *MESSAGES)
    cluster.read_through()

    assert cluster.state() == {"a": 2, "b": 1}


def test_every_kill_point_leads_to_the_same_counts() -> None:
    """The primary is killed after each step in turn: state and published counts must not differ."""
    assert_exactly_once(Counter, {EVENTS: MESSAGES}, **SPECS)
