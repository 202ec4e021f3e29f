"""Pages that start servers, one block after the other, on ports that are free in place of those that they name."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.documents import REPOSITORY, blocks_of, missing_line

BLOCK_SECONDS = 300.0


def follow_served_page(page: Path, directory: Path, *, ports: re.Pattern[str]) -> None:
    """Run each block of a page in order; it must print the lines that the page shows.

    Args:
        page: The page.
        directory: Where its reader begins; it gets a link to the examples.
        ports: Matches each port of the page.
    """
    (directory / "examples").symlink_to(REPOSITORY / "examples")
    names = sorted(set(ports.findall(page.read_text(encoding="utf-8"))))
    free = dict(zip(names, _free_ports(len(names)), strict=True))
    with ExitStack() as servers:
        for block in blocks_of(page):
            script, *shown = (
                ports.sub(lambda found: free[found[0]], text)
                for text in (block.script, *block.shown)
            )
            if block.kind == "start":
                servers.enter_context(_running(script, directory))
            else:
                _run(script, shown, directory)


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
    """Run a server of the page; what it printed is shown if the test fails."""
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
