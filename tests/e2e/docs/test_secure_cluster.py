"""The tutorial of a cluster with TLS and roles, command by command, from nothing to a member that dies."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, blocks_of, missing_line

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TUTORIAL = REPOSITORY / "docs" / "tutorials" / "secure_cluster.md"
PORT = re.compile(r"\b(2379|2380|8080|8081|8082|9080|9081|9082)\b")
BLOCK_SECONDS = 300.0


def test_secure_cluster_tutorial_shows_what_it_says(tmp_path: Path) -> None:
    """Every command of the tutorial runs, in order, and prints the lines that the tutorial prints."""
    blocks = blocks_of(TUTORIAL)
    assert [block.kind for block in blocks].count("start") == 4
    assert len(blocks) >= 12
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    names = sorted(set(PORT.findall(TUTORIAL.read_text(encoding="utf-8"))))
    ports = dict(zip(names, _free_ports(len(names)), strict=True))

    with ExitStack() as servers:
        for block in blocks:
            script, *shown = (
                PORT.sub(lambda found: ports[found[0]], text)
                for text in (block.script, *block.shown)
            )
            if block.kind == "start":
                servers.enter_context(_running(script, tmp_path))
            else:
                _run(script, shown, tmp_path)


def _free_ports(number: int) -> list[str]:
    """Return ports that are free now, as text, to be named before the servers start."""
    with ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(number)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in bound]


def _environment() -> dict[str, str]:
    """Return that of a reader who activated the virtual environment, and has set nothing else of ours."""
    ours = ("BROADSHEET_", "CONSUMER_", "BROKER_", "ETCD_", "AUTH_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


@contextmanager
def _running(script: str, directory: Path) -> Iterator[None]:
    """Run a server of the tutorial; what it printed is shown if the test fails."""
    log = directory / f"server-{len(list(directory.glob('server-*')))}"
    with log.open("w") as stream:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=directory, env=_environment(), stdout=stream, stderr=stream
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()
        print(f"--- {script}\n{log.read_text()[-4_000:]}")


def _run(script: str, shown: Sequence[str], directory: Path) -> None:
    ran = subprocess.run(
        ["bash", "-euc", script],
        cwd=directory,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=BLOCK_SECONDS,
        check=False,
    )
    missing = missing_line(tuple(shown), ran.stdout + ran.stderr)
    problem = f"{script}\nlacks {missing!r}:\n{ran.stdout}{ran.stderr}"
    assert ran.returncode == 0, problem
    assert missing is None, problem
