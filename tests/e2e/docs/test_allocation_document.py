"""docs/allocation.md: its worked example gives what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.documents import REPOSITORY, blocks_of, missing_line

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_worked_example_shows_what_the_document_says() -> None:
    """Somebody reads it to learn what the allocator does: it must be what the allocator does."""
    (block,) = blocks_of(REPOSITORY / "docs" / "allocation.md")

    done = subprocess.run(
        [sys.executable, "-c", block.code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    missing = missing_line(block.shown, done.stdout)
    assert missing is None, f"not shown: {missing}\n{done.stdout}"
