"""Tutorials that are one Python session on Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.documents import REPOSITORY, blocks_of, missing_line

_MARK = "==== block"
_SECONDS_MAX = 580


def check_tutorial(name: str, directory: Path) -> None:
    """Run the Python blocks of `docs/tutorials/{name}.md` in one process; each must show what the tutorial shows."""
    tutorial = REPOSITORY / "docs" / "tutorials" / f"{name}.md"
    blocks = [block for block in blocks_of(tutorial) if block.language == "python"]
    program = directory / "session.py"
    program.write_text("".join(f"print('{_MARK}', flush=True)\n{one.code}\n" for one in blocks))
    (directory / "examples").symlink_to(REPOSITORY / "examples")
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        [sys.executable, str(program)],
        cwd=directory,
        env=os.environ | {"PATH": search_path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    outputs = ran.stdout.replace("\r", "\n").split(_MARK)[1:]
    for block, output in zip(blocks, outputs, strict=True):
        missing = missing_line(block.shown, output)
        assert missing is None, f"{block.code}\nlacks {missing!r}:\n{output}"
