"""Metrics of one worker: `broadsheet.leases.metrics` under its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TypeVar

from prometheus_client import Histogram

from broadsheet.leases.errors import LeasingError
from broadsheet.leases.metrics import DECLINED, DONE, LeaseMetrics, outcome_of
from broadsheet.leases.record_processor.processor import ProcessorRecord
from broadsheet.leases.worker.assignments import GivenHow
from broadsheet.leases.worker.lease_view import LeaseView
from broadsheet.leases.worker.round_plan import TakenHow
from broadsheet.runtime.clock import Clock

T = TypeVar("T")


class LeftWhy(Enum):
    """Reason why a worker does not process a lease any more."""

    ENDED = "ended"
    """The shard was processed to its end."""
    REQUESTED = "requested"
    """Another worker asked for it, or this one stops."""
    LOST = "lost"
    """Another took it, or it was not renewed in time."""
    FAILED = "failed"
    """Its processor raised, or it cannot be read."""


class WorkerMetrics:
    """Counters that a worker reports its events to."""

    def __init__(self, metrics: LeaseMetrics, worker: str, clock: Clock) -> None:
        """Count under a worker's name.

        Args:
            metrics: Of the process.
            worker: Its name.
            clock: The worker's.
        """
        self._all = metrics
        self._worker = worker
        self._clock = clock

    @contextmanager
    def round(self) -> Iterator[None]:
        """Time a scan of all leases, and the work that follows from it."""
        try:
            with self._timed(self._all.round_seconds):
                yield
        except LeasingError:
            self._all.rounds_failed.labels(self._worker).inc()
            raise

    @contextmanager
    def renewal(self) -> Iterator[None]:
        """Time a renewal of all held leases."""
        with self._timed(self._all.renewal_seconds):
            yield

    @contextmanager
    def processing(self, shard: str, records: tuple[ProcessorRecord, ...]) -> Iterator[None]:
        """Time a processor's call; the records count if it does not raise."""
        with self._timed(self._all.processor_seconds):
            yield
        self._all.records.labels(self._worker, shard).inc(len(records))
        self._all.record_bytes.labels(self._worker, shard).inc(
            sum(len(record.binary_data) for record in records)
        )

    def on_look(self, leases: tuple[LeaseView, ...], *, share: int) -> None:
        """Show the unfinished leases as a worker saw them."""
        workers = {lease.bound_for for lease in leases} | {self._worker}
        self._all.unfinished.labels(self._worker).set(len(leases))
        self._all.free.labels(self._worker).set(sum(lease.held_by is None for lease in leases))
        self._all.share.labels(self._worker).set(share)
        self._all.workers.labels(self._worker).set(len(workers - {None}))

    def on_unreadable(self, rows: int) -> None:
        """Show how many unreadable rows of the store need an operator."""
        self._all.unreadable.labels(self._worker).set(rows)

    def on_fleet(self, workers: int) -> None:
        """Show how many workers a leader sees."""
        self._all.workers.labels(self._worker).set(workers)

    def on_leading(self, *, leads: bool) -> None:
        """Show whether the worker leads."""
        self._all.leads.labels(self._worker).set(leads)

    def on_assigned(self, how: GivenHow) -> None:
        """Count a lease that this leader assigned to a worker."""
        self._all.assigned.labels(self._worker, how.value).inc()

    def on_renewed(self, *, held: bool) -> None:
        """Count a lease that the worker still holds, or not."""
        self._all.renewals.labels(self._worker, DONE if held else DECLINED).inc()

    def on_renewal_failed(self, error: LeasingError, *, leases: int = 1) -> None:
        """Count leases whose state is unknown because a renewal failed."""
        self._all.renewals.labels(self._worker, outcome_of(error)).inc(leases)

    def on_taken(self, how: TakenHow) -> None:
        """Count an acquired lease."""
        self._all.taken.labels(self._worker, how.value).inc()

    def on_asked_for(self, way: str) -> None:
        """Count a lease that the worker asked another for."""
        self._all.asked_for.labels(self._worker, way).inc()

    def on_held(self, leases: int) -> None:
        """Show how many leases the worker processes."""
        self._all.held.labels(self._worker).set(leases)

    def on_left(self, shard: str, why: LeftWhy) -> None:
        """Count a lease that the worker does not process any more; its lag is another worker's from now on."""
        self._all.left.labels(self._worker, why.value).inc()
        with suppress(KeyError):
            self._all.behind_seconds.remove(self._worker, shard)

    def on_behind(self, shard: str, seconds: float) -> None:
        """Show how far a shard is behind."""
        self._all.behind_seconds.labels(self._worker, shard).set(seconds)

    async def checkpointed(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write a checkpoint, and count the outcome."""
        try:
            written = await write()
        except LeasingError as error:
            self._all.checkpoints.labels(self._worker, outcome_of(error)).inc()
            raise
        self._all.checkpoints.labels(self._worker, DONE).inc()
        return written

    @contextmanager
    def _timed(self, durations: Histogram) -> Iterator[None]:
        began_seconds = self._clock.monotonic_seconds()
        try:
            yield
        finally:
            durations.labels(self._worker).observe(self._clock.monotonic_seconds() - began_seconds)
