"""Lease workers on virtual time, with what must hold of them checked at every write and every delivery."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.record_processor.processor import (
    AsyncRecordProcessorCheckpointer,
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from broadsheet.leases.worker.settings import Balancing, WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.virtual_loop import Process, VirtualClock, running_loop
from tests.support.memory_records import MemoryRecords, MemoryRecordStore
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import Script, ScriptedProcessor


@dataclass(slots=True)
class Ledger:
    """What was delivered and written, and the checks of it."""

    processor_by_epoch: dict[tuple[str, int], int] = field(default_factory=dict)
    last_epoch: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, set[Position]] = field(default_factory=lambda: defaultdict(set))
    times: Counter[Position] = field(default_factory=Counter)
    finished: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)

    def on_write(self, before: LeaseRecord | None, after: LeaseRecord) -> None:
        """Check a write of a lease: checkpoints and epochs never go back, and an epoch has one holder."""
        if before is None:
            return
        assert after.epoch >= before.epoch
        if before.checkpoint is not None:
            assert after.checkpoint is not None
            assert after.checkpoint >= before.checkpoint
        if before.epoch == after.epoch and None not in (before.holder, after.holder):
            assert before.holder == after.holder
        if after.is_finished:
            self.finished.add(after.key)

    def on_call(self, key: str, epoch: int, processor: int) -> None:
        """Check a call of a processor: it is the only one of its epoch, and no later one has begun."""
        assert self.processor_by_epoch.setdefault((key, epoch), processor) == processor
        assert epoch >= self.last_epoch.get(key, 0), f"{key}: {epoch} after {self.last_epoch}"
        self.last_epoch[key] = epoch


class WitnessProcessor:
    """Takes a moment for each batch, and checkpoints."""

    def __init__(self, world: WorkerWorld) -> None:
        self._world = world
        self._ledger = world.ledger
        self._key, self._epoch = "", 0
        self._next: Position | None = None

    async def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Begin, not before all parents ended."""
        self._key, self._epoch = initialize_input.shard_id, initialize_input.epoch
        self._next = initialize_input.position
        self._ledger.on_call(self._key, self._epoch, id(self))
        for parent in self._world.parents.get(self._key, ()):
            assert parent in self._ledger.finished, f"{self._key} began before {parent} ended"

    async def process_records(
        self, process_records_input: ProcessRecordsInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Note the records, take a moment, and checkpoint."""
        self._ledger.on_call(self._key, self._epoch, id(self))
        for record in process_records_input.records:
            assert self._next is None or record.position > self._next
            self._next = record.position
            self._ledger.delivered[self._key].add(record.position)
            self._ledger.times[record.position] += 1
        await asyncio.sleep(self._world.processing_seconds)
        await process_records_input.checkpointer.checkpoint()

    async def lease_lost(self, _lease_lost_input: LeaseLostInput, /) -> None:
        """Note it."""
        self._ledger.events.append(f"lost {self._key}")

    async def shard_ended(
        self, shard_ended_input: ShardEndedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Commit the end."""
        self._ledger.on_call(self._key, self._epoch, id(self))
        await shard_ended_input.checkpointer.checkpoint()
        self._ledger.events.append(f"ended {self._key}")

    async def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Checkpoint for the last time."""
        self._ledger.on_call(self._key, self._epoch, id(self))
        await shutdown_requested_input.checkpointer.checkpoint()
        self._ledger.events.append(f"asked {self._key}")


@dataclass(slots=True)
class WorkerWorld:
    """A stream, its leases, and workers that come and go."""

    seed: int
    group: TaskGroup
    settings: WorkerSettings
    stream: MemoryStream = field(default_factory=MemoryStream)
    ledger: Ledger = field(default_factory=Ledger)
    processing_seconds: float = 0.01
    latency_seconds_max: float = 0.0
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    workers: dict[str, LeaseWorker] = field(default_factory=dict)
    records: MemoryRecords = field(default_factory=MemoryRecords)
    fleet: MemoryRecords = field(default_factory=MemoryRecords)
    """Who leads and who is there, of workers that a leader assigns leases to."""
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _processes: dict[str, Process] = field(default_factory=dict)
    _all: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.records.audit = self.ledger.on_write

    def join(
        self, name: str, script: Script | None = None, *, settings: WorkerSettings | None = None
    ) -> None:
        """Start a worker in a process of its own; with a script, its processors follow that."""
        settings = settings or self.settings
        random = Random(f"{self.seed} {name}")

        def latency_seconds() -> float:
            return random.uniform(0.0, self.latency_seconds_max)

        is_led = settings.balancing is Balancing.LEADER
        worker = LeaseWorker(
            name,
            store=MemoryRecordStore(self.records, latency_seconds),
            fleet=MemoryRecordStore(self.fleet, latency_seconds) if is_led else None,
            source=self.stream,
            new_processor=lambda: ScriptedProcessor(script) if script else WitnessProcessor(self),
            settings=settings,
            clock=VirtualClock(running_loop()),
            random=random,
        )
        self.workers[name] = worker
        self._processes[name] = Process(name)
        self._all.append(self._processes[name])
        self._tasks[name] = self._processes[name].run(
            lambda: self.group.start_soon(worker.run(), name=name)
        )

    def die(self, name: str) -> None:
        """Let a worker stand still for ever."""
        self._processes[name].stop()
        del self.workers[name]

    def pause(self, name: str) -> None:
        """Let a worker stand still."""
        self._processes[name].stop()

    def go_on(self, name: str) -> None:
        """Let it go on."""
        self._processes[name].go_on()

    def wake_all(self) -> None:
        """Let also those go on that died, so that their tasks can be cancelled."""
        for process in self._all:
            process.go_on()

    async def leave(self, name: str) -> None:
        """Let a worker stop as it should."""
        self.workers.pop(name).stop()
        await self._tasks[name]

    def record(self, key: str) -> LeaseRecord:
        """Return a lease as it is."""
        found = self.records.current(key)
        assert found is not None
        return found.record

    def counts(self) -> dict[str, int]:
        """Return how many leases of unfinished shards each living worker has."""
        counts = dict.fromkeys(self.workers, 0)
        held = {name: worker.held for name, worker in self.workers.items()}
        for key in self.records.readable():
            found = self.records.current(key)
            if found is None or found.record.is_finished:
                continue
            holder = found.record.holder
            if holder in counts and key in held[holder]:
                counts[holder] += 1
        return counts

    def leaders(self) -> list[str]:
        """Return the living workers that believe to lead."""
        return [name for name, worker in self.workers.items() if worker.leads]

    def is_balanced(self) -> bool:
        """Tell whether every unfinished shard is held by a living worker, by none more than one more than others."""
        if self.records.found is None:
            return False
        counts = self.counts().values()
        unfinished = sum(
            not found.record.is_finished
            for key in self.records.readable()
            if (found := self.records.current(key))
        )
        return 0 < sum(counts) == unfinished and max(counts) - min(counts) <= 1

    async def until(self, condition: Callable[[], bool], *, seconds: float) -> float:
        """Wait for a condition, and return how long it took; fail if it does not come true in time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            assert loop.time() - began < seconds, f"not in {seconds} s: {self.counts()}"
            await asyncio.sleep(1.0)
        return loop.time() - began

    def all_processed(self) -> bool:
        """Tell whether every record was delivered and the checkpoint is at the last."""
        return all(
            self.ledger.delivered[key] >= set(self.stream.positions(key))
            for key in self.records.readable()
        )


async def in_world(
    seed: int,
    play: Callable[[WorkerWorld], Coroutine[Any, Any, None]],
    settings: WorkerSettings | None = None,
) -> None:
    """Play a scene, and end all workers with it."""
    async with TaskGroup() as group:
        world = WorkerWorld(seed=seed, group=group, settings=settings or WorkerSettings())
        try:
            await play(world)
        finally:
            world.wake_all()
        group.stop()
