"""One acquisition of a lease, as its holder keeps it: until when it may act, and its writes one after another.

The holder stops by its own clock, a lease's length after it *sent* the last write that was answered: whoever else
may take the lease has seen that write later. Whether anybody did does not matter. A write that finds another holder, or
another acquisition, ends it at once. Ended is for good; the same worker's next acquisition is another `HeldLease`.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseRenewer (order of the checks). Theirs counts from the
answer, and drops a lease whose write it cannot recognise after its answer was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.consumer.errors import LeasingError, ShutdownError
from broadsheet.consumer.leasing.facades.kcl import LeaseManager
from broadsheet.consumer.leasing.record import LeaseRecord, Versioned


@runtime_checkable
class TellsDeadline(Protocol):
    """A store that ends leases itself, and knows when it cannot have done so yet."""

    @property
    def deadline_monotonic_seconds(self) -> float | None:
        """Until when nobody can have taken this process's leases; None: while it vouches for none."""
        ...


class HeldLease:
    """A lease in the hands of this process. To be used on one event loop."""

    def __init__(
        self,
        manager: LeaseManager,
        held: Versioned,
        *,
        lease_seconds: float,
        acquired_monotonic_seconds: float,
        clock: Clock,
        authority: TellsDeadline | None = None,
    ) -> None:
        """Hold what was taken.

        Args:
            manager: Writes it.
            held: What `manager.take` returned.
            lease_seconds: How long nobody takes it from a holder that does not move.
            acquired_monotonic_seconds: When taking it was *sent*, by `clock`.
            clock: The holder's own.
            authority: The store, if it ends leases itself: then they do not last longer than it says either.
        """
        self._manager = manager
        self._held = held
        self._lease_seconds = lease_seconds
        self._moved_seconds = acquired_monotonic_seconds
        self._answered_seconds = clock.monotonic_seconds()
        self._clock = clock
        self._authority = authority
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
        """Whether the holder has ended it, or was told that it lost it."""
        return self._ended

    @property
    def given_up(self) -> bool:
        """Whether its holder passed it on, or is about to: nobody took it."""
        return self._given_up

    @property
    def deadline_monotonic_seconds(self) -> float:
        """Until when the holder may act, if nothing more is heard of the store."""
        own = self._moved_seconds + self._lease_seconds
        if self._authority is None:
            return own
        theirs = self._authority.deadline_monotonic_seconds
        return own if theirs is None else min(own, theirs)

    @property
    def is_held(self) -> bool:
        """Whether the holder may act now."""
        return not self._ended and self._clock.monotonic_seconds() < self.deadline_monotonic_seconds

    def end(self) -> None:
        """Let nothing be written any more. Idempotent."""
        self._ended = True

    async def renew(self) -> bool:
        """Show that the holder lives, and learn what others ask of it. False: it does not hold the lease any more.

        Raises:
            LeasingError: the store failed; the lease is held until its deadline.
        """
        async with self._lock:
            if not self.is_held:
                self._ended = True
                return False
            return await self._write(lambda: self._manager.renew(self._held)) is not None

    def learn(self, current: Versioned | None, *, asked_monotonic_seconds: float) -> bool:
        """Take what a look at all leases showed for a renewal, where renewing writes nothing.

        Args:
            current: The lease; None if it was not there.
            asked_monotonic_seconds: When the look began, by the holder's clock.

        Returns:
            False if the holder does not hold the lease any more.
        """
        if self._lock.locked() or self._answered_seconds >= asked_monotonic_seconds:
            return not self._ended  # What we write, or wrote since, is newer.
        if not self.is_held or current is None or not self._is_mine(current):
            self._ended = True
            return False
        self._held, self._moved_seconds = current, asked_monotonic_seconds
        return True

    async def update(self, change: Callable[[LeaseRecord], LeaseRecord]) -> LeaseRecord:
        """Write what the holder has to say.

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
        """Pass it on: in a hand-off to the worker that it is for, else to whoever takes it. Nothing is written after.

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
                self._in_doubt = True  # Also a read may have failed that should have settled it.
                raise
        if written is None:
            self._ended = True
            return None
        self._held = written
        self._moved_seconds = sent_seconds
        self._answered_seconds = self._clock.monotonic_seconds()
        return written

    async def _settle(self) -> bool:
        """Learn what became of a write whose answer was lost."""
        current = await self._manager.get_lease(self.record.key)
        if current is None or not self._is_mine(current):
            return False
        self._held = current
        self._in_doubt = False
        return True

    def _is_mine(self, current: Versioned) -> bool:
        """Tell whether this is the same acquisition still: in one, only its holder moves the counter."""
        mine, theirs = self.record, current.record
        return (self._held.fence, mine.epoch, mine.holder) == (
            current.fence,
            theirs.epoch,
            theirs.holder,
        )
