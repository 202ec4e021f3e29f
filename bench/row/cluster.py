"""An etcd, a durable broker and one member, each a process, with one shard that sums rows by key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.vs_structured_streaming.key_sums import sums_journal
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.wire.shard_pb2 import ShardSpec

APPLICATION = "bench.vs_structured_streaming.key_sums:create"
ROOT = "/bench/row"
SHARD = "row/part-000"
LOGS = "row/logs"
ROWS = "row/rows/part-000"
SUMS = sums_journal(ROWS)


@dataclass(frozen=True, slots=True)
class RowCluster:
    """The servers, apart from the client."""

    broker: EmbeddedBrokerProcess
    member: EmbeddedMemberProcess

    @staticmethod
    @contextmanager
    def running(directory: Path) -> Iterator[RowCluster]:
        """Start everything; end it with the block."""
        with (
            EmbeddedEtcdProcess(directory / "etcd", listen="tcp") as etcd,
            EmbeddedBrokerProcess(directory / "broker") as broker,
        ):
            arguments = ["--etcd", etcd.endpoint, "--broker", broker.address, "--root", ROOT]
            arguments += ["--port", "0", "--limit", "1", "--log-level", "warning"]
            arguments += ["--state-dir", str(directory / "state")]
            arguments += ["--drain-seconds", "0", "--drain-alone-seconds", "0"]
            member = EmbeddedMemberProcess(
                APPLICATION, arguments, log_file=directory / "member.log"
            )
            try:
                member.wait_until_ready()
                yield RowCluster(broker, member)
            finally:
                member.stop()

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time that each process has spent, by its job; `client` is this process."""
        processes = {
            "member": psutil.Process(self.member.pid),
            "broker": psutil.Process(self.broker.pid),
            "client": psutil.Process(),
        }
        found = {job: process.cpu_times() for job, process in processes.items()}
        return {job: float(times.user + times.system) for job, times in found.items()}


def shard_spec() -> ShardSpec:
    """Return the shard, without a standby, because a standby would cost the broker another read of each row."""
    spec = ShardSpec(
        id=SHARD,
        sources=[ShardSpec.Source(journal=ROWS)],
        recovery_log_prefix=LOGS,
        hint_prefix="/bench/hints",
        hint_backups=1,
    )
    spec.max_txn_duration.FromMilliseconds(1000)
    return spec
