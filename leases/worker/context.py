"""The context of a worker: what all its loops act in the name of, and by what they measure, count and wait."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.worker.metrics import WorkerMetrics
from broadsheet.leases.worker.pacing import Pacing
from broadsheet.leases.worker.settings import WorkerSettings
from broadsheet.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """One worker, as its loops know it."""

    name: str
    settings: WorkerSettings
    leases: LeaseManager
    """The leases; its clock is the worker's."""
    metrics: WorkerMetrics
    pacing: Pacing
    random: Random
    """Decides what is tried first, and what moves."""

    @property
    def clock(self) -> Clock:
        """The clock that measures leases, and waits."""
        return self.leases.clock

    @property
    def scan_seconds(self) -> float:
        """Time between scans of all leases."""
        return self.settings.take_every_seconds(
            store_tells_who_lives=self.leases.store.tells_who_lives
        )
