"""One acquisition of a lease, on the holder's side: its deadline, and its serialised writes.

The holder stops by its own clock, a lease's length after it *sent* the last write that was answered, because every
rival has seen that write later. It stops whether a rival took the lease or not. A write that finds another holder, or
another acquisition, ends it at once. An ended `HeldLease` stays ended; the same worker's next acquisition is another
one.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseRenewer (order of the checks). Theirs counts from the
answer, and drops a lease if the answer to a write was lost and the write cannot be recognised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from broadsheet.leases.errors import LeasingError, ShutdownError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.record import LeaseRecord, Versioned


@runtime_checkable
class TellsDeadline(Protocol):
    """A store that ends leases itself, and knows until when it cannot have done so."""

    @property
    def deadline_monotonic_seconds(self) -> float | None:
        """Time until which no rival can have taken this process's leases; None while it vouches for none."""
        ...


class HeldLease:
    """A lease that this process holds. To be used on one event loop."""

    def __init__(
        self,
        manager: LeaseManager,
        held: Versioned,
        *,
        lease_seconds: float,
        acquired_monotonic_seconds: float,
    ) -> None:
        """Wrap a lease that was just taken.

        Args:
            manager: Writes it; its clock is the holder's. If its store ends leases itself, they do not last longer
                than the store says either.
            held: What `manager.take` returned.
            lease_seconds: How long no other worker takes it from a holder that does not move.
            acquired_monotonic_seconds: When taking it was *sent*, by the clock.
        """
        self._manager = manager
        self._held = held
        self._lease_seconds = lease_seconds
        self._moved_seconds = acquired_monotonic_seconds
        self._answered_seconds = manager.clock.monotonic_seconds()
        self._clock = manager.clock
        self._authority = manager.store if isinstance(manager.store, TellsDeadline) else None
        self._lock = asyncio.Lock()
        self._in_doubt = False
        self._ended = False
        self._given_up = False

    @property
    def record(self) -> LeaseRecord:
        """The lease as it was last written or renewed."""
        return self._held.record

    @property
    def ended(self) -> bool:
        """True once the holder ended it, or learned that it is lost."""
        return self._ended

    @property
    def given_up(self) -> bool:
        """True if its holder passed it on, or is about to, so that it was not lost to a rival."""
        return self._given_up

    @property
    def deadline_monotonic_seconds(self) -> float:
        """Time until which the holder may act without another answer from the store."""
        own = self._moved_seconds + self._lease_seconds
        if self._authority is None:
            return own
        theirs = self._authority.deadline_monotonic_seconds
        return own if theirs is None else min(own, theirs)

    @property
    def is_held(self) -> bool:
        """True while the holder may act."""
        return not self._ended and self._clock.monotonic_seconds() < self.deadline_monotonic_seconds

    def end(self) -> None:
        """End the lease for this holder: nothing is written any more. Idempotent."""
        self._ended = True

    async def renew(self) -> bool:
        """Renew the lease, and learn of requests for it; return False if it is not held any more.

        Raises:
            LeasingError: the store failed; the lease is held until its deadline.
        """
        async with self._lock:
            if not self.is_held:
                self._ended = True
                return False
            return await self._write(lambda: self._manager.renew(self._held)) is not None

    def learn(self, current: Versioned | None, *, asked_monotonic_seconds: float) -> bool:
        """Count a scan of all leases as a renewal, in stores where renewing writes nothing.

        Args:
            current: The lease; None if it was not there.
            asked_monotonic_seconds: When the look began, by the holder's clock.

        Returns:
            False if the holder does not hold the lease any more.
        """
        if self._lock.locked() or self._answered_seconds >= asked_monotonic_seconds:
            # A write under way, or finished since the scan began, is newer than the scan.
            return not self._ended
        if not self.is_held or current is None or not self._is_mine(current):
            self._ended = True
            return False
        self._held, self._moved_seconds = current, asked_monotonic_seconds
        return True

    async def update(self, change: Callable[[LeaseRecord], LeaseRecord]) -> LeaseRecord:
        """Write a change by the holder.

        Args:
            change: E.g. `lambda record: commit(record, position)`. May be called more than once.

        Returns:
            The record as written.

        Raises:
            ShutdownError: the lease is not held: by the clock, by another's doing, or in this acquisition.
            LeasingError: the store failed; the lease is held until its deadline.
        """
        async with self._lock:
            if self.is_held:
                written = await self._write(lambda: self._manager.update(self._held, change))
                if written is not None:
                    return written.record
            self._ended = True
            raise ShutdownError(
                f"lease {self.record.key} of {self.record.holder} is not held any more, in epoch"
                f" {self.record.epoch}: stop processing, another worker may have begun"
            )

    async def give_up(self) -> None:
        """Release the lease: in a hand-off to its next owner, else to any worker. Nothing is written afterwards.

        Raises:
            LeasingError: the store failed; the lease ends by itself.
        """
        async with self._lock:
            if self._ended:
                return
            self._ended = self._given_up = True
            # A hand-off may have begun since; evicting then makes the next owner the holder.
            if await self._settle():
                await self._manager.evict(self._held)

    async def _write(self, send: Callable[[], Awaitable[Versioned | None]]) -> Versioned | None:
        """Perform a write, and end the lease if it is lost."""
        sent_seconds = self._clock.monotonic_seconds()
        if self._in_doubt and not await self._settle():
            written = None
        else:
            try:
                written = await send()
            except LeasingError:
                # The read that should have settled the write may have failed too.
                self._in_doubt = True
                raise
        if written is None:
            self._ended = True
            return None
        self._held = written
        self._moved_seconds = sent_seconds
        self._answered_seconds = self._clock.monotonic_seconds()
        return written

    async def _settle(self) -> bool:
        """Read the record to learn the outcome of a write whose answer was lost."""
        current = await self._manager.get_lease(self.record.key)
        if current is None or not self._is_mine(current):
            return False
        self._held = current
        self._in_doubt = False
        return True

    def _is_mine(self, current: Versioned) -> bool:
        """Tell whether a record belongs to this acquisition, during which only its holder moves the counter."""
        mine, theirs = self.record, current.record
        return (self._held.fence, mine.epoch, mine.holder) == (
            current.fence,
            theirs.epoch,
            theirs.holder,
        )
