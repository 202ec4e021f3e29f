"""docs/tutorials/streaming_query.md, block by block, in one session as its reader has it: `make nightly-import`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark_tutorials import check_tutorial

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]


def test_tutorial_streaming_query_shows_what_it_says(tmp_path: Path) -> None:
    """A query on Spark, its state taken over, a kill, look-ups, timers: each block prints what the tutorial prints."""
    check_tutorial("streaming_query", tmp_path)
