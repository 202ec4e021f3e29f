"""docs/tutorial-counter.md, command by command: a newcomer's first hour must not end in an error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, Block, blocks_of, missing_line
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

TUTORIAL = REPOSITORY / "docs" / "tutorial-counter.md"


@dataclass(frozen=True, slots=True)
class Started:
    """The tutorial's cluster, on ports of its own."""

    environment: Mapping[str, str]
    directory: Path
    pid_by_printed: Mapping[str, str]

    def run(self, block: Block) -> None:
        """Run a block until it shows what it should: what it asks for may take a moment to happen."""
        code = block.code
        for printed, real in self.pid_by_printed.items():
            code = code.replace(f"kill -9 {printed}", f"kill -9 {real}")
        repeatable = "append" not in code and "apply" not in code

        def shows() -> bool:
            ran = subprocess.run(
                ["bash", "-euc", code],
                cwd=self.directory,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            missing = missing_line(block.shown, ran.stderr + ran.stdout)
            problem = f"{code}\nlacks {missing!r}:\n{ran.stdout}{ran.stderr}"
            assert ran.returncode == 0, problem
            assert missing is None, problem
            return True

        if repeatable:
            eventually_sync(shows, timeout_seconds=30, interval_seconds=0.2)
        else:
            shows()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """What the tutorial starts in its first terminal, in a directory that looks like the repository."""
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    block = next(one for one in blocks_of(TUTORIAL) if one.kind == "start")
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": search_path, "CONSUMER_PORT": "0", "BROKER_PORT": "0"}
    output = tmp_path / "output"
    with output.open("w") as stream:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {block.code}"],
            cwd=tmp_path,
            env=environment,
            stdout=stream,
            stderr=stream,
        )
    try:
        eventually_sync(
            lambda: "\ntry " in output.read_text() or process.poll() is not None,
            timeout_seconds=60,
        )
        text = output.read_text()
        ported = tuple(re.sub(r":808[01]", ":…", line) for line in block.shown)
        shown = tuple(re.sub(r"pid \d+", "pid …", line) for line in ported)
        assert missing_line(shown, text) is None, text
        addresses = re.search(r"--address (\S+) --broker (\S+)", text)
        member = re.search(r"^dev-0 .*\(pid (\d+)\)", text, re.MULTILINE)
        printed = re.search(r"^dev-0 .*\(pid (\d+)\)", "\n".join(block.shown), re.MULTILINE)
        assert addresses, text
        assert member, text
        assert printed, block.shown
        environment |= {"CONSUMER_ADDRESS": addresses[1], "BROKER_ADDRESS": addresses[2]}
        yield Started(environment, tmp_path, {printed[1]: member[1]})
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


def test_tutorial_counter_shows_what_it_says(started: Started) -> None:
    """Every command of the tutorial runs, in order, and prints the lines that the tutorial prints."""
    blocks = [block for block in blocks_of(TUTORIAL) if block.kind == "run"]

    assert len(blocks) >= 6
    for block in blocks:
        started.run(block)
