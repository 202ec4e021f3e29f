"""docs/tutorials/flights.md, block by block, in one session as its reader has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark_tutorials import check_tutorial

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]


def test_tutorial_flights_shows_what_it_says(tmp_path: Path) -> None:
    """Members, a publication, questions, a kill and the proof: each block prints the lines that the tutorial prints."""
    check_tutorial("flights", tmp_path)
