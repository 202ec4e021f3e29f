"""Latency of a row at a share of the maximum rate: publish, transaction, derived message read committed.

The maximum is measured first: rows are published as fast as the broker takes them, while the shard consumes them, and
the clock stops when it has read the last. So it includes what publishing costs on the same machine. Then rows are
published at each share of it, a few at each tick, and one probe at each; a probe's latency begins when its tick was
due, and ends when the message that the shard publishes for it is read, committed. Probes commit by themselves, as all
these rows do.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from bench.dataplane.app import SEEN, probes_journal
from bench.dataplane.cluster import DEADLINE_SECONDS, Brokerage, Case, Members
from bench.dataplane.rows import RowWriter
from bench.journal_specs import journal_change
from bench.report import emit
from broadsheet.consumer.client import ShardClient
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import Flags
from broadsheet.runtime.interpreter import serve_only
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import AppendResponse
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

JOURNAL = "dataplane/live/rows/part-000"
LOAD_PERCENTS = (25, 50, 75, 90)
TICK_SECONDS = 0.005
"""200 probes a second."""
PERCENTILES = (50, 99)
_BURST_ROWS = 2_000
_IN_FLIGHT = 8
"""Appends of the flat-out publisher."""


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """The duration of the measurement."""

    seconds: float = 10.0
    """Of each share, and of the maximum."""
    load_percents: Sequence[int] = LOAD_PERCENTS


def run(bench: str, plan: LatencyPlan) -> None:
    """Measure and print `rows_per_s_max`, then `latency_p50_ms` and `latency_p99_ms` at each share of it."""
    serve_only()
    with (
        tempfile.TemporaryDirectory(prefix="dataplane-") as directory,
        Brokerage.running(Path(directory)) as brokerage,
        brokerage.members(Case("probed")) as members,
    ):
        asyncio.run(_run(bench, plan, brokerage, members))


async def _run(bench: str, plan: LatencyPlan, brokerage: Brokerage, members: Members) -> None:
    async with (
        JournalClient(brokerage.broker.address) as journals,
        AppendService(journals) as appends,
        members.client() as shards,
    ):
        await journals.apply([journal_change(JOURNAL)])
        specs = await members.specs([JOURNAL])
        await shards.apply([ApplyRequest.Change(upsert=spec) for spec in specs])
        await members.wait_for_primary(shards, specs[0].id)
        live = _Live(journals, appends, shards, specs[0])
        async with TaskGroup() as group:
            group.start_soon(live.read_probes(), name="read probes")
            await live.saturate(plan.seconds / 3)  # Warms up.
            highest = await live.saturate(plan.seconds)
            emit(bench, "rows_per_s_max", highest, "1/s", api="batch", store="sqlite")
            for percent in plan.load_percents:
                latencies = await live.trickle(highest * percent / 100, plan.seconds)
                _emit(bench, latencies, percent, highest)
            group.stop()
        await members.remove(shards, specs)


def _emit(bench: str, latencies: Sequence[float], percent: int, highest: float) -> None:
    ordered = sorted(latencies)
    for percentile in PERCENTILES:
        index = min(len(ordered) - 1, len(ordered) * percentile // 100)
        emit(
            bench,
            f"latency_p{percentile}_ms",
            ordered[index] * 1000.0,
            "ms",
            load_percent=percent,
            rows_per_s=round(highest * percent / 100),
            probes=len(ordered),
        )


class _Live:
    """Rows that are published now, the shard that consumes them, and the probes that come back."""

    def __init__(
        self,
        journals: JournalClient,
        appends: AppendService,
        shards: ShardClient,
        spec: ShardSpec,
    ) -> None:
        self._journals = journals
        self._appends = appends
        self._shards = shards
        self._shard = spec.id
        self._writer = RowWriter()
        self._probes = 0
        self._due: dict[str, float] = {}
        self._latencies: list[float] = []

    async def saturate(self, seconds: float) -> float:
        """Publish as much as the broker takes; return rows a second that the shard has consumed."""
        began, rows = time.monotonic(), 0
        in_flight: deque[asyncio.Future[AppendResponse]] = deque()
        while time.monotonic() - began < seconds:
            lines = self._writer.json_lines(_BURST_ROWS, Flags.OUTSIDE_TXN)
            in_flight.append(asyncio.wrap_future(self._append(lines.tobytes())))
            rows += _BURST_ROWS
            if len(in_flight) >= _IN_FLIGHT:
                await in_flight.popleft()
        await asyncio.gather(*in_flight)
        await self._wait_until_consumed()
        return rows / (time.monotonic() - began)

    async def trickle(self, rows_per_second: float, seconds: float) -> list[float]:
        """Publish rows at a rate, and a probe at each tick; return the latencies of the probes, seconds."""
        self._latencies = []
        began, rows, ticks = time.monotonic(), 0, round(seconds / TICK_SECONDS)
        for tick in range(1, ticks + 1):
            due = began + tick * TICK_SECONDS
            await asyncio.sleep(due - time.monotonic())
            wanted = round(rows_per_second * tick * TICK_SECONDS)
            lines = self._writer.json_lines(wanted - rows, Flags.OUTSIDE_TXN).tobytes()
            rows = wanted
            self._append(lines + self._probe(due))
        await self._wait_until_consumed()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self._due and time.monotonic() < deadline:  # noqa: ASYNC110 - bounded
            await asyncio.sleep(TICK_SECONDS)
        assert not self._due, f"{len(self._due)} probes did not come back"
        return self._latencies

    async def read_probes(self) -> None:
        """Read what the shard publishes."""
        batches = read_committed(self._journals, probes_journal(JOURNAL), SEEN, block=True)
        async with aclosing(batches):
            async for batch in batches:
                now = time.monotonic()
                for message in batch.messages():
                    if message.k:
                        self._latencies.append(now - self._due.pop(message.k))

    def _append(self, content: bytes) -> Future[AppendResponse]:
        return self._appends.append(JOURNAL, [content])

    def _probe(self, due: float) -> bytes:
        key = f"probe-{self._probes}"
        self._probes += 1
        self._due[key] = due
        line = self._writer.json_lines(1, Flags.OUTSIDE_TXN).tobytes()
        head, tail = line.split(b'"key-', 1)
        return head + b'"%s"' % key.encode() + tail.split(b'"', 1)[1]

    async def _wait_until_consumed(self) -> None:
        head = await self._journals.write_head(JOURNAL)
        await self._shards.wait_read_through(
            self._shard, {JOURNAL: head}, timeout_seconds=DEADLINE_SECONDS
        )
