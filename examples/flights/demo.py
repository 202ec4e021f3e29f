"""The main job, on real data, through a kill: `make demo`.

A standalone Spark with two workers hosts four members that share eight shards. Spark publishes the flights of 2013;
while the shards consume them, one member's process is killed with SIGKILL. In the end every aircraft's live state and
every alert is compared with one Spark SQL query over the same file: the aircraft as the shards have them, the alerts as
a stream brought them back into Spark meanwhile. The exit status is 0 only if all are equal.
"""

from __future__ import annotations

import asyncio
import functools
import math
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

import grpc
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from broadsheet.consumer import EndpointError, ShardError
from broadsheet.examples.flights.alerts import read_alerts, start_alert_stream
from broadsheet.examples.flights.app import FlightsApplication
from broadsheet.examples.flights.client import ask_for_aircraft, list_aircraft
from broadsheet.examples.flights.dataset import FLIGHT_COUNT, read_flights, unpack_flights
from broadsheet.examples.flights.flights_pb2 import Aircraft
from broadsheet.examples.flights.messages import FLIGHT_JOURNALS
from broadsheet.examples.flights.postgresql import PostgresqlServer, PostgresqlUnavailableError
from broadsheet.examples.flights.publish import publish_flights
from broadsheet.examples.flights.verify import (
    Comparison,
    alerts_of,
    compare,
    expected_aircraft,
    expected_alerts,
    live_totals,
)
from broadsheet.journals import JournalClient
from broadsheet.spark_bridge import (
    NoMemberError,
    ShardCluster,
    StandaloneCluster,
    register_formats,
    start_session,
)

ROOT = "/broadsheet/flights"
_LINE_EVERY_SECONDS = 5.0
MEMBERS = 4
SHARDS = tuple(f"flights-{index:03d}" for index in range(len(FLIGHT_JOURNALS)))
KILL_AFTER_SLICES = 2
"""Publications before the kill. Those after it wait for it, so that flights come while the shards move."""
KILL_AFTER_FLIGHTS = FLIGHT_COUNT // 10
"""Flights that are consumed before the kill, so that the shards have state to lose."""
WORKERS, CORES_PER_WORKER = 2, 4
"""Slots for the members and for the DataFrame tasks beside them, whatever the machine has."""
DATA_DIR = Path(".demo")
SLOWEST_SHOWN = 10
STALL_SECONDS_MAX = 60.0
"""Everything is published and nothing more is consumed for so long: go on and say what is missing."""
_POLL_SECONDS = 0.1


