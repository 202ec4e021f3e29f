"""When a lease ended, as far as one who looks can tell: an exchangeable part of what decides who may take it.

Source: vmware/vmware-go-kcl-v2 clientlibrary/checkpoint (a claim outlives its lease by a while, then it is void).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from allocator.runtime.clock import Clock, SystemClock
from consumer.leasing.core.record import Versioned
from consumer.leasing.observer import LEASE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How it stands with a lease."""

    is_free: bool
    """Whether anybody may take it."""
    overdue_seconds: float
    """For how long it has been over at least; 0 or less: it lasts, or nobody knows."""


class Expiry(Protocol):
    """Judges leases. One for each process: it may remember what it saw."""

    def standing(self, found: Versioned, *, asked_monotonic_seconds: float) -> Standing:
        """Judge a lease.

        Args:
            found: What the store answered just now.
            asked_monotonic_seconds: When it was asked.
        """
        ...


class ObservedExpiry:
    """By watching: a holder that does not move for a lease's length is taken for dead. No clocks are compared."""

    def __init__(self, *, lease_seconds: float = LEASE_SECONDS, clock: Clock | None = None) -> None:
        """Know nothing yet: what is held at the first look counts as alive then.

        Args:
            lease_seconds: How long a holder may not move; all workers must agree.
            clock: Measures it.
        """
        self._lease_seconds = lease_seconds
        self._clock = clock or SystemClock()
        self._seen_by_key: dict[str, tuple[object, float]] = {}

    def standing(self, found: Versioned, *, asked_monotonic_seconds: float) -> Standing:
        """Judge a lease by when it was first seen as it is."""
        record = found.record
        state = (record.epoch, record.counter, record.claim, found.fence)
        before = self._seen_by_key.get(record.key)
        if before is None or before[0] != state:
            before = (state, self._clock.monotonic_seconds())
            self._seen_by_key[record.key] = before
        overdue_seconds = asked_monotonic_seconds - before[1] - self._lease_seconds
        is_free = record.holder is None or not found.fence or overdue_seconds > 0
        return Standing(is_free=is_free, overdue_seconds=overdue_seconds)
