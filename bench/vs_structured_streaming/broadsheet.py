"""Broadsheet under measurement: two members on the executors of a standalone Spark, an etcd and a durable broker.

rows/s      rows wait in two journals; timed is from the apply of two new shards, on members that have served others
            before, to when a reader has committed sums that hold every row
latency     rows are published one by one when they are due; timed is to the committed sums that hold them
recovery    the longest time that a row published after the SIGKILL of a process, whose sums another process had next,
            waits for sums that hold it:
            `worker` is the Python process of the primary, `executor` that and its JVM, `driver` the Spark application,
            whose driver is started again at once
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.disturbances import Disturbances
from bench.vs_structured_streaming.driver import Driver
from bench.vs_structured_streaming.feed import Trickle
from bench.vs_structured_streaming.journals import Connection, Producer, SumsReader, Topic
from bench.vs_structured_streaming.member_cluster import ClusterPlan
from bench.vs_structured_streaming.results import (
    LATENCY,
    LOADS,
    RECOVERY,
    RESULT_SECONDS_MAX,
    WARM_UP,
    Latencies,
    Measured,
    Pace,
    Results,
    check_exact,
    latencies_by_pace,
    longest_wait_seconds,
)
from bench.vs_structured_streaming.rows import Chunk, expected_sums, keys_of_part, rows_in
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.runtime.errors import ServiceError
from broadsheet.spark_bridge.cluster.membership import Membership
from broadsheet.spark_bridge.cluster.shards import LiveMemberClient
from broadsheet.spark_bridge.errors import NoMemberError
from broadsheet.spark_bridge.standalone import StandaloneCluster
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec

SYSTEM = "broadsheet"
ROOT = "/bench/sums"
MEMBERS = 2
KILLS = {"worker": 3, "executor": 3, "driver": 1}
"""How often of each."""
_POLL_SECONDS = 0.02
_SETTLE_SECONDS = 1.0


def measure(chunks: Sequence[Chunk]) -> Measured:
    """Measure everything once."""
    measured = Measured()
    with (
        tempfile.TemporaryDirectory(prefix="vs-") as directory,
        Deployment.running(Path(directory)) as deployment,
    ):
        for load in range(LOADS + 1):
            rate = deployment.load(f"load-{load}", chunks)
            if load > 0:
                measured.rows_per_second.append(rate)
        measured.latencies = deployment.latencies()
        measured.recoveries_seconds = deployment.recoveries()
    return measured


class Deployment:
    """Everything that runs."""

    def __init__(
        self,
        directory: Path,
        master: StandaloneCluster,
        etcd: str,
        broker: str,
        connection: Connection,
    ) -> None:
        """Take what runs already; `start_driver` starts the rest."""
        self._directory = directory
        self._connection = connection
        self._membership: Membership | None = None
        self._lives = itertools.count()
        self._plan = ClusterPlan(
            master_url=master.master_url,
            session_conf=master.session_conf | {"spark.ui.showConsoleProgress": "false"},
            root=ROOT,
            etcd=etcd,
            broker=broker,
            state_directory=str(directory / "state"),
            members=MEMBERS,
        )

    @staticmethod
    @contextmanager
    def running(directory: Path) -> Iterator[Deployment]:
        """Start everything; end it with the block."""
        with (
            StandaloneCluster(workers=MEMBERS, cores_per_worker=1) as master,
            EmbeddedEtcdProcess(directory / "etcd", listen="tcp") as etcd,
            EmbeddedBrokerProcess(directory / "broker") as broker,
            Connection(broker.address) as connection,
        ):
            deployment = Deployment(directory, master, etcd.endpoint, broker.address, connection)
            deployment.start_driver()
            try:
                yield deployment
            finally:
                deployment.kill_driver()

    def start_driver(self) -> None:
        """Start the Spark application whose tasks are the members; wait for it."""
        self._driver = Driver(
            "bench.vs_structured_streaming.member_cluster",
            self._plan,
            log_file=self._directory / f"driver-{next(self._lives)}.log",
            on_record=lambda record: None,
        )
        self._driver.start()
        started = self._driver.wait_until_started()
        self._membership = Membership(
            EtcdConfig(endpoints=(self._plan.etcd,)),
            Keys(ROOT),
            application_id=str(started["application_id"]),
        )
        self._membership.__enter__()
        self._client = LiveMemberClient(self._membership.members, auth=None)

    def kill_driver(self) -> None:
        """Kill the driver and its JVM."""
        self._driver.kill()
        if self._membership is not None:
            self._client.close()
            self._membership.__exit__(None, None, None)
            self._membership = None

    def load(self, name: str, chunks: Sequence[Chunk]) -> float:
        """Have new shards consume rows that are there already; return rows a second."""
        topic, results = Topic(name), Results()
        producer, rows = Producer(self._connection, topic), rows_in(chunks)
        producer.make_journals()
        producer.publish(chunks)
        with SumsReader(self._connection, topic, results):
            began = time.monotonic()
            self._apply(topic.specs())
            ended = results.wait_until_counted(rows, timeout_seconds=RESULT_SECONDS_MAX)
        check_exact(results.latest(), expected_sums(rows), SYSTEM)
        self._remove(topic)
        return rows / (ended - began)

    def latencies(self) -> dict[float, Latencies]:
        """Return the latencies of the rows of a trickle, by its pace."""
        with Disturbances(self._directory) as disturbances:
            with self._trickling("latency", (WARM_UP, *LATENCY)) as (trickle, results):
                trickle.join()
            return latencies_by_pace(trickle.sent, results.seen, disturbances)

    def recoveries(self) -> dict[str, list[float]]:
        """Return the seconds without results after each kill, by what was killed."""
        found: dict[str, list[float]] = {kill: [] for kill in KILLS}
        with self._trickling("recovery", (RECOVERY,)) as (trickle, results):
            for kill, times in KILLS.items():
                for _ in range(times):
                    found[kill].append(self._recover(kill, trickle, results))
        return found

    @contextmanager
    def _trickling(self, name: str, paces: Sequence[Pace]) -> Iterator[tuple[Trickle, Results]]:
        """Send rows to new shards while the block runs; then check that every one was counted once."""
        topic, results = Topic(name), Results()
        producer = Producer(self._connection, topic)
        producer.make_journals()
        self._apply(topic.specs())

        def first() -> float:
            return results.wait_until_counted(1, timeout_seconds=RESULT_SECONDS_MAX)

        trickle = Trickle(producer.send, paces, after_first=first)
        with SumsReader(self._connection, topic, results):
            trickle.start()
            first()
            yield trickle, results
            rows = trickle.stop()
            results.wait_until_counted(rows, timeout_seconds=RESULT_SECONDS_MAX)
        check_exact(results.latest(), expected_sums(rows), SYSTEM)
        self._remove(topic)

    def _recover(self, kill: str, trickle: Trickle, results: Results) -> float:
        """Kill once; return the longest wait of a row for its result since then."""
        self._wait_until_covered()
        time.sleep(_SETTLE_SECONDS)
        keys = keys_of_part(0)
        pid = next(one.pid for one in reversed(results.seen) if one.key in keys)
        began, before = time.monotonic(), len(trickle.sent)
        dead = _KILLS[kill](pid, self)
        results.wait_for_other(
            after=began, pids=dead, keys=keys, timeout_seconds=RESULT_SECONDS_MAX
        )
        after = trickle.sent[:]
        results.wait_until_seen(after, timeout_seconds=RESULT_SECONDS_MAX)
        return longest_wait_seconds(after, results.seen, since=before)

    def _apply(self, specs: Sequence[ShardSpec]) -> None:
        changes = [ApplyRequest.Change(upsert=spec, expect_mod_revision=-1) for spec in specs]
        self._client.current().apply(changes)

    def _remove(self, topic: Topic) -> None:
        """Remove shards, so that they cost nothing any more."""
        changes = [
            ApplyRequest.Change(delete=shard, expect_mod_revision=-1) for shard in topic.shards
        ]
        self._client.current().apply(changes)

    def _wait_until_covered(self) -> None:
        """Wait until every shard has its primary and its standby, on as many members as there shall be."""
        wanted = sorted((ReplicaStatus.STANDBY, ReplicaStatus.PRIMARY))
        deadline = time.monotonic() + RESULT_SECONDS_MAX
        while True:
            try:
                shards = self._client.current().list().shards
                covered = [sorted(status.code for status in shard.status) for shard in shards]
                if shards and all(codes == wanted for codes in covered):
                    return
            except (ServiceError, NoMemberError):
                self._client.give_up()  # The member that was asked has just gone.
            if time.monotonic() > deadline:
                raise TimeoutError("not every shard has a primary and a standby")
            time.sleep(_POLL_SECONDS)


def _kill_worker(pid: int, deployment: Deployment) -> set[int]:
    os.kill(pid, signal.SIGKILL)
    return {pid}


def _kill_executor(pid: int, deployment: Deployment) -> set[int]:
    executor = next(one for one in psutil.Process(pid).parents() if one.name() == "java")
    os.kill(executor.pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    return {pid}


def _kill_driver(pid: int, deployment: Deployment) -> set[int]:
    """Kill the driver, with which its executors end, and start it again; who lived then has no result."""
    alive = set(psutil.pids())
    deployment.kill_driver()
    deployment.start_driver()
    return alive | {pid}


_KILLS: dict[str, Callable[[int, Deployment], set[int]]] = {
    "worker": _kill_worker,
    "executor": _kill_executor,
    "driver": _kill_driver,
}
