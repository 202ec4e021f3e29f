"""Who lives, told by one who watches: a holder whose lease does not move for its length is taken for dead.

No clock is compared with another machine's: an observer measures, on its own monotonic clock, how long ago *it* saw a
record move. So it never takes a lease too early because clocks differ, and notices a death late by as long as it takes
to look again. A look takes time: what it shows has moved by its end at the latest, and had not moved again by its
beginning. Judged so, a holder that stops a lease's length after it *sent* its last renewal has always stopped before.

Source: awslabs/amazon-kinesis-client leases.Lease.isExpired, leases.dynamodb.DynamoDBLeaseTaker (first sights).
"""

from __future__ import annotations

from dataclasses import dataclass

from consumer.leasing.core.record import LeaseRecord, Versioned


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What an observer knows of a lease."""

    epoch: int
    counter: int
    moved_monotonic_seconds: float | None
    """When it was first seen as it is; None: it was free when first seen, and has not moved since."""


def sighted(before: Sighting | None, record: LeaseRecord, *, now_seconds: float) -> Sighting:
    """Return what is known after a look at a lease.

    Args:
        before: What was known; None at the first look.
        record: The lease.
        now_seconds: When the look *ended*, by the observer's monotonic clock.
    """
    if before is not None and (before.epoch, before.counter) == (record.epoch, record.counter):
        return before
    is_new_and_free = before is None and record.holder is None
    return Sighting(
        epoch=record.epoch,
        counter=record.counter,
        moved_monotonic_seconds=None if is_new_and_free else now_seconds,
    )


def is_free(
    found: Versioned, sighting: Sighting, *, now_seconds: float, lease_seconds: float
) -> bool:
    """Return whether a lease may be taken: nobody holds it, or its holder has not moved for longer than its length.

    Args:
        found: What the look showed.
        sighting: What is known since.
        now_seconds: When the look *began*, by the observer's monotonic clock.
        lease_seconds: Its length.
    """
    if found.record.holder is None or not found.fence:
        return True
    moved = sighting.moved_monotonic_seconds
    return moved is None or now_seconds - moved > lease_seconds
