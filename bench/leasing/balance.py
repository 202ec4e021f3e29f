"""Workers in processes of their own: what they write while nothing happens, and how they share when one dies."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import msgspec

from bench.leasing.places import Place, opened
from bench.leasing.rates import fill
from bench.leasing.worker_process import WorkerOptions
from bench.report import Params, emit
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.leases.errors import LeasingError
from broadsheet.leases.record import Versioned
from broadsheet.leases.store import RecordStore

_ROOT = Path(__file__).parents[2]
SETTLE_SECONDS_MAX = 120.0
BALANCE_SECONDS_MAX = 120.0
LOOK_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The workers, the leases that they share, and the duration of the watch."""

    leases: int = 1_000
    rated_leases: int = 1_000
    """Of the rates, which do not depend on it."""
    workers: int = 4
    lease_seconds: float = 10.0
    take_seconds: float | None = None
    """Time between looks at all leases; None: the default."""
    renew_seconds: float | None = None
    """Time between renewals; None: the default."""
    quiet_seconds: float = 20.0
    """For which writes are counted: a whole number of renewals."""
    poll_seconds: float = 0.5
    """Between looks of ours, which cost the server something too."""


async def run(bench: str, place: Place, scene: Scene, directory: Path, params: Params) -> None:
    """Measure and print `writes_per_lease_minute` and `rebalance_s`."""
    async with opened(place) as store:
        watcher = Watcher(store, scene)
        names = [f"worker-{number}" for number in range(scene.workers)]
        # They come back under their names, so that all is shared at once.
        await fill(store, scene.leases, cycle(names))
        async with _started(place, scene, names, directory) as processes:
            await watcher.until(names, watcher.is_shared, SETTLE_SECONDS_MAX)
            told = _told(place, scene, tells=store.tells_who_lives) | params
            writes_per_minute = await _writes_per_minute(place, watcher, scene.quiet_seconds)
            emit(
                bench,
                "writes_per_lease_minute",
                writes_per_minute / scene.leases,
                "writes",
                counted="revisions" if place.backend == "etcd" else "counters of the records",
                **told,
            )
            dead, *alive = names
            writes_before = await _writes_so_far(place, watcher)
            began = time.monotonic()
            processes[dead].kill()
            held_seconds = await watcher.until(alive, watcher.is_held, BALANCE_SECONDS_MAX)
            await watcher.until(alive, watcher.is_shared, BALANCE_SECONDS_MAX)
            seconds = time.monotonic() - began
            # By the same count as above: 0 writes there are none, not ones that nobody saw.
            writes = await _writes_so_far(place, watcher) - writes_before
            emit(
                bench,
                "rebalance_s",
                seconds,
                "s",
                writes=writes,
                all_held_after_s=round(held_seconds, 2),
                most_leases=max(watcher.counts.values()),
                fewest_leases=min(watcher.counts.values()),
                poll_seconds=scene.poll_seconds,
                **told,
            )
        await store.delete_store()


class Watcher:
    """Looks at all leases, as an operator would."""

    def __init__(self, store: RecordStore, scene: Scene) -> None:
        self._store = store
        self._scene = scene
        self.counts: Counter[str] = Counter()
        """Leases of each worker at the last look."""

    async def look(self) -> tuple[Versioned, ...]:
        """Return all leases; again for a while, if the server has no time for us just now."""
        deadline = time.monotonic() + LOOK_SECONDS_MAX
        while True:
            try:
                return tuple([found async for found in self._store.scan()])
            except LeasingError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
                print(f"a look failed: {error}", file=sys.stderr)
                await asyncio.sleep(self._scene.poll_seconds)

    async def until(
        self,
        workers: Sequence[str],
        is_so: Callable[[Sequence[str]], bool],
        seconds_max: float,
    ) -> float:
        """Wait for a state of the workers that live; return the seconds that it took."""
        began = time.monotonic()
        while True:
            await self._count()
            waited_seconds = time.monotonic() - began
            if is_so(workers):
                return waited_seconds
            if waited_seconds > seconds_max:
                raise TimeoutError(f"after {seconds_max:.0f} s the leases are {self.counts}")
            await asyncio.sleep(self._scene.poll_seconds)

    async def _count(self) -> None:
        found = await self.look()
        # Nobody took those of epoch 0; without a fence nobody holds them.
        holders = [each.record.holder for each in found if each.fence and each.record.epoch]
        self.counts = Counter(holder for holder in holders if holder is not None)

    def is_held(self, workers: Sequence[str]) -> bool:
        """Tell whether every lease is held by one of the workers."""
        return sum(self.counts[worker] for worker in workers) == self._scene.leases

    def is_shared(self, workers: Sequence[str]) -> bool:
        """Tell whether every lease is held by one of the workers, and none has more than its share."""
        share = math.ceil(self._scene.leases / len(workers))
        return self.is_held(workers) and max(self.counts.values()) <= share


async def _writes_per_minute(place: Place, watcher: Watcher, seconds: float) -> float:
    """Count between two looks, each timed at its end: a look at an emulator takes a second."""
    before, began = await _writes_so_far(place, watcher), time.monotonic()
    await asyncio.sleep(seconds)
    after, ended = await _writes_so_far(place, watcher), time.monotonic()
    return (after - before) / (ended - began) * 60


async def _writes_so_far(place: Place, watcher: Watcher) -> int:
    """Count every write of etcd, and elsewhere those that moved a counter."""
    if place.backend != "etcd":
        return sum(found.record.counter for found in await watcher.look())
    async with EtcdClient(EtcdConfig(endpoints=(place.address,))) as client:
        return (await client.get_range(b"/")).header.revision


@asynccontextmanager
async def _started(
    place: Place, scene: Scene, names: Sequence[str], directory: Path
) -> AsyncIterator[dict[str, ChildProcess]]:
    processes = {name: _start(place, scene, name, directory) for name in names}
    try:
        yield processes
        ended = [name for name in names[1:] if processes[name].exit_code is not None]
        if ended:
            raise RuntimeError(f"{ended} ended: {(directory / f'{ended[0]}.log').read_text()}")
    finally:
        for process in processes.values():
            process.kill()


def _start(place: Place, scene: Scene, name: str, directory: Path) -> ChildProcess:
    text = msgspec.json.encode(_options(place, scene, name)).decode()
    return ChildProcess(
        [sys.executable, "-m", "bench.leasing.worker_process", text],
        directory=_ROOT,
        log_file=directory / f"{name}.log",
    )


def _options(place: Place, scene: Scene, name: str) -> WorkerOptions:
    return WorkerOptions(
        name=name,
        leases=scene.leases,
        place=place,
        take_seconds=scene.take_seconds,
        renew_seconds=scene.renew_seconds,
    )


def _told(place: Place, scene: Scene, *, tells: bool) -> Params:
    """Return the settings that the workers have."""
    settings = _options(place, scene, "-").settings()
    return {
        "leases": scene.leases,
        "workers": scene.workers,
        "lease_seconds": settings.lease_seconds,
        "renew_seconds": round(settings.renew_every_seconds, 2),
        "take_seconds": settings.take_every_seconds(store_tells_who_lives=tells),
    }
