"""Memory of a member and of its broker while a shard reads gigabytes that were waiting."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.dataplane.cluster import Brokerage, Case
from bench.dataplane.rows import MESSAGE_BYTES, Load
from bench.report import emit

_INTERVAL_SECONDS = 0.05
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class LagPlan:
    """The content that waits."""

    gigabytes: float = 10.0
    apis: Sequence[str] = ("batch",)


def run(bench: str, plan: LagPlan) -> None:
    """Measure and print `lag_rss_mb`, the largest resident size, of each process; the sums are checked."""
    rows = int(plan.gigabytes * 1e9 / MESSAGE_BYTES)
    for api in plan.apis:
        case = Case(api)
        with (
            tempfile.TemporaryDirectory(prefix="dataplane-") as directory,
            Brokerage.running(Path(directory)) as brokerage,
        ):
            journals = brokerage.preload(Load(api, rows), 1)
            with brokerage.members(case) as members:
                pids = {"member": members.processes[0].pid, "broker": brokerage.broker.pid}
                with _watching(pids) as highest:
                    consumed = members.consume(journals, rows)
            for process, resident_bytes in highest.items():
                emit(
                    bench,
                    "lag_rss_mb",
                    resident_bytes / _MEGABYTE,
                    "MB",
                    process=process,
                    api=api,
                    store=case.store,
                    lag_gb=plan.gigabytes,
                    seconds=round(consumed.seconds, 1),
                )


@contextmanager
def _watching(pids: dict[str, int]) -> Iterator[dict[str, int]]:
    """Sample the resident sizes of processes while the block runs; yield the highest, bytes."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    highest = dict.fromkeys(pids, 0)
    ended = threading.Event()

    def sample() -> None:
        while True:
            for name, process in processes.items():
                highest[name] = max(highest[name], process.memory_info().rss)
            if ended.wait(_INTERVAL_SECONDS):
                return

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield highest
    finally:
        ended.set()
        sampler.join()
