"""A shard that is split, and two that are merged, while rows come: how long they wait."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.disturbances import Disturbances, Longest
from bench.elastic.app import BYTES_OF_ROW, WORK_OF_ROW
from bench.elastic.plan import BENCH, Plan
from bench.keyed.cluster import DEADLINE_SECONDS, Answer, Load, Members, Probes, disk_mib
from bench.report import Params, emit
from broadsheet.consumer.client import ElasticClient
from broadsheet.journals.client import JournalClient
from broadsheet.wire.labels import FORK_OF, value_of
from broadsheet.wire.shard_pb2 import ReplicaStatus

SHARD: Final = "totals"
MEMBERS: Final = ("life-0", "life-1")
PROBES_PER_SECOND: Final = 40
"""Few enough that each is answered before the next: a wait is the split's."""
_LIVE: Final = f"{SHARD}/live"
_SETTLE_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.02
_SWITCH_SECONDS: Final = 0.5
"""Before and behind the moment at which keys have their new owner: what is due then waits for that alone."""


@dataclass(frozen=True, slots=True)
class _Trial:
    pause_seconds: float
    switch_seconds: float
    """Of the rows that were due when the keys had their new owner."""
    calm_seconds: float
    seconds: float
    """From the call until the keys have their new owner."""
    state_mib: float
    """On the disk, compressed."""
    disturbed: Longest


def measure(plan: Plan) -> None:
    """Print the figures of splits."""
    _print_trials("split", _split_under_traffic, plan)


def measure_merges(plan: Plan) -> None:
    """Print the figures of merges."""
    _print_trials("merge", _merge_under_traffic, plan)


def _print_trials(
    change: str, trial: Callable[[Members, Plan], Awaitable[_Trial]], plan: Plan
) -> None:
    trials = []
    for _ in range(plan.trials):
        with _members(plan.row_bytes) as members:
            trials.append(asyncio.run(_awaited(trial(members, plan))))
    state = statistics.median(each.state_mib for each in trials)
    params: Params = {
        "keys": plan.keys,
        "row_bytes": plan.row_bytes,
        "state_bytes": round(state * (1 << 20)),
        "trials": plan.trials,
        "rows_per_s": PROBES_PER_SECOND,
        "load": plan.load,
    }
    pauses = [each.pause_seconds for each in trials]
    params |= Longest.of(each.disturbed for each in trials).params()
    emit(BENCH, f"{change}_pause_p50_s", statistics.median(pauses), "s", **params)
    emit(BENCH, f"{change}_pause_max_s", max(pauses), "s", **params)
    switches = [each.switch_seconds for each in trials]
    emit(BENCH, f"{change}_switch_p50_s", statistics.median(switches), "s", **params)
    emit(BENCH, f"{change}_switch_max_s", max(switches), "s", **params)
    emit(BENCH, f"{change}_calm_max_s", max(each.calm_seconds for each in trials), "s", **params)
    seconds = statistics.median(each.seconds for each in trials)
    emit(BENCH, f"{change}_s", seconds, "s", **params)


async def _awaited(trial: Awaitable[_Trial]) -> _Trial:
    return await trial


