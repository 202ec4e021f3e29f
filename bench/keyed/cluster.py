"""An etcd, a broker and members that serve keyed shards, each a process; loads of rows, and probes that come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from google.protobuf.duration_pb2 import Duration

from bench.dataplane.cluster import Brokerage, cpu_seconds
from bench.journal_specs import journal_change
from bench.keyed.app import OUTPUT
from broadsheet.consumer.client import ShardClient, StateClient
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowMessage, ArrowType
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import (
    CLOCK_UNITS_PER_MESSAGE,
    Flags,
    MessageClock,
    build_uuid,
    new_producer_id,
)
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.labels import CONTENT_TYPE_RECOVERY_LOG
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec

ROOT = "/bench/keyed"
LOGS = "keyed/logs"
DEADLINE_SECONDS = 3600.0
_POLL_SECONDS = 0.05
_MESSAGE_ROWS = 20_000
_STRIDE = 7_368_787
"""Prime: rows come in no order of their keys."""


@dataclass(slots=True)
class Members:
    """The members of one group, by name."""

    of: Brokerage
    application: str = "bench.keyed.app:create"
    processes: dict[str, EmbeddedMemberProcess] = field(default_factory=dict)

    @staticmethod
    @contextmanager
    def running(directory: Path, application: str = "bench.keyed.app:create") -> Iterator[Members]:
        """Start etcd and a broker; end them, and all members, with the block."""
        with Brokerage.running(directory) as brokerage, ExitStack() as ends:
            members = Members(brokerage, application)
            ends.callback(members.stop)
            yield members

    def start(self, name: str) -> EmbeddedMemberProcess:
        """Start a member in a zone of its own, and wait until it serves."""
        arguments = ["--etcd", self.of.etcd, "--broker", self.of.broker.address]
        arguments += ["--root", ROOT, "--suffix", name, "--zone", f"zone-{name}"]
        arguments += ["--port", "0", "--limit", "4", "--log-level", "warning"]
        arguments += ["--state-dir", str(self.directory(name))]
        arguments += ["--drain-seconds", "0", "--drain-alone-seconds", "0"]
        # Fail-overs are measured one after the other: a shard must not be suspected of killing its members.
        arguments += ["--young-deaths-max", "0"]
        process = EmbeddedMemberProcess(
            self.application, arguments, log_file=self.of.directory / f"{name}.log"
        )
        self.processes[name] = process
        process.wait_until_ready()
        return process

    def stop(self) -> None:
        """Stop all."""
        for process in self.processes.values():
            process.stop()

    def directory(self, name: str) -> Path:
        """Return where a member has its shards' files."""
        return self.of.directory / f"state-{name}"

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[ShardClient]:
        """Return a client of a member."""
        address = self.processes[name].wait_until_ready()
        async with ShardClient(address, timeout_seconds=DEADLINE_SECONDS) as client:
            yield client

    async def apply(self, name: str, shard: str, sources: Sequence[str], standbys: int = 0) -> None:
        """Make a shard, its log, its sources and the journal of its output."""
        arrow = [journal_change(each, _content_type(each)) for each in sources]
        async with JournalClient(self.of.broker.address) as journals:
            log = journal_change(log_of(shard), CONTENT_TYPE_RECOVERY_LOG)
            await journals.apply([*arrow, log, journal_change(OUTPUT)])
        spec = ShardSpec(
            id=shard,
            sources=[ShardSpec.Source(journal=each) for each in sorted(sources)],
            recovery_log_prefix=LOGS,
            hint_prefix="/bench/hints",
            hint_backups=1,
            hot_standbys=standbys,
            max_txn_duration=Duration(seconds=1),
        )
        async with self.client(name) as client:
            await client.apply([ApplyRequest.Change(upsert=spec)])

    async def wait_for(self, name: str, shard: str, statuses: Sequence[int]) -> None:
        """Wait until the replicas of a shard have these statuses, the primary first."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        async with self.client(name) as client:
            while time.monotonic() < deadline:
                for listed in (await client.list()).shards:
                    found = [each.code for each in listed.status]
                    if listed.spec.id == shard and found == list(statuses):
                        return
                    if listed.spec.id == shard and ReplicaStatus.FAILED in found:
                        raise RuntimeError(f"{shard} failed: {listed.status}")
                await asyncio.sleep(_POLL_SECONDS)
        raise TimeoutError(f"{shard} has not become {statuses}")

    async def read_through(self, name: str, shard: str, journal: str) -> None:
        """Wait until a shard has read what a journal has now."""
        async with JournalClient(self.of.broker.address) as journals, self.client(name) as client:
            head = await journals.write_head(journal)
            await client.wait_read_through(shard, {journal: head}, timeout_seconds=DEADLINE_SECONDS)

    async def shows_state(self, name: str, shard: str) -> bool:
        """Tell whether a standby answers a scan of what was committed by now: it needs an index for that."""
        async with StateClient(self.processes[name].wait_until_ready()) as client:
            scan = client.scan(shard, columns=("key",), max_staleness_seconds=30.0)
            async with aclosing(scan) as found:
                try:
                    await anext(found)
                except ServiceError:
                    return False
                return True

    async def write_head(self, journal: str) -> int:
        """Return how many bytes a journal has had."""
        async with JournalClient(self.of.broker.address) as journals:
            return await journals.write_head(journal)


def log_of(shard: str) -> str:
    """Return the recovery log of a shard."""
    return f"{LOGS}/{shard}"


def _content_type(journal: str) -> str:
    return NDJSON if journal.endswith("live") else ARROW_STREAM


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


def begin_peak(pid: int) -> None:
    """Have `peak_mib` count from now on. See proc_pid_clear_refs(5)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pid: int) -> float:
    """Return the most resident memory of a process since `begin_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} tells no peak of its memory")


def disk_mib(directory: Path) -> float:
    """Return what a directory takes on disk; a file with several names counts once."""
    found = {}
    for path in directory.rglob("*"):
        try:
            status = path.stat()
        except OSError:
            continue  # RocksDB removes files at any time.
        found[status.st_ino] = status.st_blocks * 512
    return sum(found.values()) / (1 << 20)


class Load:
    """Rows of many keys, one each, in Arrow messages of 20,000."""

    def __init__(self, members: Members, journal: str) -> None:
        self._broker = members.of.broker.address
        self._journal = journal
        self._producer = new_producer_id()
        self._clock = 1 << 58

    async def append(self, keys: int, *, due: int | None = None, begin: int = 0) -> None:
        """Append a row for each key of [0, keys), in no order.

        Args:
            keys: How many.
            due: Time of a timer of each, epoch milliseconds.
            begin: Added to each key.
        """
        async with JournalClient(self._broker) as journals:
            for first in range(0, keys, _MESSAGE_ROWS):
                numbers = np.arange(first, min(keys, first + _MESSAGE_ROWS), dtype=np.int64)
                columns = {"key": numbers * _STRIDE % keys + begin, "n": numbers % 9 + 1}
                if due is not None:
                    columns["due"] = np.full(len(numbers), due)
                await journals.append(self._journal, self._transaction(pa.record_batch(columns)))

    def _transaction(self, batch: pa.RecordBatch) -> bytes:
        frame, encode = FixedFraming().frame, ArrowType().encode
        message = build_uuid(self._producer, self._tick(), Flags.CONTINUE_TXN)
        done = build_uuid(self._producer, self._tick(), Flags.ACK_TXN)
        return frame(encode(ArrowMessage(batch, message))) + frame(done)

    def _tick(self) -> int:
        self._clock += CLOCK_UNITS_PER_MESSAGE
        return self._clock


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a probe, as a read-committed reader learnt it."""

    probe: int
    pid: int
    at: float
    """Monotonic seconds."""


