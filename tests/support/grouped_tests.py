"""Which tests of a run in several processes stay in one process, because they share what is dear to start.

By their files, with a scheduler of our own: xdist's marks change a test's id, which pytest 9.2 does not let them, so
that they are passed over in silence, and each process starts a Spark of its own.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

GROUPS = {
    "tests/spark/": "the one Spark session",
    "tests/spark/test_elastic_session.py": "Spark applications of their own",
    "tests/spark/test_notebook.py": "Spark applications of their own",
    "tests/spark/test_spark_connect.py": "Spark applications of their own",
    "tests/spark/test_tutorial_": "Spark applications of their own",
    "tests/integration/consumer/test_live_page.py": "the one Chromium",
    "tests/sinks/": "the one Kafka",
    "tests/e2e/cli/test_shardctl_": "the cluster of the counter example",
}
"""By the beginning of the test's id; the longest counts."""

LONG_ALONE = "tests/e2e/"
"""Tests in no group that take tens of seconds: they come before those that take less."""


class GroupedTests(LoadScopeScheduling):  # type: ignore[misc]  # as above
    """Gives the tests of a group to one process, and each other test to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(node_id: str) -> str:
    """Return the name of a test's group: its own id, if it is in none."""
    begins = [begin for begin in GROUPS if node_id.startswith(begin)]
    return GROUPS[max(begins, key=len)] if begins else node_id


class LongTestsFirst:
    """A plugin of each process that runs tests: none of them begins a long test when the others have nothing left.

    The scheduler takes groups by the number of their tests, largest first, and those of one test in this order.
    """

    @pytest.hookimpl(trylast=True)  # after the shuffle, which is the same in each process
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Move them to the front, in the order that they have."""
        items.sort(key=lambda item: not item.nodeid.startswith(LONG_ALONE))
