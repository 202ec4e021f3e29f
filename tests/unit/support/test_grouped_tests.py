"""Tests that share what is dear to start are in one group, so that a run in several processes starts it once."""

from __future__ import annotations

import re

import pytest

from tests.support.documents import REPOSITORY
from tests.support.grouped_tests import GROUPS, LongTestsFirst, group_of

FILES = sorted(
    path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("tests/**/test_*.py")
)


@pytest.mark.parametrize("begin", sorted(GROUPS))
def test_every_group_has_files(begin: str) -> None:
    """A file that is renamed must not fall out of its group in silence: it would only cost time, and be looked for."""
    assert any(file.startswith(begin) for file in FILES)


def test_who_asks_for_the_spark_session_is_in_its_group() -> None:
    """And who starts an application of its own is not: it would wait behind the longest group."""
    for file in FILES:
        if file.startswith("tests/spark/"):
            asks = re.search(r"\bspark: SparkSession\b", (REPOSITORY / file).read_text())
            wanted = "the one Spark session" if asks else "Spark applications of their own"
            assert group_of(f"{file}::test_it") == wanted, file


def test_other_tests_are_alone() -> None:
    """They go to whichever process is free."""
    assert group_of("tests/unit/a.py::test_it[1]") == "tests/unit/a.py::test_it[1]"


class _Named(pytest.Item):
    """A test that is never run."""

    def runtest(self) -> None:
        """Do nothing."""


def test_long_tests_begin_before_short_ones_in_the_order_of_the_shuffle(
    request: pytest.FixtureRequest,
) -> None:
    """A run ends with short tests, so that no process waits half a minute for another's last one."""
    names = ["tests/unit/b.py::b", "tests/e2e/z.py::z", "tests/unit/a.py::a", "tests/e2e/y.py::y"]
    items: list[pytest.Item] = [
        _Named.from_parent(request.session, name=name, nodeid=name) for name in names
    ]

    LongTestsFirst().pytest_collection_modifyitems(items)

    assert [item.name for item in items] == [names[1], names[3], names[0], names[2]]
