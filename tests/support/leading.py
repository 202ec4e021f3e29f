"""A leader's parts over records in memory, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from broadsheet.leases.errors import DependencyError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.metrics import LeaseMetrics
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import ForeignLeader, OnUnreadable, log_unreadable
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.leader.lock import LeaderLock
from broadsheet.leases.worker.leader.roster import Presence
from broadsheet.leases.worker.leader.term import LeaderTerm
from broadsheet.leases.worker.metrics import WorkerMetrics
from broadsheet.leases.worker.pacing import Pacing
from broadsheet.leases.worker.settings import WorkerSettings
from tests.support.memory_records import MemoryRecords, MemoryRecordStore
from tests.support.stepping_clock import SteppingClock


class LeaseTableOfOthers:
    """Leases in memory that may not answer, and that another program may lead."""

    def __init__(self, records: MemoryRecords) -> None:
        self._store = MemoryRecordStore(records)
        self.is_silent = False
        self.after_scan: Callable[[], object] | None = None
        """What happens between a look and what it leads to."""
        self.leaders: tuple[ForeignLeader, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield the records, or fail."""
        if self.is_silent:
            raise DependencyError("no answer")
        async for found in self._store.scan(owner, on_unreadable=on_unreadable):
            yield found
        if self.after_scan is not None:
            self.after_scan()

    async def foreign_leaders(self) -> tuple[ForeignLeader, ...]:
        """Return those of the other program."""
        return self.leaders


@dataclass(slots=True)
class LeadWorker:
    """What a worker has to do with leading."""

    name: str
    presence: Presence
    lock: LeaderLock
    leadership: LeaderTerm
    leases: LeaseTableOfOthers
    metrics: LeaseMetrics

    def shown(self, name: str, **labels: str) -> float:
        """Return a metric."""
        labels["worker"] = self.name
        return self.metrics.registry.get_sample_value(f"broadsheet_{name}", labels) or 0.0


@dataclass(slots=True)
class LeadWorld:
    """The records that all workers share, and their clock."""

    settings: WorkerSettings = field(default_factory=WorkerSettings)
    clock: SteppingClock = field(default_factory=SteppingClock)
    leases: MemoryRecords = field(default_factory=lambda: MemoryRecords(found={}))
    fleet: MemoryRecords = field(default_factory=lambda: MemoryRecords(found={}))

    def worker(self, name: str) -> LeadWorker:
        """Return a worker, which is not there before it beats."""
        fleet = MemoryRecordStore(self.fleet)
        leases: Any = LeaseTableOfOthers(self.leases)
        manager = LeaseManager(fleet, clock=self.clock)
        metrics = LeaseMetrics()
        context = WorkerContext(
            name=name,
            settings=self.settings,
            leases=LeaseManager(leases, clock=self.clock),
            metrics=WorkerMetrics(metrics, name, self.clock),
            pacing=Pacing(Random(0)),
            random=Random(0),
        )
        lock = LeaderLock(name, manager, lease_seconds=self.settings.leader_lease_seconds)
        leadership = LeaderTerm(context, manager, lock)
        presence = Presence(name, manager, self.settings)
        return LeadWorker(name, presence, lock, leadership, leases, metrics)

    def put(self, record: LeaseRecord) -> Versioned:
        """Write a lease."""
        return self.leases.put(record)

    def record(self, key: str) -> LeaseRecord:
        """Return a lease."""
        found = self.leases.current(key)
        assert found is not None
        return found.record