class Probes:
    """Publishes rows at a rate, each of which is answered, and times the answers."""

    def __init__(self, members: Members, journal: str, *, keys: int, first: int = 0) -> None:
        """Take where to publish, and which keys.

        Args:
            members: Of the shard.
            journal: Source of the shard.
            keys: Rows are of so many keys.
            first: The first key.
        """
        self._broker = members.of.broker.address
        self._journal = journal
        self._keys, self._first = keys, first
        self.due: dict[int, float] = {}
        """The times at which rows were due, monotonic seconds."""
        self.answers: list[Answer] = []
        self._arrived = asyncio.Event()

    @asynccontextmanager
    async def running(
        self, rows_per_second: float, *, tick_seconds: float = 0.005
    ) -> AsyncIterator[None]:
        """Publish and read while the block runs."""
        async with (
            JournalClient(self._broker) as journals,
            AppendService(journals) as appends,
            TaskGroup() as group,
        ):
            group.start_soon(self._read(journals), name="answers")
            publishing = self._publish(appends, rows_per_second, tick_seconds)
            group.start_soon(publishing, name="rows")
            yield
            group.stop()

    async def wait_for(self, *, after: float, not_by: int = 0) -> Answer:
        """Return the first answer after a time by another process than `not_by`."""
        seen = 0
        while True:
            self._arrived.clear()
            for answer in self.answers[seen:]:
                if answer.at > after and answer.pid != not_by:
                    return answer
            seen = len(self.answers)
            await self._arrived.wait()

    async def wait_for_probe(self, probe: int) -> Answer:
        """Return the answer to a probe that others publish."""
        seen = 0
        while True:
            self._arrived.clear()
            for answer in self.answers[seen:]:
                if answer.probe == probe:
                    return answer
            seen = len(self.answers)
            await self._arrived.wait()

    def latencies(self, begin: float, end: float) -> list[float]:
        """Return the seconds from when a row was due to its committed answer, of rows that were due in [begin, end).

        A row that has no answer counts as if it came now.
        """
        at = {answer.probe: answer.at for answer in self.answers}
        now = time.monotonic()
        return sorted(
            at.get(probe, now) - due for probe, due in self.due.items() if begin <= due < end
        )

    async def _publish(
        self, appends: AppendService, rows_per_second: float, tick_seconds: float
    ) -> None:
        clock = MessageClock()
        publisher = Publisher(clock, new_producer_id())
        began, rows, tick = time.monotonic(), 0, 0
        while True:
            tick += 1
            due = began + tick * tick_seconds
            await asyncio.sleep(due - time.monotonic())
            clock.update(time.time())
            for _ in range(max(0, round(rows_per_second * tick * tick_seconds) - rows)):
                rows += 1
                self.due[rows] = due
                key = self._first + rows * _STRIDE % self._keys
                row = {"key": key, "n": 1, "probe": rows}
                publisher.publish_committed(MappedJournal(self._journal, NDJSON), row, JsonType())
            for append in publisher.take_appends():
                # Without waiting: a row is published when it is due, however long those before it take.
                appends.append(append.journal, append.content)

    async def _read(self, journals: JournalClient) -> None:
        async for batch in read_committed(journals, OUTPUT, JsonType(), block=True):
            now = time.monotonic()
            self.answers += [
                Answer(message["probe"], message["pid"], now)
                for message, flags in zip(batch.messages(), batch.flags, strict=True)
                if flags != Flags.ACK_TXN
            ]
            self._arrived.set()


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return a percentile of ascending values."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def member_cpu(members: Members, name: str) -> float:
    """Return the processor seconds of a member so far."""
    return cpu_seconds(members.processes[name].pid)
