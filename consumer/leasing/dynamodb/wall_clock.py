"""When a lease in a table of vmware-go-kcl ended: it says so itself, by the clock of the machine that wrote it."""

from __future__ import annotations

from allocator.runtime.clock import Clock, SystemClock
from consumer.leasing.dynamodb.core.timestamps import NANOSECONDS
from consumer.leasing.dynamodb.core.vmware_go import ends_at_nanoseconds
from consumer.leasing.expiry import Standing
from consumer.leasing.record import Versioned

SKEW_SECONDS = 2.0
"""How far clocks of machines with NTP may be apart, generously."""


class WallClockExpiry:
    """Implements `consumer.leasing.expiry.Expiry`. All machines must keep their clocks with NTP."""

    def __init__(self, *, skew_seconds: float = SKEW_SECONDS, clock: Clock | None = None) -> None:
        """Judge by a clock.

        Args:
            skew_seconds: Longer than any two machines' clocks are apart: a lease lasts so much longer for others.
            clock: Its wall clock is compared with the moments in the table.
        """
        self._skew_seconds = skew_seconds
        self._clock = clock or SystemClock()

    def standing(self, found: Versioned, *, asked_monotonic_seconds: float) -> Standing:
        """Judge a lease by the moment in it. An owner without a moment has none that it could renew, and is gone."""
        ends = ends_at_nanoseconds(found.record)
        if ends is None:
            return Standing(is_free=True, overdue_seconds=0.0)
        overdue_seconds = self._clock.wall_seconds() - ends / NANOSECONDS - self._skew_seconds
        is_free = found.record.holder is None or overdue_seconds > 0
        return Standing(is_free=is_free, overdue_seconds=overdue_seconds)
