"""An etcd, a durable broker and members, each a process; shards on them, timed and checked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from google.protobuf.duration_pb2 import Duration

from bench.dataplane.app import APPLICATIONS, STORE_VARIABLE, SUMS, probes_journal
from bench.dataplane.rows import Load, expected_sums
from bench.journal_specs import journal_change
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.client.state_client import StateClient
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.labels import CONTENT_TYPE_RECOVERY_LOG
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec

ROOT = "/bench/dataplane"
LOGS = "dataplane/logs"
DEADLINE_SECONDS = 900.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """The load that is measured."""

    api: str
    """Name of an application in `APPLICATIONS`."""
    store: str = "sqlite"
    shards: int = 1
    """Each on a member of its own."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """The time in which shards read what was waiting, and the processor time meanwhile."""

    rows: int
    seconds: float
    member_cpu_seconds: float
    broker_cpu_seconds: float

    @property
    def rows_per_second(self) -> float:
        """Of all shards together."""
        return self.rows / self.seconds


class Brokerage:
    """An etcd and a broker, with journals of rows that any number of cases read."""

    def __init__(self, directory: Path, etcd: str, broker: EmbeddedBrokerProcess) -> None:
        self.directory = directory
        self.etcd = etcd
        self.broker = broker
        self._lives = 0

    @staticmethod
    @contextmanager
    def running(directory: Path) -> Iterator[Brokerage]:
        """Start both; end them with the block."""
        with (
            EmbeddedEtcdProcess(directory / "etcd", listen="tcp") as etcd,
            EmbeddedBrokerProcess(directory / "broker") as broker,
        ):
            yield Brokerage(directory, etcd.endpoint, broker)

    def preload(self, load: Load, shards: int) -> list[str]:
        """Write a load for each shard, unless that was done before; return the journals."""
        journals = [
            f"dataplane/{load.content_type.rpartition('/')[2]}-{load.rows}/rows/part-{part:03d}"
            for part in range(shards)
        ]
        asyncio.run(self._preload(load, journals))
        return journals

    async def _preload(self, load: Load, journals: Sequence[str]) -> None:
        async with JournalClient(self.broker.address) as client:
            for journal in journals:
                await client.apply([journal_change(journal, load.content_type)])
                if await client.write_head(journal) == 0:
                    for content in load.contents():
                        await client.append(journal, content)

    @contextmanager
    def members(self, case: Case) -> Iterator[Members]:
        """Run the members of a case."""
        self._lives += 1
        with ExitStack() as resources:
            members = Members(self, case)
            for index in range(case.shards):
                resources.callback(members.start(f"member-{self._lives}-{index}").stop)
            members.wait_until_ready()
            yield members


@dataclass(slots=True)
class Members:
    """The members of a case. Shards that they served are gone when a call returns."""

    of: Brokerage
    case: Case
    processes: list[EmbeddedMemberProcess] = field(default_factory=list)
    _applied: int = 0

    def start(self, suffix: str) -> EmbeddedMemberProcess:
        """Start one member, which takes one shard."""
        arguments = ["--etcd", self.of.etcd, "--broker", self.of.broker.address]
        arguments += ["--root", f"{ROOT}/{suffix.rpartition('-')[0]}", "--suffix", suffix]
        arguments += ["--port", "0", "--limit", "1", "--log-level", "warning"]
        arguments += ["--state-dir", str(self.of.directory / suffix)]
        arguments += ["--drain-seconds", "0", "--drain-alone-seconds", "0"]
        process = EmbeddedMemberProcess(
            APPLICATIONS[self.case.api],
            arguments,
            log_file=self.of.directory / f"{suffix}.log",
            variables={STORE_VARIABLE: self.case.store},
        )
        self.processes.append(process)
        return process

    def wait_until_ready(self) -> None:
        """Wait until every member serves."""
        for process in self.processes:
            process.wait_until_ready()

    def consume(self, journals: Sequence[str], rows: int) -> Consumed:
        """Have a new shard read each journal through; return the time from the apply on.

        Args:
            journals: One a member.
            rows: In each journal; the sums must be theirs.
        """
        return asyncio.run(self._consume(journals, rows))

    async def _consume(self, journals: Sequence[str], rows: int) -> Consumed:
        specs = await self.specs(journals)
        heads = await self._heads(journals)
        members, broker = self._cpu_seconds()
        began = time.perf_counter()
        async with self.client() as client:
            await client.apply([ApplyRequest.Change(upsert=spec) for spec in specs])
            async with TaskGroup() as group:
                for spec in specs:
                    journal = spec.sources[0].journal
                    reading = self._read_through(client, spec.id, journal, heads[journal])
                    group.start_soon(reading, name=spec.id)
            seconds = time.perf_counter() - began
            members_after, broker_after = self._cpu_seconds()
            for spec in specs:
                found = await self._sums(client, spec.id)
                assert found == expected_sums(rows), f"{self.case}: not exactly once"
            await self.remove(client, specs)
        return Consumed(rows * len(specs), seconds, members_after - members, broker_after - broker)

    def client(self) -> ShardClient:
        """Return a client of the first member."""
        return ShardClient(self.processes[0].wait_until_ready(), timeout_seconds=DEADLINE_SECONDS)

    async def specs(self, journals: Sequence[str]) -> list[ShardSpec]:
        """Make recovery logs, and return a new shard for each journal."""
        self._applied += 1
        specs = []
        async with JournalClient(self.of.broker.address) as client:
            for part, journal in enumerate(journals):
                name = f"{self.processes[0].pid}-{self._applied}/part-{part:03d}"
                log = journal_change(f"{LOGS}/{name}", CONTENT_TYPE_RECOVERY_LOG)
                probes = journal_change(probes_journal(journal), NDJSON)
                await client.apply([log, probes])
                spec = ShardSpec(
                    id=name,
                    sources=[ShardSpec.Source(journal=journal)],
                    recovery_log_prefix=LOGS,
                    hint_prefix="/bench/hints",
                    hint_backups=1,
                    max_txn_duration=Duration(seconds=1),
                )
                specs.append(spec)
        return specs

    async def remove(self, client: ShardClient, specs: Sequence[ShardSpec]) -> None:
        """Remove shards, and wait until no member has them."""
        await client.apply(
            [ApplyRequest.Change(delete=spec.id, expect_mod_revision=-1) for spec in specs]
        )
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (await client.list()).shards and time.monotonic() < deadline:  # noqa: ASYNC110 - a list tells of no change
            await asyncio.sleep(_POLL_SECONDS)

    async def wait_for_primary(self, client: ShardClient, shard: str) -> str:
        """Return the address of a shard's primary once it has one."""
        while True:
            for listed in (await client.list()).shards:
                for endpoint, status in zip(listed.route.endpoints, listed.status, strict=True):
                    if listed.spec.id == shard and status.code == ReplicaStatus.FAILED:
                        raise RuntimeError(f"{shard} failed: {list(status.errors)}")
                    if listed.spec.id == shard and status.code == ReplicaStatus.PRIMARY:
                        return endpoint
            await asyncio.sleep(_POLL_SECONDS)

    async def _heads(self, journals: Sequence[str]) -> dict[str, int]:
        async with JournalClient(self.of.broker.address) as client:
            return {journal: await client.write_head(journal) for journal in journals}

    async def _read_through(
        self, client: ShardClient, shard: str, journal: str, offset: int
    ) -> None:
        await self.wait_for_primary(client, shard)
        await client.wait_read_through(shard, {journal: offset}, timeout_seconds=DEADLINE_SECONDS)

    async def _sums(self, client: ShardClient, shard: str) -> dict[str, tuple[int, int]]:
        address = await self.wait_for_primary(client, shard)
        async with StateClient(address) as states:
            parts = [part.arrow async for part in states.scan(shard)]
        table = pa.ipc.open_stream(b"".join(parts)).read_all()
        return dict(_entry(self.case.store, row) for row in table.to_pylist())

    def _cpu_seconds(self) -> tuple[float, float]:
        members = [cpu_seconds(process.pid) for process in self.processes]
        return sum(members), cpu_seconds(self.of.broker.pid)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has spent."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _entry(store: str, row: dict[str, Any]) -> tuple[str, tuple[int, int]]:
    match store:
        case "rocksdb":
            n, total = SUMS.unpack(row["value"])
            return row["key"].decode(), (n, total)
        case "json":
            n, total = json.loads(row["value"])
            return row["key"], (n, total)
    return row["k"], (row["n"], row["total"])
