"""Prometheus metrics of the allocator and of its calls to etcd. Names are Gazette's where the meaning is the same.

Each session has its own registry or shares the caller's, because several members may live in one process, and a name
can be registered only once.

Source: gazette/core allocator/metrics (names).
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.primaries import primary_spread
from broadsheet.allocator.state.alloc_state import AllocState
from broadsheet.allocator.transition.converge import Convergence, ReplicaCounts

ETCD_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Etcd answers within a few milliseconds; above 0.1 s its disk or network is in trouble; 5 s is the deadline."""


class EtcdMetrics:
    """Time that unary calls to etcd take, retries included; a `broadsheet.allocator.etcd.calls.CallObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "broadsheet_etcd_request_seconds",
            "Time of a request to etcd, with its retries.",
            ("method",),
            registry=registry,
            buckets=ETCD_BUCKETS_SECONDS,
        )
        self._failures = Counter(
            "broadsheet_etcd_request_failures",
            "Requests to etcd that ended with an error.",
            ("method",),
            registry=registry,
        )

    def on_called(self, method: str, seconds: float, *, failed: bool) -> None:
        """Count one call."""
        self._seconds.labels(method).observe(seconds)
        if failed:
            self._failures.labels(method).inc()


class AllocatorMetrics:
    """Counters and gauges of one member; only those of a leader change."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register all metrics.

        Args:
            registry: Where they are registered; a new one if none is given.
        """
        self.registry = registry or CollectorRegistry()
        self._added = self._counter("assignment_added", "Replicas added.")
        self._removed = self._counter("assignment_removed", "Replicas removed.")
        self._packed = self._counter(
            "assignment_packed", "Replicas moved to another slot, promotions included."
        )
        self._converged = self._counter("converge", "Rounds of convergence.")
        self._refused = self._counter("checkpoint_refused", "Item steps refused by etcd.")
        self._failed = self._counter("round_failed", "Rounds that an etcd error ended.")
        self._invalid = self._counter(
            "plan_invalid",
            "Decisions that were not used: the verifier refused the plan, or an error was raised.",
        )
        self._solve_seconds = Summary(
            "gazette_allocator_max_flow_runtime_seconds",
            "Time to solve a placement, seconds.",
            registry=self.registry,
        )
        self._slots = self._gauge("desired_replication_slots", "Replicas wanted, over all items.")
        self._items = self._gauge("items", "Items.")
        self._members = self._gauge("members", "Members.")
        self._adds_blocked = self._gauge("adds_blocked", "Additions that wait for room.")
        self._primaries: Mapping[MemberId, int] = {}
        """The primaries that the gauge last showed."""
        self._unplaced = 0
        """Waiting additions for which even the plan has no place; known from a whole snapshot."""
        self._removes_blocked = self._gauge(
            "removes_blocked", "Removals that wait for consistent replacements."
        )

        self._gap = Gauge(
            "broadsheet_allocator_gap_ratio",
            "How far the most utilised member is above what is proven unavoidable, where items weigh differently.",
            registry=self.registry,
        )
        self._primary_spread = Gauge(
            "broadsheet_allocator_primary_spread",
            "Primaries that one member has more than another, each counted from its share by capacity.",
            registry=self.registry,
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"gazette_allocator_{name}", text, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"gazette_allocator_{name}", text, registry=self.registry)

    def on_solved(self, seconds: float, *, gap: float) -> None:
        """Count one solve.

        Args:
            seconds: How long it took.
            gap: The plan's distance from its proven lower bound, as a share of that bound.
        """
        self._solve_seconds.observe(seconds)
        self._gap.set(gap)

    def on_plan_invalid(self) -> None:
        """Count a rejected plan."""
        self._invalid.inc()

    def on_decided(self, state: AllocState, convergence: Convergence, *, items: int) -> None:
        """Show the result of a round's decision.

        Args:
            state: The snapshot; perhaps not of all items.
            convergence: The steps to perform.
            items: How many items there are.
        """
        self._slots.set(state.item_slots)
        self._items.set(items)
        self._members.set(len(state.members))
        if state.is_whole or state.loads.primary != self._primaries:
            # The spread costs time for every member, and the primaries rarely change between rounds.
            self._primaries = state.loads.primary
            self._primary_spread.set(primary_spread(state.problem_members(), self._primaries))
        unplaced = convergence.adds_unplaced
        if state.is_whole:
            self._unplaced = unplaced
        self._adds_blocked.set(self._unplaced + convergence.adds_blocked - unplaced)
        self._removes_blocked.set(convergence.removes_blocked)

    def on_converged(self, done: ReplicaCounts, *, refused: int) -> None:
        """Count the steps of a round."""
        self._converged.inc()
        self._added.inc(done.added)
        self._removed.inc(done.removed)
        self._packed.inc(done.promoted + done.packed)
        self._refused.inc(refused)

    def on_round_failed(self) -> None:
        """Count a round that failed with an etcd error."""
        self._failed.inc()
