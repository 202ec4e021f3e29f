"""The page from nothing to production, command by command: `make nightly-production`. Too long for CI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, blocks_of
from tests.support.served_page import follow_served_page

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PAGE = REPOSITORY / "docs" / "deploy" / "production.md"
PORT = re.compile(r"(?<![\w#])[234](?:379|380)\b|\b(?:808[0-6]|908[0-6])\b")


def test_production_page_runs_from_nothing_to_a_replaced_member(tmp_path: Path) -> None:
    """Three nodes of etcd, a broker with a store, members in three zones, roles, metrics, backup, an upgrade."""
    assert [block.kind for block in blocks_of(PAGE)].count("start") == 8
    follow_served_page(PAGE, tmp_path, ports=PORT)
