"""docs/stores.md: the store that it shows passes the suite that it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, blocks_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_store_of_the_document_passes_the_suite(tmp_path: Path) -> None:
    """Somebody copies it: it must work as it stands."""
    (block,) = blocks_of(REPOSITORY / "docs" / "stores.md")
    test = tmp_path / "test_count_store.py"
    test.write_text(block.code)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
