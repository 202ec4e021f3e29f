"""The driver of a second Spark application, as a program: it joins a cluster and serves until its input ends.

    python -m tests.support.joining_driver ADDRESS MASTER MEMBERS DATABASE

Says what it reached in lines of JSON, `{"joined": [MEMBER, …]}` the first.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import structlog

from broadsheet.examples.flights.app import FlightsApplication
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.session import start_session

LOG_LINES_SHOWN = 40


class JoiningDriver:
    """The running program."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        """Bind it.

        Args:
            process: Of the driver.
            log: Its standard error.
        """
        self.process = process
        self._log = log
        self.members: tuple[str, ...] = ()

    def wait_joined(self) -> None:
        """Wait until it serves; its members' ids are then in `members`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        lines = self._log.read_text(errors="replace").splitlines()
        assert line, "\n".join(lines[-LOG_LINES_SHOWN:])
        self.members = tuple(json.loads(line)["joined"])

    def kill(self) -> None:
        """Kill the driver; its JVM ends with it, and with that its members."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """Kill the driver and its JVM at once. Members find out by themselves."""
        root = psutil.Process(self.process.pid)
        for one in [root, *root.children()]:
            one.kill()

    def suspend(self) -> list[psutil.Process]:
        """Stop the driver, its JVM and everything below; return them, for `SIGCONT`."""
        root = psutil.Process(self.process.pid)
        stopped = [root, *root.children(recursive=True)]
        for one in stopped:
            one.send_signal(signal.SIGSTOP)
        return stopped

    def end(self) -> None:
        """Have it stop its cluster and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait() == 0, self._log.read_text(errors="replace")[-4_000:]


@contextmanager
def joining_driver(
    address: str,
    *,
    master_url: str,
    members: int,
    database: str,
    directory: Path,
    conf: Mapping[str, str],
) -> Iterator[JoiningDriver]:
    """Start the program; kill it at the end, if it is still there.

    Args:
        address: Of the cluster to join.
        master_url: Of Spark.
        members: How many it brings.
        database: Of the flights example.
        directory: For its log.
        conf: More of its session.
    """
    log = directory / "joining-driver.log"
    command = [sys.executable, "-m", "tests.support.joining_driver", address, master_url]
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*command, str(members), database, json.dumps(dict(conf))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ},
        )
    driver = JoiningDriver(process, log)
    try:
        yield driver
    finally:
        driver.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def main(address: str, master_url: str, members: str, database: str, conf: str) -> None:
    """Join, say so, and wait for the end of the input."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    spark = start_session(master_url, app_name="joining", conf=json.loads(conf))
    spark.sparkContext.setLogLevel("OFF")
    with ShardCluster(
        spark,
        functools.partial(FlightsApplication, database),
        members=int(members),
        join=address,
        lease_ttl_seconds=60.0,
    ) as cluster:
        told = {"joined": [str(member.member_id) for member in cluster.members()]}
        print(json.dumps(told), flush=True)
        sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
