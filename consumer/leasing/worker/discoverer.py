"""Discovery of the leases that a leader assigned to a worker.

Taking a lease begins a new epoch, so writes of an earlier or rival worker of the same name are fenced. A lease in
hand-off is left until its holder has passed it on. An index that lags is harmless, because each lease is read again,
and taken only if unchanged since.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseDiscoverer (what is left out).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.consumer.leasing.facades.kcl import LeaseManager
from broadsheet.consumer.leasing.record import Versioned
from broadsheet.consumer.leasing.worker.acquirer import Acquirer, OnTaken
from broadsheet.consumer.leasing.worker.metrics import TakenHow


class Discoverer:
    """Finds and takes a worker's assigned leases."""

    def __init__(
        self, worker: str, *, manager: LeaseManager, attempts: Acquirer, clock: Clock
    ) -> None:
        """Create the discoverer of one worker.

        Args:
            worker: Its name.
            manager: Of the leases.
            attempts: Takes.
            clock: The worker's.
        """
        self._worker = worker
        self._manager = manager
        self._attempts = attempts
        self._clock = clock

    async def discover(self, *, held: Collection[str]) -> tuple[Versioned, ...]:
        """Return the worker's leases that it does not process yet.

        Raises:
            LeasingError: the store failed.
        """
        return tuple(
            found
            for found in await self._manager.list_leases_of(self._worker)
            if found.record.handoff_from is None
            and found.record.key not in held
            and not found.record.is_finished
        )

    async def round(
        self,
        *,
        held: Collection[str],
        left_alone: Callable[[], Collection[str]],
        on_taken: OnTaken,
    ) -> None:
        """Take the assigned leases.

        Args:
            held: Keys of the leases that the worker processes.
            left_alone: Returns the keys that it does not take now; asked after the look, during which one may fail.
            on_taken: Called as each lease is taken.

        Raises:
            LeasingError: the store failed: the scan, or still a lease's length after it; or it is gone.
        """
        found = await self.discover(held=held)
        alone = left_alone()
        self._attempts.begin_round(self._clock.monotonic_seconds())
        for each in found:
            if each.record.key not in alone:
                await self._attempts.take(each, on_taken, TakenHow.DUE)

    async def give_back(self) -> None:
        """Release the leases assigned while the worker stopped: otherwise they would idle for a lease's length.

        Raises:
            LeasingError: the store failed; they idle for that long.
        """
        for found in await self.discover(held=()):
            await self._manager.evict(found)
