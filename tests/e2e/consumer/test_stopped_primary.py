"""A primary's process is stopped by SIGSTOP in the middle of a transaction, replaced, and woken: it cannot commit."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard
from tests.support.store_process import open_store

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[3]


class StoreProcess:
    """Talks to `tests.support.store_process`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, command: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def ask(self, command: str) -> str:
        """Send a command and return its answer."""
        self.tell(command)
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)


@contextmanager
def holding(kind: str, location: str, root: str) -> Iterator[StoreProcess]:
    """Run a process that holds the store."""
    command = [sys.executable, "-m", "tests.support.store_process", kind, location, root]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield StoreProcess(process)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("kind", "begun"),
    [
        ("json_file", True),
        # A stopped SQLite writer keeps the file's lock, which only the kernel could take away; so it is stopped idle.
        ("sqlite", False),
        pytest.param("postgresql", True, marks=pytest.mark.postgresql),
    ],
)
def test_stopped_primary_wakes_after_its_replacement_and_cannot_commit(
    kind: str, begun: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The successor restores and commits while the old process sleeps, even in mid-transaction; woken, that one's
    commit is refused and the successor's stands.
    """
    root = f"/test/{uuid4().hex}"
    shard = FixedShard(root=root)
    locations = {"json_file": str(tmp_path), "sqlite": f"sqlite:///{tmp_path}/state.db"}
    location = locations.get(kind) or request.getfixturevalue("postgresql_url")
    opened_as = kind if kind == "json_file" else "sql"
    with holding(opened_as, location, root) as zombie:
        assert zombie.ask("restore") == "restored 0"
        if begun:
            assert zombie.ask("begin") == "begun"
        assert zombie.ask("start_commit") == "started"
        zombie.signal(signal.SIGSTOP)
        zombie.tell("append")

        with open_store(opened_as, location, shard) as successor:
            assert successor.restore_checkpoint(shard) == Checkpoint()
            checkpoint = Checkpoint()
            checkpoint.sources["in"].read_through = 10
            successor.start_commit(shard, checkpoint, ()).result(20)
            zombie.signal(signal.SIGCONT)
            answer = zombie.ask("")

        refusals = ("CommitFencedError", "StoreError", "StoreUnavailableError")
        assert answer.startswith(refusals), answer
        with open_store(opened_as, location, shard) as witness:
            assert witness.restore_checkpoint(shard) == checkpoint
