"""Messages a second and CPU seconds per million messages, for each API, store and number of shards."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.dataplane.app import STORES
from bench.dataplane.bare import BarePlan, run_bare
from bench.dataplane.cluster import Brokerage, Case, Consumed
from bench.dataplane.peers import PEERS
from bench.dataplane.rows import MESSAGE_BYTES, Load
from bench.report import Params, emit
from broadsheet.journals.client import JournalClient

APIS = ("message", "batch", "arrow")
SHARDS = (1, 2)
ARROW_FACTOR = 10
"""So many times as many rows for Arrow messages, which take a fifth of the bytes and less time."""
WARM_UP_DIVISOR = 10


@dataclass(frozen=True, slots=True)
class MessagesPlan:
    """The size of the measurement."""

    rows: int = 3_000_000
    """JSON messages of each shard."""
    rounds: int = 3
    stores: Sequence[str] = tuple(STORES)
    """The first is measured with every API and number of shards, the others with each API on one shard."""
    peers: Sequence[str] = tuple(PEERS)
    apis: Sequence[str] = APIS
    shards: Sequence[int] = SHARDS


def run(bench: str, plan: MessagesPlan) -> None:
    """Measure and print `messages_per_s` and `cpu_s_per_million`, each beside its bare loop; then the peers."""
    with (
        tempfile.TemporaryDirectory(prefix="dataplane-") as directory,
        Brokerage.running(Path(directory)) as brokerage,
    ):
        for case in _cases(plan):
            _measure(bench, plan, brokerage, case)
        for peer in plan.peers:
            _measure_peer(bench, plan, peer, Path(directory))


def _cases(plan: MessagesPlan) -> list[Case]:
    main, *others = plan.stores
    cases = [Case(api, main, shards) for api in plan.apis for shards in plan.shards]
    cases += [Case(api, store) for store in others for api in plan.apis]
    # Aggregates take runs alone.
    return [case for case in cases if (case.api, case.store) != ("message", "aggregate")]


def _measure(bench: str, plan: MessagesPlan, brokerage: Brokerage, case: Case) -> None:
    rows = plan.rows * (ARROW_FACTOR if case.api == "arrow" else 1)
    journals = brokerage.preload(Load(case.api, rows), case.shards)
    warm_up = brokerage.preload(Load(case.api, rows // WARM_UP_DIVISOR), case.shards)
    ours: list[Consumed] = []
    bare: list[tuple[float, float]] = []
    with brokerage.members(case) as members:
        members.consume(warm_up, rows // WARM_UP_DIVISOR)
        for _ in range(plan.rounds):
            ours.append(members.consume(journals, rows))
            bare.append(_bare(brokerage, case, journals, rows))
    params: Params = {"api": case.api, "shards": case.shards, "store": case.store}
    rate = statistics.median(one.rows_per_second for one in ours)
    _emit_with_bare(
        bench, "messages_per_s", "1/s", (rate, statistics.median(one for one, _ in bare)), params
    )
    millions = rows * case.shards / 1e6
    cpu = statistics.median(one.member_cpu_seconds for one in ours) / millions
    _emit_with_bare(
        bench, "cpu_s_per_million", "s", (cpu, statistics.median(one for _, one in bare)), params
    )
    broker = statistics.median(one.broker_cpu_seconds for one in ours) / millions
    emit(bench, "broker_cpu_s_per_million", broker, "s", **params)


def _emit_with_bare(
    bench: str, figure: str, unit: str, pair: tuple[float, float], params: Params
) -> None:
    ours, bare = pair
    emit(bench, figure, ours, unit, message_bytes=MESSAGE_BYTES, **params)
    emit(bench, f"{figure}_bare", bare, unit, **params)
    emit(bench, f"{figure}_ratio", ours / bare, "ratio", **params)


def _bare(
    brokerage: Brokerage, case: Case, journals: Sequence[str], rows: int
) -> tuple[float, float]:
    """Return the rate of the bare loops together, and their CPU seconds per million rows."""
    heads = asyncio.run(_heads(brokerage.broker.address, journals))
    results = run_bare(
        [
            BarePlan(brokerage.broker.address, journal, head, case.api, case.store)
            for journal, head in zip(journals, heads, strict=True)
        ]
    )
    assert all(result.rows == rows for result in results), f"{case}: the bare loop lost rows"
    total = rows * len(results)
    seconds = max(result.seconds for result in results)
    return total / seconds, sum(result.cpu_seconds for result in results) / (total / 1e6)


async def _heads(broker: str, journals: Sequence[str]) -> list[int]:
    async with JournalClient(broker) as client:
        return [await client.write_head(journal) for journal in journals]


def _measure_peer(bench: str, plan: MessagesPlan, peer: str, directory: Path) -> None:
    result = PEERS[peer](directory / peer, plan.rows)
    if result is None:
        return
    emit(bench, "messages_per_s", result.rows_per_second, "1/s", peer=peer, rows=plan.rows)
    if result.cpu_seconds:
        cpu = result.cpu_seconds / (plan.rows / 1e6)
        emit(bench, "cpu_s_per_million", cpu, "s", peer=peer, rows=plan.rows)
