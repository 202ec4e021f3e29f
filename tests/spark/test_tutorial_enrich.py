"""docs/tutorials/enrich.md, block by block, in one session as its reader has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark_tutorials import check_tutorial

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]


def test_tutorial_enrich_shows_what_it_says(tmp_path: Path) -> None:
    """Members, payments, enriched orders, and the same through a kill: each block prints what the tutorial prints."""
    check_tutorial("enrich", tmp_path)
