"""The parts of the benchmark that run members, each on servers of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.keyed import spark
from bench.keyed.app import STORM_END
from bench.keyed.cluster import (
    Load,
    Members,
    Probes,
    begin_peak,
    disk_mib,
    log_of,
    member_cpu,
    memory_mib,
    peak_mib,
    percentile,
)
from bench.report import Params, emit
from broadsheet.consumer.client import KeyedClient
from broadsheet.wire.shard_pb2 import ReplicaStatus

BENCH = "keyed"
RATE, RATE_KEYS = 1_000, 50_000
"""Of Spark's own benchmark of the operator."""
SHARD, OTHER = "totals", "other"
_READY = (ReplicaStatus.PRIMARY,)
_STOOD_BY = (ReplicaStatus.PRIMARY, ReplicaStatus.STANDBY)
_REGISTERED_PER_SECOND = 3_000
"""Timers that even a machine with other work registers: they are due when all are there."""
_SETTLE_SECONDS = 2.0
"""Of undisturbed probes before something happens to them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of what is measured."""

    rows: int
    keys: int
    """Of the state that is large."""
    timers: int
    trials: int
    """Fail-overs."""
    seconds: float
    """Of the trickle whose latency is measured."""


@contextmanager
def _members() -> Iterator[Members]:
    with (
        tempfile.TemporaryDirectory(prefix="keyed-") as directory,
        Members.running(Path(directory)) as members,
    ):
        yield members


def _apart(measure: Callable[..., None], *given: float) -> None:
    """Measure in a process of its own: Spark forks to start its JVM, which fails now and then beside gRPC's threads.

    Raises:
        RuntimeError: it failed, and has told why on standard error.
    """
    process = multiprocessing.get_context("spawn").Process(target=measure, args=given)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{measure.__name__} of Spark ended with {process.exitcode}")


