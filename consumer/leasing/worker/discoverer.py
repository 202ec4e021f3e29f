"""Finds the leases that were assigned to a worker, and takes them: what a worker does that a leader thinks for.

Taking begins an epoch of its own, so that what a worker of the same name did before, or still does, is fenced. What is
still in hand-off is left until its holder passed it on; an index that tells of changes late is never believed, for
each lease is read again, and taken only as it was read.

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
    """Looks for a worker's leases."""

    def __init__(
        self, worker: str, *, manager: LeaseManager, attempts: Acquirer, clock: Clock
    ) -> None:
        """Look for nothing yet.

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
        """Return the leases that are the worker's and that it does not process yet.

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
        """Take what was assigned.

        Args:
            held: Keys of the leases that the worker processes.
            left_alone: Returns the keys that it does not take now; asked after the look, during which one may fail.
            on_taken: Called as each lease is taken.

        Raises:
            LeasingError: the store failed: the look, or still a lease's length after it; or it is gone.
        """
        found = await self.discover(held=held)
        alone = left_alone()
        self._attempts.begin_round(self._clock.monotonic_seconds())
        for each in found:
            if each.record.key not in alone:
                await self._attempts.take(each, on_taken, TakenHow.DUE)

    async def give_back(self) -> None:
        """Free what was assigned while the worker stopped: it would stand still for a lease's length.

        Raises:
            LeasingError: the store failed; it stands still so long.
        """
        for found in await self.discover(held=()):
            await self._manager.evict(found)
