"""docs/tutorials/flights.md, block by block, in one session as its reader has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, blocks_of, missing_line

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(300)]

TUTORIAL = REPOSITORY / "docs" / "tutorials" / "flights.md"
MARK = "==== block"


def test_tutorial_flights_shows_what_it_says(tmp_path: Path) -> None:
    """Members, a publication, questions, a kill and the proof: each block prints the lines that the tutorial prints."""
    blocks = [block for block in blocks_of(TUTORIAL) if block.language == "python"]
    program = tmp_path / "session.py"
    program.write_text("".join(f"print('{MARK}', flush=True)\n{block.code}\n" for block in blocks))
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    ran = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=os.environ | {"PATH": search_path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-4000:]
    outputs = ran.stdout.replace("\r", "\n").split(MARK)[1:]
    for block, output in zip(blocks, outputs, strict=True):
        missing = missing_line(block.shown, output)
        assert missing is None, f"{block.code}\nlacks {missing!r}:\n{output}"
