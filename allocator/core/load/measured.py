"""Loads that members measured, made steady enough to place by.

    reports ──► the most that any replica of an item takes ──► smoothed ──► bucket, if it persists ──► load in force

An item's load is that of its busiest replica: any of them may have to do the same work tomorrow.

Invariants: pure, time is data. A leader that begins takes the first reports at their word, for its predecessor had made
sure of what it used; from then on only a drift that persists changes a load. What nobody reports keeps its load: items
on their way between members are reported by nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from allocator.core.load.drift import Drift
from allocator.core.load.lag import Lags
from allocator.core.load.quantise import bucket_of, value_of
from allocator.core.load.report import MemberReport, ReplicaLoad
from allocator.core.load.smooth import Smoothed
from allocator.core.model import ItemId, MemberId
from allocator.core.policy import LoadPolicy

LOAD_LEAST = 1.0
"""Less than this is idle, and weighs 1."""
_BYTES_IN_A_MEGABYTE = 1_000_000


@dataclass(slots=True)
class _Item:
    smoothed: Smoothed
    drift: Drift


class MeasuredLoads:
    """What a leader knows of loads and capacities."""

    def __init__(self, policy: LoadPolicy) -> None:
        """Know nothing yet.

        Args:
            policy: Whether and how measurements are used. Declared capacities always are.
        """
        self.policy = policy
        self.capacities: Mapping[MemberId, int] = {}
        """By member; those that declare none are absent."""
        self.lags: Lags = {}
        """Of the standbys that are behind. They decide about promotions, and place nothing."""
        self._items: dict[ItemId, _Item] = {}
        self._observed = False

    @property
    def loads(self) -> Mapping[ItemId, int] | None:
        """The load in force of each item that was measured for long enough; None if measurements are not used."""
        if not self.policy.measure:
            return None
        ratio = self.policy.bucket_ratio
        return {
            item_id: max(1, round(value_of(item.drift.bucket, ratio)))
            for item_id, item in self._items.items()
            if item.drift.measured
        }

    def observe(
        self, reports: Mapping[MemberId, MemberReport], now_monotonic_seconds: float
    ) -> bool:
        """Take over what members report now. Return whether anything that is in force changed."""
        capacities = {m: report.capacity for m, report in reports.items() if report.capacity > 0}
        changed = capacities != self.capacities
        self.capacities = capacities
        self.lags = {
            (item_id, member_id): lag
            for member_id, report in reports.items()
            for item_id, lag in report.lags.items()
        }
        if self.policy.measure:
            for item_id, load in self._busiest(reports).items():
                changed |= self._measure(item_id, load, now_monotonic_seconds)
        self._observed = True
        return changed

    def forget_all_but(self, item_ids: Collection[ItemId]) -> None:
        """Drop items that are no more."""
        for item_id in self._items.keys() - set(item_ids):
            del self._items[item_id]

    def _busiest(self, reports: Mapping[MemberId, MemberReport]) -> dict[ItemId, float]:
        found: dict[ItemId, float] = {}
        for report in reports.values():
            for item_id, replica in report.replicas.items():
                found[item_id] = max(found.get(item_id, 0.0), self._load(replica))
        return found

    def _load(self, replica: ReplicaLoad) -> float:
        policy = self.policy
        return (
            policy.cpu_weight * replica.cpu_ratio
            + policy.megabyte_weight * replica.bytes_per_second / _BYTES_IN_A_MEGABYTE
        )

    def _measure(self, item_id: ItemId, load: float, now: float) -> bool:
        policy = self.policy
        known = self._items.get(item_id)
        if known is None:
            drift = Drift(since_monotonic_seconds=now)
            if not self._observed:
                bucket = bucket_of(load, policy.bucket_ratio, least=LOAD_LEAST)
                drift = Drift(bucket=bucket, measured=True)
            self._items[item_id] = _Item(Smoothed(load, now), drift)
            return drift.measured
        known.smoothed = known.smoothed.after(load, now, half_life_seconds=policy.half_life_seconds)
        before = known.drift
        known.drift = before.after(
            known.smoothed.value,
            now,
            ratio=policy.bucket_ratio,
            least=LOAD_LEAST,
            persist_seconds=policy.persist_seconds,
        )
        return (before.bucket, before.measured) != (known.drift.bucket, known.drift.measured)
