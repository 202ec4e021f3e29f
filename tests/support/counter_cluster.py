"""`shardctl dev` with the counter example, as a person at a terminal starts it: real processes, real addresses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from click.testing import CliRunner, Result

from broadsheet.cli.main import main
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually_sync

START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class CounterCluster:
    """A running `shardctl dev`."""

    addresses: tuple[str, ...]
    broker: str
    state: Path
    log: Path
    """What `shardctl dev` prints."""

    def shardctl(self, *arguments: str, stdin: str = "") -> Result:
        """Run a command against the second member, which the tests never kill."""
        environment = {"CONSUMER_ADDRESS": self.addresses[1], "BROKER_ADDRESS": self.broker}
        return CliRunner().invoke(main, arguments, input=stdin, env=environment)

    def pid_of(self, number: int) -> int:
        """Return the process of a member, which is another after each of its restarts."""
        port = int(self.addresses[number].rpartition(":")[2])

        def listens() -> int | None:
            for each in psutil.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN and each.laddr[1:] == (port,):
                    return each.pid
            return None

        pid = eventually_sync(listens, timeout_seconds=START_SECONDS, message="a listener")
        assert pid is not None
        return pid

    def counts(self, part: str) -> dict[str, int]:
        """Return a counter shard's committed state."""
        file = self.state / f"counter%2F{part}" / "state.json"
        if not file.exists():
            return {}
        _, state, _ = file.read_text().splitlines()
        counts: dict[str, int] = json.loads(state)
        return counts

    def wait_until_at_rest(self) -> None:
        """Wait until all members are there and every shard has its primary where it is to stay, which serves."""

        def nothing_moves() -> bool:
            result = self.shardctl("plan", "-o", "json")
            if result.exit_code:
                return False
            plan = json.loads(result.stdout)
            return len(plan["members"]) == len(self.addresses) and not plan["changes"]

        eventually_sync(
            nothing_moves, timeout_seconds=START_SECONDS, message="a plan that changes nothing"
        )
        self.wait_until_served()

    def wait_until_served(self) -> None:
        """Wait until every shard has a primary that serves."""

        def all_primary() -> bool:
            rows = self.shardctl("shards", "list").stdout.splitlines()[1:]
            return bool(rows) and all(row.split()[1] == "PRIMARY" for row in rows)

        eventually_sync(
            all_primary, timeout_seconds=START_SECONDS, message="a primary of each shard"
        )


@contextmanager
def running_counter_cluster(directory: Path) -> Iterator[CounterCluster]:
    """Run etcd, a broker and two members of the counter example; they must end well."""
    output = directory / "output"
    command = [
        sys.executable,
        "-P",
        "-m",
        "broadsheet.cli.main",
        "dev",
        "broadsheet.examples.counter.app:Counter",
    ]
    command += ["--port", "0", "--broker-port", "0", "--data-dir", str(directory / "data")]
    command += ["--journals", "examples/counter/journals.yaml"]
    command += ["--specs", "examples/counter/shards.yaml"]
    with output.open("w") as stream:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=os.environ | {"BROADSHEET_STATE_DIR": str(directory / "state")},
            stdout=stream,
            stderr=stream,
        )
    try:
        eventually_sync(
            lambda: "\ntry " in output.read_text() or process.poll() is not None,
            timeout_seconds=START_SECONDS,
            message="the start",
        )
        text = output.read_text()
        assert process.poll() is None, text
        yield _cluster_of(text, state=directory / "state", log=output)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=START_SECONDS) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


def _cluster_of(output: str, *, state: Path, log: Path) -> CounterCluster:
    addresses = re.findall(r"^dev-\d +(\S+) \(pid \d+\)$", output, re.MULTILINE)
    broker = re.search(r"^broker +(\S+)$", output, re.MULTILINE)
    assert broker is not None, output
    return CounterCluster(
        addresses=tuple(addresses),
        broker=broker[1],
        state=state,
        log=log,
    )
