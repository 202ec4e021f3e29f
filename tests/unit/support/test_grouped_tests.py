"""Tests that share what is dear to start are in one group, so that a run in several processes starts it once."""

from __future__ import annotations

import re

import pytest

from tests.support.documents import REPOSITORY
from tests.support.grouped_tests import GROUPS, group_of

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
