"""The tutorial of a cluster with TLS and roles, command by command, from nothing to a member that dies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, blocks_of
from tests.support.served_page import follow_served_page

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TUTORIAL = REPOSITORY / "docs" / "tutorials" / "secure_cluster.md"
PORT = re.compile(r"\b(2379|2380|8080|8081|8082|9080|9081|9082)\b")


def test_secure_cluster_tutorial_shows_what_it_says(tmp_path: Path) -> None:
    """Every command of the tutorial runs, in order, and prints the lines that the tutorial prints."""
    blocks = blocks_of(TUTORIAL)
    assert [block.kind for block in blocks].count("start") == 4
    assert len(blocks) >= 12
    follow_served_page(TUTORIAL, tmp_path, ports=PORT)
