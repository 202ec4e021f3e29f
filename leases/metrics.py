"""Prometheus metrics of leases and their workers.

The label `worker` is a worker's name, `shard` the key of a lease. docs/leases.md lists the Kinesis Client Library's
metric that each of these replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from broadsheet.leases.errors import LeasingError, ShutdownError, ThrottlingError
from broadsheet.runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets of durations: from one row of a nearby database to a lease's usual length."""

DONE = "done"
DECLINED = "declined"
"""Outcome: the lease is lost, changed or absent, or a rival won the race."""
THROTTLED = "throttled"
FAILED = "failed"


def outcome_of(error: LeasingError) -> str:
    """Return the outcome of a call that raised."""
    if isinstance(error, ThrottlingError):
        return THROTTLED
    return DECLINED if isinstance(error, ShutdownError) else FAILED


class LeaseMetrics:
    """The counters of one process; its managers and workers share them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register everything.

        Args:
            registry: Where to; a new one if none is given.
        """
        self.registry = registry or CollectorRegistry()
        self.operation_seconds = Histogram(
            "broadsheet_lease_operation_seconds",
            "Time that operations of lease managers took, by what became of them.",
            ("operation", "outcome"),
            registry=self.registry,
            buckets=BUCKETS_SECONDS,
        )
        self.round_seconds = self._durations(
            "broadsheet_lease_round_seconds",
            "Time of a worker's looks at all leases, with taking what it takes.",
        )
        self.rounds_failed = self._counter(
            "broadsheet_lease_rounds_failed", "Looks at all leases that the store ended."
        )
        self.renewal_seconds = self._durations(
            "broadsheet_lease_renewal_seconds", "Time in which a worker renewed all that it holds."
        )
        self.renewals = self._counter(
            "broadsheet_lease_renewals",
            "Renewals of single leases, by what became of them.",
            "outcome",
        )
        self.held = self._gauge("broadsheet_leases_held", "Leases that a worker processes now.")
        self.unfinished = self._gauge(
            "broadsheet_leases_unfinished", "Leases of unfinished shards, at a worker's last look."
        )
        self.free = self._gauge("broadsheet_leases_free", "Of those, leases without an owner.")
        self.unreadable = self._gauge(
            "broadsheet_leases_unreadable",
            "Rows that hold no lease that can be read, when the leases were last compared with the stream.",
        )
        self.share = self._gauge("broadsheet_leases_share", "Leases that are a worker's share.")
        self.workers = self._gauge(
            "broadsheet_lease_workers", "Workers that held or awaited leases, the one included."
        )
        self.taken = self._counter("broadsheet_leases_taken", "Leases that a worker got.", "how")
        self.asked_for = self._counter(
            "broadsheet_leases_asked_for", "Leases that a worker asked others for.", "way"
        )
        self.leads = self._gauge(
            "broadsheet_lease_leader", "1 for the worker that assigns the leases of all."
        )
        self.assigned = self._counter(
            "broadsheet_leases_assigned", "Leases that the leader gave to workers.", "how"
        )
        self.left = self._counter(
            "broadsheet_leases_left", "Leases that a worker does not process any more.", "reason"
        )
        self.checkpoints = self._counter(
            "broadsheet_lease_checkpoints",
            "Writes of checkpoints, committed or announced, by what became of them.",
            "outcome",
        )
        self.processor_seconds = self._durations(
            "broadsheet_processor_seconds", "Time that processors took for a batch."
        )
        self.records = self._counter(
            "broadsheet_processor_records", "Records of batches that were processed.", "shard"
        )
        self.record_bytes = self._counter(
            "broadsheet_processor_bytes", "Content of those records, bytes.", "shard"
        )
        self.behind_seconds = self._gauge(
            "broadsheet_processor_behind_latest_seconds",
            "How old the end of a shard's last batch was, compared with the end of the shard.",
            "shard",
        )

    def _durations(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, ("worker",), registry=self.registry, buckets=BUCKETS_SECONDS)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ("worker", *labels), registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, ("worker", *labels), registry=self.registry)


class Metered(Protocol):
    """An object whose operations may be counted."""

    @property
    def metrics(self) -> LeaseMetrics | None:
        """The counters; None: operations are not counted."""
        ...

    @property
    def clock(self) -> Clock:
        """Measures them."""
        ...


MeteredT = TypeVar("MeteredT", bound=Metered)


def metered(
    operation: Callable[Concatenate[MeteredT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[MeteredT, P], Coroutine[Any, Any, T]]:
    """Count and time an operation under its name; an answer of None or False counts as declined."""

    @wraps(operation)
    async def counted(self: MeteredT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        metrics = self.metrics
        if metrics is None:
            return await operation(self, *args, **kwargs)
        began_seconds = self.clock.monotonic_seconds()

        def observe(outcome: str) -> None:
            seconds = self.clock.monotonic_seconds() - began_seconds
            metrics.operation_seconds.labels(operation.__name__, outcome).observe(seconds)

        try:
            answer = await operation(self, *args, **kwargs)
        except LeasingError as error:
            observe(outcome_of(error))
            raise
        observe(DECLINED if answer is None or answer is False else DONE)
        return answer

    return counted
