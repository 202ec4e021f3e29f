"""docs/simulation.md, block by block: what it shows is what comes out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, blocks_of, missing_line

DOCUMENT = REPOSITORY / "docs" / "simulation.md"


@pytest.mark.timeout(900)
def test_simulation_document_shows_what_it_says() -> None:
    """Every command and program of the document runs from the repository, and prints the lines that it prints."""
    blocks = blocks_of(DOCUMENT)
    assert len(blocks) == 9
    # `python` is this one.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    for block in blocks:
        command = ["sh", "-c"] if block.language == "sh" else [sys.executable, "-c"]
        ran = subprocess.run(
            [*command, block.script],
            cwd=REPOSITORY,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert missing_line(block.shown, ran.stdout) is None, ran.stdout