def measure_speedup(plan: Plan) -> None:
    """Print how much more two halves of a shard do than the whole, each on a member of its own."""
    _measure_speedup(plan)
    # A hot shard is one whose rows are work.
    _measure_speedup(replace(plan, rows=plan.rows // 4), work_us=plan.row_work_us)


def _measure_speedup(plan: Plan, *, work_us: int = 0) -> None:
    before, after = [], []
    for _ in range(plan.trials):
        with _members(work_us=work_us) as members:
            whole, halves = asyncio.run(_rates(members, plan))
        before.append(whole)
        after.append(halves)
    params: Params = {
        "keys": plan.keys,
        "rows": plan.rows,
        "row_work_us": work_us,
        "trials": plan.trials,
        "members": len(MEMBERS),
        "load": plan.load,
    }
    ratios = [halves / whole for whole, halves in zip(before, after, strict=True)]
    emit(BENCH, "split_speedup", statistics.median(ratios), "ratio", **params)
    emit(BENCH, "split_whole_rows_per_s", statistics.median(before), "rows/s", **params)
    emit(BENCH, "split_halves_rows_per_s", statistics.median(after), "rows/s", **params)


async def _rates(members: Members, plan: Plan) -> tuple[float, float]:
    """Return rows a second of a shard, and of the two that it becomes, of rows that come as fast as they can."""
    source = f"{SHARD}/load"
    await members.apply(MEMBERS[0], SHARD, [source])
    await members.wait_for(MEMBERS[0], SHARD, (ReplicaStatus.PRIMARY,))
    load = Load(members, source)
    # What is only done once, such as the first append, and rows of all keys.
    await load.append(plan.keys)
    await members.read_through(MEMBERS[0], SHARD, source)
    whole = await _rate(members, load, source, [SHARD], plan)
    child = await _split(members)
    await _is_over(members)
    await _are_apart(members, child)
    halves = await _rate(members, load, source, [SHARD, child], plan)
    return whole, halves


async def _rate(
    members: Members, load: Load, source: str, shards: Sequence[str], plan: Plan
) -> float:
    begin = time.monotonic()
    rows = 0
    while rows < plan.rows:
        await load.append(min(plan.keys, plan.rows - rows))
        rows += min(plan.keys, plan.rows - rows)
    for shard in shards:
        await members.read_through(MEMBERS[0], shard, source)
    return rows / (time.monotonic() - begin)


async def _is_over(members: Members) -> None:
    """Wait until both halves have removed the rows of the other's keys."""
    address = members.processes[MEMBERS[0]].wait_until_ready()
    deadline = time.monotonic() + DEADLINE_SECONDS
    async with ElasticClient(address) as elastic:
        while await elastic.splits():
            if time.monotonic() > deadline:
                raise TimeoutError("the split is not over")
            await asyncio.sleep(_POLL_SECONDS)


async def _are_apart(members: Members, child: str) -> None:
    """Wait until each half has a member of its own."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    async with members.client(MEMBERS[0]) as client:
        while time.monotonic() < deadline:
            listed = {each.spec.id: each for each in (await client.list()).shards}
            places = {
                each.route.members[0].suffix
                for shard, each in listed.items()
                if shard in (SHARD, child) and each.route.primary == 0
            }
            if len(places) == 2:
                return
            await asyncio.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{SHARD} and {child} are on one member")


@contextmanager
def _members(row_bytes: int = 0, work_us: int = 0) -> Iterator[Members]:
    os.environ |= {BYTES_OF_ROW: str(row_bytes), WORK_OF_ROW: str(work_us)}
    with (
        tempfile.TemporaryDirectory(prefix="elastic-") as directory,
        Members.running(Path(directory), "bench.elastic.app:create") as members,
    ):
        for name in MEMBERS:
            members.start(name)
        yield members


async def _split_under_traffic(members: Members, plan: Plan) -> _Trial:
    await _load(members, plan)
    return await _under_traffic(members, plan, lambda: _split(members))


async def _merge_under_traffic(members: Members, plan: Plan) -> _Trial:
    await _load(members, plan)
    child = await _split(members)
    await _is_over(members)
    await _are_apart(members, child)
    return await _under_traffic(members, plan, lambda: _merge(members, child))


async def _load(members: Members, plan: Plan) -> None:
    """Have a shard with rows of all keys."""
    loaded = f"{SHARD}/load"
    await members.apply(MEMBERS[0], SHARD, [loaded, _LIVE])
    await members.wait_for(MEMBERS[0], SHARD, (ReplicaStatus.PRIMARY,))
    await Load(members, loaded).append(plan.keys)
    await members.read_through(MEMBERS[0], SHARD, loaded)


async def _under_traffic(
    members: Members, plan: Plan, change: Callable[[], Awaitable[object]]
) -> _Trial:
    """Return how long rows waited while something is done, and how long before."""
    state_mib = sum(disk_mib(members.directory(name)) for name in MEMBERS)
    probes = Probes(members, _LIVE, keys=plan.keys)
    with Disturbances(members.of.directory) as disturbances:
        return await _timed(probes, change, disturbances, state_mib)


async def _timed(
    probes: Probes,
    change: Callable[[], Awaitable[object]],
    disturbances: Disturbances,
    state_mib: float,
) -> _Trial:
    async with probes.running(PROBES_PER_SECOND, tick_seconds=1 / PROBES_PER_SECOND):
        # The first rows wait for what is only done once.
        calm = time.monotonic() + _SETTLE_SECONDS
        await probes.wait_for(after=calm + _SETTLE_SECONDS)
        begin = time.monotonic()
        await change()
        served = time.monotonic()
        await probes.wait_for(after=served + _SETTLE_SECONDS)
        end = served + _SETTLE_SECONDS / 2
        pause = probes.latencies(begin, end)[-1]
        before = probes.latencies(calm, begin)[-1]
        switched = _switched_at(probes.answers, before=begin, behind=end)
        switch = probes.latencies(switched - _SWITCH_SECONDS, switched + _SWITCH_SECONDS)[-1]
        disturbed = disturbances.longest(since=begin, until=end)
    return _Trial(pause, switch, before, served - begin, state_mib, disturbed)


def _switched_at(answers: Sequence[Answer], *, before: float, behind: float) -> float:
    """Return when the member that has come gave its first answer, or the one that has gone its last."""
    old = {each.pid for each in answers if each.at < before}
    new = {each.pid for each in answers if each.at > behind}
    if new - old:
        return min(each.at for each in answers if each.pid in new - old)
    return max(each.at for each in answers if each.pid in old - new)


async def _merge(members: Members, child: str) -> None:
    """Merge a shard and its child; return once the one has the keys of both."""
    address = members.processes[MEMBERS[0]].wait_until_ready()
    deadline = time.monotonic() + DEADLINE_SECONDS
    async with ElasticClient(address) as elastic:
        await elastic.merge(SHARD, child)
        while await elastic.merges():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{SHARD} and {child} are not merged")
            await asyncio.sleep(_POLL_SECONDS)


async def _split(members: Members) -> str:
    """Split the shard in the middle; return the new shard's id once it serves."""
    address = members.processes[MEMBERS[0]].wait_until_ready()
    broker = members.of.broker.address
    async with ElasticClient(address) as elastic, JournalClient(broker) as journals:
        child = (await elastic.split(SHARD, journals)).child.id
    await _serves(members, child)
    return child


async def _serves(members: Members, child: str) -> None:
    """Wait until a new shard serves what was its parent's."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    async with members.client(MEMBERS[0]) as client:
        while time.monotonic() < deadline:
            for listed in (await client.list()).shards:
                is_fork = bool(value_of(listed.spec.labels, FORK_OF))
                codes = [each.code for each in listed.status]
                if listed.spec.id == child and not is_fork and codes == [ReplicaStatus.PRIMARY]:
                    return
            await asyncio.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{child} does not serve")
