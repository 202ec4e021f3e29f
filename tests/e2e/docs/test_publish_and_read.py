"""docs/publish-and-read.md, block by block, beside a running project."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY
from tests.support.walks import Walk, environment_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_publish_and_read_shows_what_it_says(tmp_path: Path) -> None:
    """One message, a mapping, a transaction, the result, by commands and programs: each prints what the page prints."""
    with ExitStack() as resources:
        walk = Walk(tmp_path, environment_of(Path(sys.executable)), resources)
        walk.follow(REPOSITORY / "docs" / "publish-and-read.md")
