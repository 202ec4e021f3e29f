"""Seconds without a primary, as a consumer of its output sees them: `make bench BENCH=failover`.

A standalone Spark with three workers of one slot each hosts two members; etcd and a durable broker run beside it. A
message comes every few milliseconds, and each is echoed by a transaction of its own. What is timed is from the kill to
the first echo, committed, of another process. The lease lives 20 s: no figure below that is due to its end. Trials
during which the whole machine stood still, or the disk of the broker (`bench.disturbances`), count, and are told:
`trials_with_machine_pauses`, `trials_with_disk_stalls`, and `failover_undisturbed_max_s`, the longest of those with
neither.

    kill=worker      SIGKILL of the primary's Python worker
    kill=executor    SIGKILL of its executor's JVM and its worker
    kill=handover    SIGTERM of its worker, which hands over; timed is the longest pause between two echoes
    kill=silent      SIGSTOP of its worker: nothing is closed, and nothing answers any more
    kill=broker-cut  its worker's packets to the broker and back are dropped; etcd and its peers still reach it

`false_suspicions` counts members that lost their lease though they lived, on a loaded machine. Arguments name the kills
to try, or `false_suspicions`; all, without.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.disturbances import Disturbances, Longest
from bench.failover.app import OUTPUT, SOURCE
from bench.failover.cuttable_broker import CuttableBroker, cuttable_broker
from bench.failover.suspicions import measure as measure_suspicions
from bench.failover.traffic import Traffic
from bench.journal_specs import journal_change
from bench.report import Params, emit, keep_logs_apart
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EndpointError
from broadsheet.runtime.interpreter import serve_only
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.errors import NoMemberError
from broadsheet.spark_bridge.session import start_session
from broadsheet.spark_bridge.standalone import StandaloneCluster
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec

BENCH = "failover"
SHARD = "bench/shard"
LOGS = "bench/logs"
TRIALS = 20
STATE_MIB = 100
SETTLE_SECONDS = 1.0
"""Of undisturbed traffic before each trial."""
AFTER_SECONDS = 1.0
"""Of traffic after a hand-over in which pauses count."""
READY_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """One way to lose the primary."""

    kill: str
    standbys: int
    state_mib: int


CASES = (
    Case("worker", 1, 0),
    Case("executor", 1, 0),
    Case("handover", 1, 0),
    Case("silent", 1, 0),
    Case("broker-cut", 1, 0),
    Case("worker", 0, STATE_MIB),
)
FALSE_SUSPICIONS = "false_suspicions"
SUSPICION_SECONDS = 600.0
SUSPICION_MEMBERS = 3


def main() -> None:
    """Run the cases named by their kill, or all."""
    arguments = _arguments()
    keep_logs_apart()
    with (
        StandaloneCluster(workers=3, cores_per_worker=1) as standalone,
        tempfile.TemporaryDirectory() as directory,
    ):
        spark = start_session(
            standalone.master_url, app_name="failover", conf=standalone.session_conf
        )
        # What sends the messages and times their echoes must not stop for 0.15 s to look for cycles.
        serve_only()
        try:
            for case in CASES:
                if case.kill in arguments.parts:
                    _measure(case, spark, Path(directory), trials_wanted=arguments.trials)
            if FALSE_SUSPICIONS in arguments.parts:
                _count_suspicions(spark, Path(directory), seconds=arguments.seconds)
        finally:
            spark.stop()


def _arguments() -> argparse.Namespace:
    parts = [*dict.fromkeys(case.kill for case in CASES), FALSE_SUSPICIONS]
    parser = argparse.ArgumentParser(prog="python -m bench.failover")
    parser.add_argument("parts", nargs="*", default=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each kill")
    parser.add_argument(
        "--seconds", type=float, default=SUSPICION_SECONDS, help=f"of {FALSE_SUSPICIONS}"
    )
    return parser.parse_args()


@contextmanager
def _cluster(
    spark: object, directory: Path, name: str, *, members: int, broker: str | None
) -> Iterator[ShardCluster]:
    with ShardCluster(
        spark,  # type: ignore[arg-type]  # pyspark has no types here.
        "bench.failover.app:create",
        members=members,
        root=f"/bench/failover/{name}",
        broker=broker,
        data_dir=directory / name,
        state_dir=str(directory / f"{name}-state"),
        # Members die in a row here; no shard is to blame, and none may be held back.
        shards=ShardConfig(young_deaths_max=0),
    ) as cluster:
        yield cluster


def _count_suspicions(spark: object, directory: Path, *, seconds: float) -> None:
    name = FALSE_SUSPICIONS
    with _cluster(spark, directory, name, members=SUSPICION_MEMBERS, broker=None) as cluster:
        trials = Trials(cluster, Case(name, 1, 0), members=SUSPICION_MEMBERS)
        trials.prepare()
        with Traffic(cluster.services.broker_address) as traffic:
            traffic.wait_for(after=time.monotonic() + SETTLE_SECONDS)
            measure_suspicions(
                BENCH,
                [_process_listening_at(each.endpoint) for each in cluster.members()],
                etcd=cluster.services.etcd,
                root=cluster.root,
                seconds=seconds,
            )


def _measure(case: Case, spark: object, directory: Path, *, trials_wanted: int) -> None:
    name = f"{case.kill}-{case.standbys}-{case.state_mib}"
    with Disturbances(directory) as disturbances:
        if case.kill == "broker-cut":
            # Members pace how often one shard is taken over; so each trial has members of its own.
            found = [
                _try_cut(case, spark, directory, f"{name}-{trial}")
                for trial in range(trials_wanted)
            ]
        else:
            with _cluster(spark, directory, name, members=2, broker=None) as cluster:
                trials = Trials(cluster, case)
                found = trials.run_all(cluster.services.broker_address, trials_wanted)
        longest = [disturbances.longest(since=each.began, until=each.ended) for each in found]
    _emit_case(case, [trial.seconds for trial in found], longest)


def _try_cut(case: Case, spark: object, directory: Path, name: str) -> Trial:
    with (
        cuttable_broker(directory / f"{name}-broker") as broker,
        _cluster(spark, directory, name, members=2, broker=broker.address) as cluster,
    ):
        (found,) = Trials(cluster, case, broker=broker).run_all(f"http://{broker.target}", 1)
        return found


def _emit_case(case: Case, seconds: Sequence[float], longest: Sequence[Longest]) -> None:
    """Print the figures of trials, and what disturbed each."""
    undisturbed = [trial for trial, each in zip(seconds, longest, strict=True) if each == Longest()]
    params: Params = {
        "kill": case.kill,
        "standbys": case.standbys,
        "state_mb": case.state_mib,
        "trials": len(seconds),
        "trials_with_machine_pauses": sum(each.machine_pause_seconds > 0 for each in longest),
        "trials_with_disk_stalls": sum(each.disk_stall_seconds > 0 for each in longest),
        **Longest.of(longest).params(),
    }
    emit(BENCH, "failover_p50_s", statistics.median(seconds), "s", **params)
    emit(BENCH, "failover_max_s", max(seconds), "s", **params)
    if undisturbed:
        emit(BENCH, "failover_undisturbed_max_s", max(undisturbed), "s", **params)


@dataclass(frozen=True, slots=True)
class Trial:
    """The time without a primary, and the time in which it was looked for, monotonic seconds."""

    seconds: float
    began: float
    ended: float


class Trials:
    """Of one case, on one cluster."""

    def __init__(
        self,
        cluster: ShardCluster,
        case: Case,
        *,
        broker: CuttableBroker | None = None,
        members: int = 2,
    ) -> None:
        """Take a running cluster.

        Args:
            cluster: It runs.
            case: What is tried.
            broker: From which processes can be cut off, if they are to be.
            members: How many there are.
        """
        self.case = case
        self._cluster = cluster
        self._broker = broker
        self._members = members

    def _lose(self, process: psutil.Process) -> None:
        match self.case.kill:
            case "worker":
                process.kill()
            case "executor":
                _kill_executor(process)
            case "handover":
                process.terminate()
            case "silent":
                process.suspend()
            case "broker-cut":
                assert self._broker is not None, "it is before the broker"
                self._broker.cut(process.pid)

    def _mend(self, process: psutil.Process) -> None:
        """Let what was lost without an end come back: it finds that it is succeeded."""
        if self.case.kill == "silent":
            process.resume()
            # Its lease is gone, and so it ends, and another is started.
            process.wait(timeout=READY_SECONDS_MAX)
        elif self._broker is not None:
            self._broker.heal()

    def prepare(self) -> None:
        """Make journals and shard."""
        asyncio.run(_make_journals(self._cluster.services.broker_address))
        spec = ShardSpec(
            id=SHARD,
            sources=[ShardSpec.Source(journal=SOURCE)],
            recovery_log_prefix=LOGS,
            hint_prefix=f"/bench/hints{self._cluster.root}",
            hint_backups=1,
            hot_standbys=self.case.standbys,
        )
        spec.max_txn_duration.FromMilliseconds(100)
        self._cluster.apply([spec])
        self._cluster.wait_for_primary([SHARD])

    def run_all(self, broker_address: str, wanted: int) -> list[Trial]:
        """Prepare, try so often, and check that each message was processed once.

        Args:
            broker_address: Where traffic goes.
            wanted: Trials.
        """
        self.prepare()
        with Traffic(broker_address) as traffic:
            traffic.fill(self.case.state_mib)
            found = [self.run(traffic) for _ in range(wanted)]
            traffic.check()
        return found

    def run(self, traffic: Traffic) -> Trial:
        """Lose the primary once."""
        while not traffic.filled:
            time.sleep(_POLL_SECONDS)
        process = self._wait_until_ready()
        traffic.wait_for(after=time.monotonic() + SETTLE_SECONDS)
        began = time.monotonic()
        self._lose(process)
        first = traffic.wait_for(after=began, not_by=process.pid)
        if self.case.kill != "handover":
            ended = first.at_monotonic_seconds
            self._mend(process)
            return Trial(ended - began, began, ended)
        until = first.at_monotonic_seconds + AFTER_SECONDS
        traffic.wait_for(after=until)
        # It stands by for a while before it leaves: the next trial needs a standby that stays.
        process.wait(timeout=READY_SECONDS_MAX)
        return Trial(traffic.longest_gap(since=began, until=until), began, until)

    def _wait_until_ready(self) -> psutil.Process:
        """Wait until all replicas are ready; return the primary's process."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                (listed,) = self._cluster.client.list().shards
                codes = sorted(status.code for status in listed.status)
                wanted = [ReplicaStatus.STANDBY] * self.case.standbys + [ReplicaStatus.PRIMARY]
                if codes == wanted and len(self._cluster.members()) == self._members:
                    endpoint = listed.route.endpoints[listed.route.primary]
                    return _process_listening_at(endpoint)
            except (EndpointError, NoMemberError, LookupError, TimeoutError):
                pass  # The member that was asked has just gone.
            if time.monotonic() > deadline:
                raise TimeoutError(f"{SHARD} is not ready: {self._cluster.client.list()}")
            time.sleep(_POLL_SECONDS)


def _kill_executor(process: psutil.Process) -> None:
    executor = next(parent for parent in process.parents() if parent.name() == "java")
    os.kill(executor.pid, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)


def _process_listening_at(endpoint: str) -> psutil.Process:
    port = int(endpoint.rpartition(":")[2])
    for connection in psutil.net_connections("tcp"):
        here = connection.laddr
        if connection.status == psutil.CONN_LISTEN and here and here.port == port:
            return psutil.Process(connection.pid)
    raise LookupError(f"nobody listens at {endpoint}")


async def _make_journals(broker: str) -> None:
    log = journal_change(f"{LOGS}/{SHARD}")
    log.upsert.labels.CopyFrom(label_set((CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG)))
    changes: list[ApplyRequest.Change] = [journal_change(SOURCE), journal_change(OUTPUT), log]
    async with JournalClient(broker) as journals:
        await journals.apply(changes)


if __name__ == "__main__":
    main()