def main() -> int:
    """Run the demonstration; return its exit status."""
    console = Console(highlight=False)
    started = time.monotonic()
    with ExitStack() as resources:
        demo = _set_up(console, resources)
        failover_seconds = demo.run()
        comparison = demo.verify()
    return _report(
        console, comparison, failover_seconds=failover_seconds, seconds=time.monotonic() - started
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A cluster that serves the flights' shards."""

    console: Console
    flights: DataFrame
    cluster: ShardCluster
    alerts: StreamingQuery
    """Brings alerts back into Spark."""
    alert_dir: Path

    def run(self) -> float:
        """Publish and consume every flight, with a kill in between; return the seconds of the fail-over."""
        published = _Counter()
        with ThreadPoolExecutor(1) as watcher:
            watching = watcher.submit(self._watch, published)
            try:
                # On this thread: Spark finds a registered format only where its session is the active one.
                for count in publish_flights(self.flights, self.cluster.services, root=ROOT):
                    published.messages += count
                    published.slices += 1
                    if published.slices == KILL_AFTER_SLICES:
                        published.killed.wait(STALL_SECONDS_MAX)
            finally:
                published.done = True
            return watching.result()

    def _watch(self, published: _Counter) -> float:
        """Wait until everything published is consumed; kill a member meanwhile; return the seconds of the fail-over."""
        counts = dict.fromkeys(SHARDS, 0)
        failover_seconds: float | None = None
        with RunProgress(self.console, total=FLIGHT_COUNT) as bars:
            stalls_at = math.inf
            while not (published.done and sum(counts.values()) >= published.messages):
                if self._count(counts) or not published.done:
                    stalls_at = time.monotonic() + STALL_SECONDS_MAX
                if time.monotonic() >= stalls_at:
                    break
                consumed = sum(counts.values())
                bars.show(published=published.messages, consumed=consumed)
                if failover_seconds is None and consumed >= KILL_AFTER_FLIGHTS:
                    failover_seconds = self._kill_one_member(consumed, published.killed)
                time.sleep(_POLL_SECONDS)
            bars.show(published=published.messages, consumed=sum(counts.values()))
        if failover_seconds is None:
            raise RuntimeError(
                f"only {sum(counts.values()):,} flights were consumed, so no member was killed in mid-run: "
                "look into the executors' logs"
            )
        return failover_seconds

    def verify(self) -> Comparison:
        """Compare the shards' live state and the committed alerts with the file; show the slowest aircraft."""
        services = self.cluster.services
        heads = asyncio.run(_write_heads(services.broker_address))
        aircraft: list[Aircraft] = []
        for shard, journal in zip(SHARDS, FLIGHT_JOURNALS, strict=True):
            read_through = {journal: heads[journal]}
            aircraft += list_aircraft(self.cluster, shard, read_through=read_through).aircraft
        self.console.print(_table_of(aircraft))
        # The shards have read everything, so every alert is committed; what is left is to read it.
        self.alerts.processAllAvailable()
        self.alerts.stop()
        return compare(
            expected=expected_aircraft(self.flights),
            live=live_totals(aircraft),
            expected_alerts=expected_alerts(self.flights),
            alerts=alerts_of(read_alerts(self.flights.sparkSession, self.alert_dir)),
        )

    def _count(self, counts: dict[str, int]) -> bool:
        """Ask each shard how many flights it has; return whether there are more than before.

        A shard that has no primary right now keeps its last answer.
        """
        before = sum(counts.values())
        for shard in counts:
            try:
                counts[shard] = ask_for_aircraft(self.cluster, shard, limit=1).flights
            except (grpc.RpcError, ShardError, EndpointError, NoMemberError):
                continue
        return sum(counts.values()) > before

    def _kill_one_member(self, consumed: int, killed: Event) -> float:
        """Kill the process of the member with the most primaries; return when all of them serve again, seconds.

        Args:
            consumed: Flights so far.
            killed: Set with the kill.
        """
        primaries = self.cluster.wait_for_primary(SHARDS)
        victim_id, count = Counter(primaries.values()).most_common(1)[0]
        lost = [shard for shard, member_id in primaries.items() if member_id == victim_id]
        victim = next(one for one in self.cluster.members() if one.member_id == victim_id)
        pid = _pid_listening_at(victim.endpoint)
        self.console.print(
            f"kill -9 {pid}: {victim_id}, primary of {count} shards, "
            f"with {FLIGHT_COUNT - consumed:,} flights to consume"
        )
        began = time.monotonic()
        psutil.Process(pid).send_signal(signal.SIGKILL)
        killed.set()
        self.cluster.wait_for_primary(lost, not_on={victim_id})
        seconds = time.monotonic() - began
        self.console.print(f"{seconds:.2f} s later every one of them is PRIMARY on another member")
        return seconds


class _Counter:
    """Written by the thread that publishes, read by the one that watches."""

    def __init__(self) -> None:
        self.messages = 0
        self.slices = 0
        self.done = False
        self.killed = Event()
        """Set once a member is killed."""


def _set_up(console: Console, resources: ExitStack) -> Demo:
    run_dir = (DATA_DIR / "run").resolve()
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    database_url = _start_database(console, resources, run_dir)
    with console.status("Starting Spark ..."):
        spark = _start_spark(resources)
    console.print(f"Spark: {spark.sparkContext.master}, {WORKERS} workers, {MEMBERS} members to be")
    flights = read_flights(spark, unpack_flights(DATA_DIR)).cache()
    cluster = resources.enter_context(
        ShardCluster(
            spark,
            functools.partial(FlightsApplication, database_url),
            members=MEMBERS,
            root=ROOT,
            data_dir=run_dir,
        )
    )
    for member in cluster.members():
        console.print(f"member {member.member_id} at {member.endpoint}")
    here = Path(__file__).parent
    _shardctl(cluster, "journals", "apply", "--specs", str(here / "journals.yaml"))
    _shardctl(cluster, "shards", "apply", "--specs", str(here / "specs.yaml"))
    cluster.wait_for_primary(SHARDS)
    console.print(f"{len(SHARDS)} shards have a primary")
    alerts = start_alert_stream(spark, cluster.services, run_dir / "alerts")
    return Demo(
        console=console,
        flights=flights,
        cluster=cluster,
        alerts=alerts,
        alert_dir=run_dir / "alerts",
    )


def _start_database(console: Console, resources: ExitStack, run_dir: Path) -> str:
    try:
        server = resources.enter_context(PostgresqlServer())
    except PostgresqlUnavailableError as error:
        console.print(f"Stores: SQLite files, since PostgreSQL does not run here ({error})")
        return f"sqlite:///{run_dir}/{{shard}}.db"
    console.print("Stores: PostgreSQL")
    return server.url


def _start_spark(resources: ExitStack) -> SparkSession:
    standalone = resources.enter_context(
        StandaloneCluster(workers=WORKERS, cores_per_worker=CORES_PER_WORKER)
    )
    conf = {
        **standalone.session_conf,
        "spark.sql.shuffle.partitions": str(len(FLIGHT_JOURNALS)),
        "spark.ui.showConsoleProgress": "false",
    }
    spark = start_session(standalone.master_url, app_name="flights", conf=conf)
    resources.callback(spark.stop)
    spark.sparkContext.setLogLevel("ERROR")
    register_formats(spark)
    return spark


def _shardctl(cluster: ShardCluster, *arguments: str) -> None:
    """Run the command line as a user would."""
    program = Path(sys.executable).with_name("shardctl")
    addresses = ["--address", cluster.client.address]
    addresses += ["--broker", cluster.services.broker_address]
    subprocess.run([str(program), *arguments, *addresses], check=True)  # noqa: S603 - our own program


def _pid_listening_at(endpoint: str) -> int:
    port = int(endpoint.rpartition(":")[2])
    for connection in psutil.net_connections("tcp"):
        here = connection.laddr
        if connection.status == psutil.CONN_LISTEN and here and here.port == port:
            assert connection.pid is not None, "the member is a process of ours"
            return int(connection.pid)
    raise LookupError(f"nobody listens at {endpoint}")


async def _write_heads(broker_address: str) -> dict[str, int]:
    async with JournalClient(broker_address) as journals:
        return {journal: await journals.write_head(journal) for journal in FLIGHT_JOURNALS}


def _table_of(aircraft: list[Aircraft]) -> Table:
    table = Table(title=f"The {SLOWEST_SHOWN} aircraft with the most minutes late, from live state")
    table.add_column("aircraft")
    for name in ("legs", "minutes late", "alerts", "turnarounds", "mean gap", "longest gap"):
        table.add_column(name, justify="right")
    for one in sorted(aircraft, key=lambda one: -one.late_minutes)[:SLOWEST_SHOWN]:
        mean_gap = one.ground_minutes / one.turnarounds if one.turnarounds else 0
        table.add_row(
            one.aircraft,
            f"{one.legs:,}",
            f"{one.late_minutes:,}",
            f"{one.alerts:,}",
            f"{one.turnarounds:,}",
            f"{mean_gap / 60:,.1f} h",
            f"{one.longest_gap_minutes / 1440:,.1f} d",
        )
    return table


def _report(
    console: Console, comparison: Comparison, *, failover_seconds: float, seconds: float
) -> int:
    for difference in comparison.differences:
        console.print(f"different: {difference}")
    console.print(f"{seconds:.0f} s in all, fail-over in {failover_seconds:.2f} s")
    exact = comparison.exact and comparison.flights == FLIGHT_COUNT
    console.print(
        f"{'exactly-once' if exact else 'NOT exactly-once'}: {comparison.flights} flights in, "
        f"{comparison.aircraft_equal} aircraft equal, {comparison.alerts_equal} alerts equal"
    )
    return 0 if exact else 1


class RunProgress:
    """Counts of messages published and consumed: bars on a terminal, plain lines elsewhere. A context manager."""

    def __init__(self, console: Console, *, total: int) -> None:
        self._console = console
        self._total = total
        self._bars = (
            Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._tasks: dict[str, TaskID] = {}
        self._counts = {"published": 0, "consumed": 0}
        self._printed = dict(self._counts)
        self._next_line_monotonic_seconds = 0.0

    def show(self, *, published: int, consumed: int) -> None:
        """Show new counts, messages."""
        self._counts = {"published": published, "consumed": consumed}
        if self._bars is not None:
            for name, count in self._counts.items():
                self._bars.update(self._tasks[name], completed=count)
        elif time.monotonic() >= self._next_line_monotonic_seconds:
            self._next_line_monotonic_seconds = time.monotonic() + _LINE_EVERY_SECONDS
            self._print_line()

    def _print_line(self) -> None:
        """Print the counts, unless they are those of the last line."""
        if self._counts == self._printed:
            return
        self._printed = self._counts
        shown = ", ".join(f"{name} {count:,}" for name, count in self._counts.items())
        self._console.print(f"  {shown} of {self._total:,}")

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
            for name in self._counts:
                self._tasks[name] = self._bars.add_task(name, total=self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        else:
            self._print_line()


if __name__ == "__main__":
    sys.exit(main())
