"""Tutorials that begin with `shardctl dev`, command by command: a newcomer's first hour must not end in an error."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.dev_cluster import DevProcess, running_dev
from tests.support.documents import REPOSITORY, Block, blocks_of, missing_line
from tests.support.walks import Walk, environment_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TUTORIALS = REPOSITORY / "docs" / "tutorials"
DEV_0 = re.compile(r"^dev-0 .*\(pid (\d+)\)", re.MULTILINE)


@pytest.mark.parametrize("name", ["word_count", "stream_sum"])
def test_dev_tutorial_shows_what_it_says(name: str, tmp_path: Path) -> None:
    """Every command of the tutorial runs, in order, and prints the lines that the tutorial prints."""
    start, *blocks = blocks_of(TUTORIALS / f"{name}.md")
    assert start.kind == "start"
    assert len(blocks) >= 5

    with running_dev(start.code, tmp_path) as dev:
        # Ports and process ids are others here.
        shown = tuple(re.sub(r":808[01]|pid \d+", "…", line) for line in start.shown)
        assert missing_line(shown, dev.output) is None, dev.output
        pids = [DEV_0.search(text) for text in ("\n".join(start.shown), dev.output)]
        printed, real = (found[1] for found in pids if found)
        for block in blocks:
            _run(dev, block, block.script.replace(f"kill -9 {printed}", f"kill -9 {real}"))


def test_counter_tutorial_leads_from_an_empty_folder_past_a_kill(tmp_path: Path) -> None:
    """The first tutorial needs what `pip install` brings, and no clone: each block of it is a step from there."""
    with ExitStack() as resources:
        walk = Walk(tmp_path, environment_of(Path(sys.executable)), resources)
        walk.follow(TUTORIALS / "counter.md")


def _run(dev: DevProcess, block: Block, script: str) -> None:
    """Run a block once, as a reader does: also right after a kill it must show what the tutorial shows."""
    ran = dev.shell(script)
    missing = missing_line(block.shown, ran.stderr + ran.stdout)
    problem = f"{script}\nlacks {missing!r}:\n{ran.stdout}{ran.stderr}"
    assert ran.returncode == 0, problem
    assert missing is None, problem
