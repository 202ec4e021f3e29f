"""Acquisition of leases, one by one, from a store that may throttle or fail.

A throttled call is retried within the round. Another retryable failure of one lease waits for the next scan, and the
round continues with the other leases.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseTaker (three attempts at a take). Theirs does not
wait between them, and another failure ends the round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.consumer.errors import LeaseNotAcquiredError, LeasingError, ThrottlingError
from broadsheet.consumer.leasing import rules
from broadsheet.consumer.leasing.compare_and_swap import compare_and_swap, verdict_of_claimant
from broadsheet.consumer.leasing.facades.kcl import LeaseManager
from broadsheet.consumer.leasing.record import Versioned
from broadsheet.consumer.leasing.store import RecordStore
from broadsheet.consumer.leasing.worker.metrics import TakenHow, WorkerMetrics
from broadsheet.consumer.leasing.worker.pacing import Pacing
from broadsheet.consumer.leasing.worker.settings import StealWay

ATTEMPTS = 3
"""Attempts at a throttled take or request in one round; the Kinesis Client Library's number."""
BACK_OFF_RATIO = 0.02
"""The longest pause between two attempts, in lengths of a lease: 0.2 s of 10 s."""
OnTaken: TypeAlias = Callable[[Versioned, float], None]
"""Called with each lease as it is taken, and the time at which taking it was sent, by the clock."""
_log = structlog.get_logger()


class Acquirer:
    """Acquires and requests leases in a worker's taking loop."""

    def __init__(
        self,
        worker: str,
        *,
        manager: LeaseManager,
        metrics: WorkerMetrics,
        lease_seconds: float,
        clock: Clock,
        dice: Callable[[], float],
        pacing: Pacing,
    ) -> None:
        """Create the acquirer of one worker.

        Args:
            worker: Who takes.
            manager: Of the leases.
            metrics: The worker's.
            lease_seconds: Length of a lease; what was seen is too old after so long.
            clock: The worker's.
            dice: Returns numbers in [0, 1).
            pacing: The worker's; once it stops, nothing more is attempted.
        """
        self._worker = worker
        self._manager = manager
        self._metrics = metrics
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._dice = dice
        self._pacing = pacing
        self._stale_at_seconds = 0.0

    def begin_round(self, looked_at_seconds: float) -> None:
        """Begin a round whose scan was made at a time, by the clock."""
        self._stale_at_seconds = looked_at_seconds + self._lease_seconds

    async def take(self, seen: Versioned, on_taken: OnTaken, how: TakenHow) -> bool:
        """Take a lease if its record has not changed since it was seen.

        Raises:
            LeasingError: the store still fails a lease's length after the look; or it is gone.
        """
        taken, sent_seconds = await self._try(
            seen.record.key, lambda: self._manager.take(seen, self._worker)
        )
        if taken is None:
            return False
        self._metrics.on_taken(how)
        on_taken(taken, sent_seconds)
        return True

    async def make(
        self, key: str, call: Callable[[], Awaitable[Versioned | None]]
    ) -> Versioned | None:
        """Make a call for one lease and return its result; None if it failed, because the next scan decides again.

        Raises:
            LeasingError: as of `take`.
        """
        answer, _ = await self._try(key, call)
        return answer

    async def _try(
        self, key: str, call: Callable[[], Awaitable[Versioned | None]]
    ) -> tuple[Versioned | None, float]:
        """Make a call, and retry it while throttled, unless the worker stops; return its result and last send time."""
        sent_seconds = self._clock.monotonic_seconds()
        for attempt in range(1, ATTEMPTS + 1):
            if self._pacing.is_stopping:
                break
            sent_seconds = self._clock.monotonic_seconds()
            try:
                return await call(), sent_seconds
            except LeasingError as error:
                self._survive(error, key, attempt)
                if not isinstance(error, ThrottlingError):
                    break
            if attempt < ATTEMPTS:
                await self._back_off(attempt)
        return None, sent_seconds

    def _survive(self, error: LeasingError, key: str, attempt: int) -> None:
        """Log an error; raise it if it is permanent, or the scan is too old to act on."""
        if not error.retryable or self._clock.monotonic_seconds() > self._stale_at_seconds:
            raise error
        _log.warning(
            "leasing.take_failed", worker=self._worker, key=key, attempt=attempt, cause=str(error)
        )

    async def _back_off(self, attempt: int) -> None:
        """Wait, longer each time, with a jitter of up to one half, because rivals are throttled too."""
        longest_seconds = self._lease_seconds * BACK_OFF_RATIO
        jitter = (1 + self._dice()) / 2
        await self._pacing.wait(longest_seconds * jitter * attempt / (ATTEMPTS - 1))


# Requests for a lease, in the way that all workers of the application use.


async def claim(store: RecordStore, seen: Versioned, worker: str) -> Versioned | None:
    """Claim a lease for a worker.

    Returns:
        The lease; None if it changed hands, was claimed by another, or is free or finished.
    """
    try:
        return await compare_and_swap(
            store, seen, lambda record: rules.claim(record, worker), verdict_of_claimant
        )
    except LeaseNotAcquiredError:
        return None


async def ask_for(
    store: RecordStore, seen: Versioned, worker: str, way: StealWay
) -> Versioned | None:
    """Ask for a lease; return None if it has no holder to ask, or another worker asked before."""
    if way is StealWay.HAND_OFF:
        return await LeaseManager(store).assign(seen, worker, graceful=True)
    return await claim(store, seen, worker)