def rows(plan: Plan) -> None:
    """Print `rows_per_s` and `cpu_us_per_row` of rows that wait, over 1,000 and over 100,000 keys."""
    for keys in (1_000, 100_000):
        with _members() as members:
            asyncio.run(_rows(members, plan, keys))
        # Spark takes so many times as long for a row; its batches must not be so short that their fixed costs count.
        _apart(spark.rows, plan.rows // 10, keys)


async def _rows(members: Members, plan: Plan, keys: int) -> None:
    members.start("life-0")
    source = f"{SHARD}/load"
    await members.apply("life-0", SHARD, [source])
    await members.wait_for("life-0", SHARD, _READY)
    load = Load(members, source)
    await load.append(keys)
    await members.read_through("life-0", SHARD, source)
    began, cpu = time.monotonic(), member_cpu(members, "life-0")
    for _ in range(max(1, plan.rows // keys)):
        await load.append(keys)
    await members.read_through("life-0", SHARD, source)
    seconds, cpu = time.monotonic() - began, member_cpu(members, "life-0") - cpu
    count = max(1, plan.rows // keys) * keys
    emit(BENCH, "rows_per_s", count / seconds, "1/s", system="broadsheet", keys=keys, rows=count)
    emit(BENCH, "cpu_us_per_row", cpu / count * 1e6, "us", system="broadsheet", keys=keys)


def latency(plan: Plan) -> None:
    """Print the latency of rows at 1,000 a second over 50,000 keys, from when each is due to its committed answer."""
    with _members() as members:
        asyncio.run(_latency(members, plan))
    _apart(spark.latency, plan.seconds, RATE, RATE_KEYS)


async def _latency(members: Members, plan: Plan) -> None:
    rate, keys = RATE, RATE_KEYS
    params: Params
    members.start("life-0")
    source = f"{SHARD}/live"
    await members.apply("life-0", SHARD, [source])
    await members.wait_for("life-0", SHARD, _READY)
    probes = Probes(members, source, keys=keys)
    async with probes.running(rate):
        await probes.wait_for(after=time.monotonic() + _SETTLE_SECONDS)
        begin, cpu = time.monotonic(), member_cpu(members, "life-0")
        await probes.wait_for(after=begin + plan.seconds)
        spent = (member_cpu(members, "life-0") - cpu) / plan.seconds
        found = probes.latencies(begin, begin + plan.seconds)
        reads = await _look_ups(members, plan)
    for percent in (50, 99):
        params = {"rows_per_s": rate, "keys": keys, "look_ups": len(reads)}
        emit(BENCH, f"state_read_p{percent}_ms", percentile(reads, percent) * 1000, "ms", **params)
    for percent in (50, 99):
        value = percentile(found, percent) * 1000
        params = {"system": "broadsheet", "rows_per_s": rate, "keys": keys, "rows": len(found)}
        emit(BENCH, f"latency_p{percent}_ms", value, "ms", **params)
    emit(BENCH, "latency_cpu", spent * 100, "%", system="broadsheet", rows_per_s=rate)


async def _look_ups(members: Members, plan: Plan) -> list[float]:
    """Return how long look-ups of random keys take, seconds each, one after the other, while rows come in."""
    chance, taken = random.Random(0), list[float]()
    end = time.monotonic() + plan.seconds
    async with KeyedClient(members.processes["life-0"].wait_until_ready()) as client:
        while (began := time.monotonic()) < end:
            await client.get(SHARD, [(chance.randrange(RATE_KEYS),)])
            taken.append(time.monotonic() - began)
    return taken


def keys(plan: Plan) -> None:
    """Print what many keys cost, each with a TTL: rate, memory and disk; and how long they have no primary."""
    with _members() as members:
        asyncio.run(_keys(members, plan))


async def _keys(members: Members, plan: Plan) -> None:
    load_from, live = f"{SHARD}/load", f"{SHARD}/live"
    params = {"keys": plan.keys}
    one = members.start("life-0")
    await members.apply("life-0", SHARD, [load_from, live], standbys=1)
    await members.wait_for("life-0", SHARD, _READY)
    began, cpu = time.monotonic(), member_cpu(members, "life-0")
    await Load(members, load_from).append(plan.keys)
    await members.read_through("life-0", SHARD, load_from)
    emit(BENCH, "keys_rows_per_s", plan.keys / (time.monotonic() - began), "1/s", **params)
    cpu = (member_cpu(members, "life-0") - cpu) / plan.keys
    emit(BENCH, "keys_cpu_us_per_row", cpu * 1e6, "us", **params)
    emit(BENCH, "member_rss_mb", memory_mib(one.pid), "MiB", role="primary", **params)
    emit(BENCH, "member_disk_mb", disk_mib(members.directory("life-0")), "MiB", **params)
    log_bytes = await members.write_head(log_of(SHARD))
    emit(BENCH, "log_bytes_per_key", log_bytes / plan.keys, "B", **params)
    began = time.monotonic()
    two = members.start("life-1")
    await members.wait_for("life-1", SHARD, _STOOD_BY)
    await _followed(members, "life-1")
    emit(BENCH, "standby_ready_s", time.monotonic() - began, "s", **params)
    emit(BENCH, "member_rss_mb", memory_mib(two.pid), "MiB", role="standby", **params)
    emit(BENCH, "standby_disk_mb", disk_mib(members.directory("life-1")), "MiB", **params)
    await _fail_over(members, plan, live)


async def _fail_over(members: Members, plan: Plan, live: str) -> None:
    """Kill the primary, again and again; each time another member becomes the standby before the next."""
    probes = Probes(members, live, keys=plan.keys)
    seconds = []
    async with probes.running(200):
        for trial in range(plan.trials):
            primary = members.processes.pop(f"life-{trial}")
            await probes.wait_for(after=time.monotonic() + _SETTLE_SECONDS)
            killed = time.monotonic()
            primary.send_signal(signal.SIGKILL)
            answer = await probes.wait_for(after=killed, not_by=primary.pid)
            seconds.append(answer.at - killed)
            if trial + 1 < plan.trials:
                name = f"life-{trial + 2}"
                members.start(name)
                await members.wait_for(name, SHARD, _STOOD_BY)
                await _followed(members, name)
    params: Params = {"keys": plan.keys, "trials": plan.trials, "kill": "member"}
    emit(BENCH, "failover_p50_s", statistics.median(seconds), "s", **params)
    emit(BENCH, "failover_max_s", max(seconds), "s", **params)


async def _followed(members: Members, name: str) -> None:
    """Wait until a standby has its index: until then a scan of it is refused."""
    while not await members.shows_state(name, SHARD):  # noqa: ASYNC110 - a scan tells of no change
        await asyncio.sleep(0.2)


def storm(plan: Plan) -> None:
    """Print how long a million timers take that are due at once, and another shard's latency meanwhile."""
    with _members() as members:
        asyncio.run(_storm(members, plan))


async def _storm(members: Members, plan: Plan) -> None:
    member = members.start("life-0")
    source, live = f"{SHARD}/load", f"{OTHER}/live"
    await members.apply("life-0", SHARD, [source])
    await members.apply("life-0", OTHER, [live])
    await members.wait_for("life-0", SHARD, _READY)
    await members.wait_for("life-0", OTHER, _READY)
    probes = Probes(members, live, keys=1_000)
    load = Load(members, source)
    due = int(time.time() * 1000) + max(20_000, plan.timers * 1000 // _REGISTERED_PER_SECOND)
    await load.append(plan.timers, due=due)
    await load.append(1, due=due + 1, begin=STORM_END)
    await members.read_through("life-0", SHARD, source)
    wait_seconds = due / 1000 - time.time()
    assert wait_seconds > _SETTLE_SECONDS, "the timers were due before all were registered"
    async with probes.running(200):
        await probes.wait_for(after=time.monotonic() + _SETTLE_SECONDS)
        calm_end = time.monotonic() + due / 1000 - time.time()
        calm_begin = time.monotonic()
        await asyncio.sleep(calm_end - calm_begin)
        began, rss = time.monotonic(), memory_mib(member.pid)
        begin_peak(member.pid)
        cpu = member_cpu(members, "life-0")
        end = await probes.wait_for_probe(due + 1)
        cpu = (member_cpu(members, "life-0") - cpu) / plan.timers
        peak = peak_mib(member.pid)
        calm = probes.latencies(calm_begin, calm_end)
        stormy = probes.latencies(began, end.at)
    params = {"timers": plan.timers}
    emit(BENCH, "timer_storm_s", end.at - began, "s", **params)
    emit(BENCH, "timer_storm_cpu_us_per_timer", cpu * 1e6, "us", **params)
    emit(BENCH, "timer_storm_peak_mb", peak, "MiB", before_mb=round(rss), **params)
    emit(BENCH, "timer_storm_other_p99_ms", percentile(stormy, 99) * 1000, "ms", **params)
    emit(BENCH, "timer_storm_other_p50_ms", percentile(stormy, 50) * 1000, "ms", **params)
    emit(BENCH, "timer_calm_other_p99_ms", percentile(calm, 99) * 1000, "ms", **params)
