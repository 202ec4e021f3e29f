"""Loads that members measured, smoothed so that placement is stable.

    reports ──► the most that any replica of an item takes ──► smoothed ──► bucket, if it persists ──► load in force

An item's load is that of its busiest replica, because any of them may have to do the same work later.

Invariants: pure, time is data. A new leader accepts the first reports at once, because its predecessor used only
persistent values; from then on only a drift that persists changes a load. An item without a report keeps its load,
because items that move between members are temporarily not reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd, log
from typing import TypeAlias

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.policy import LoadPolicy

LOAD_LEAST = 1.0
"""A lower load is idle, and weighs 1."""
_BYTES_IN_A_MEGABYTE = 1_000_000

# Bucket `b` represents the load `ratio ** b`. A value between two buckets stays in its previous one, so noise near a
# border changes nothing.
HOLD_STEPS = 0.75
"""Steps from a bucket's middle at which it is left; above one half, so that neighbours overlap."""
IDLE = None
"""The bucket of values too small to matter."""
Bucket = int | None


@dataclass(frozen=True, slots=True, order=True)
class Lag:
    """A standby's remaining replay, as its member last reported it; rounded.

    It decides which of several standbys to promote.

    Source: comparable systems promote any standby; Kafka Streams' `acceptable.recovery.lag` is the closest.
    """

    seconds: float = 0.0
    """At its current replay rate; infinite if it makes no progress."""
    behind_bytes: int = 0
    """Of its recovery log."""


Lags: TypeAlias = Mapping[tuple[ItemId, MemberId], Lag]
"""Of replicas that are behind; absent ones have caught up, or have nothing to play."""
CAUGHT_UP = Lag()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The load of one replica."""

    bytes_per_second: float = 0.0
    """Bytes consumed a second."""
    cpu_ratio: float = 0.0
    """CPU seconds a second: 1 is one CPU kept busy."""
    behind_seconds: float = 0.0
    """How long the unread input takes at the present rate; 0 also for a replica that makes no progress."""
    median_group: int = 0
    """First group of keys of the upper half of the load; 0: unknown, or no group divides it."""
    busiest_group_ratio: float = 0.0
    """Part of the load that the busiest group of keys has; 0: unknown."""
    state_bytes: int = 0
    """Of keyed state."""
    quantile_groups: tuple[int, ...] = ()
    """First groups of keys of each sixteenth of the load but the first, ascending; none: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """The load report of one member; already rounded, so that it changes rarely."""

    capacity: int = 0
    """Load that the member can carry beside others; 0: its limit."""
    replicas: Mapping[ItemId, ReplicaLoad] = field(default_factory=dict)
    lags: Mapping[ItemId, Lag] = field(default_factory=dict)
    """Of standbys here that are behind."""


def bucket_of(value: float, ratio: float, *, least: float) -> Bucket:
    """Return the bucket nearest to a value; `IDLE` below `least`."""
    return IDLE if value < least else round(log(value, ratio))


def held_bucket(previous: Bucket, value: float, ratio: float, *, least: float) -> Bucket:
    """Return the bucket of a value that was in `previous` before, which it leaves only for a clear difference."""
    if previous is IDLE:
        # Half a step above the least load, it stops being idle.
        return bucket_of(value, ratio, least=least * ratio**0.5)
    if value < least / ratio**0.5:
        return IDLE
    return previous if abs(log(value, ratio) - previous) <= HOLD_STEPS else round(log(value, ratio))


def value_of(bucket: Bucket, ratio: float) -> float:
    """Return the load that a bucket represents; 0 for `IDLE`."""
    return 0.0 if bucket is IDLE else ratio**bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The bucket in force, and since when measurements are in another one.

    in force ──elsewhere──► drifting ──for `persist_seconds` without a break──► in force
       ▲                       │
       └────── back again ─────┘
    """

    bucket: Bucket = IDLE
    measured: bool = False
    """Whether `bucket` was measured; before that, it is not used."""
    since_monotonic_seconds: float | None = None

    def after(
        self,
        value: float,
        now_monotonic_seconds: float,
        *,
        ratio: float,
        least: float,
        persist_seconds: float,
    ) -> Drift:
        """Return the drift after `value` is measured now."""
        bucket = held_bucket(self.bucket, value, ratio, least=least)
        # Back in the bucket in force, so the drift is over.
        if self.measured and bucket == self.bucket:
            if self.since_monotonic_seconds is None:
                return self
            return replace(self, since_monotonic_seconds=None)
        since = self.since_monotonic_seconds
        if since is None:
            since = now_monotonic_seconds
        if now_monotonic_seconds - since < persist_seconds:
            return replace(self, since_monotonic_seconds=since)
        return Drift(bucket=bucket, measured=True)


@dataclass(frozen=True, slots=True)
class Smoothed:
    """An average with exponential decay, and the time up to which it was measured."""

    value: float
    at_monotonic_seconds: float

    def after(
        self, sample: float, now_monotonic_seconds: float, *, half_life_seconds: float
    ) -> Smoothed:
        """Return the average once `sample` has been measured from then until now."""
        elapsed = max(0.0, now_monotonic_seconds - self.at_monotonic_seconds)
        kept = 0.5 ** (elapsed / half_life_seconds) if half_life_seconds > 0.0 else 0.0
        return Smoothed(kept * self.value + (1.0 - kept) * sample, now_monotonic_seconds)


@dataclass(slots=True)
class _Item:
    smoothed: Smoothed
    drift: Drift


class MeasuredLoads:
    """Loads and capacities, as a leader knows them."""

    def __init__(self, policy: LoadPolicy) -> None:
        """Start without measurements.

        Args:
            policy: Whether and how measurements are used. Declared capacities always are.
        """
        self.policy = policy
        self.capacities: Mapping[MemberId, int] = {}
        """By member; those that declare none are absent."""
        self.lags: Lags = {}
        """Lags of the standbys that are behind. They decide promotions, not placement."""
        self._items: dict[ItemId, _Item] = {}
        self._observed = False

    @property
    def loads(self) -> Mapping[ItemId, int] | None:
        """The load in force of each item measured for long enough; None if measurements are not used."""
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
        """Update from members' current reports. Return whether any value in force changed."""
        capacities = {m: report.capacity for m, report in reports.items() if report.capacity > 0}
        changed = capacities != self.capacities
        self.capacities = capacities
        self.lags = {
            (item_id, member_id): lag
            for member_id, report in reports.items()
            for item_id, lag in report.lags.items()
        }
        # Declared capacities and lags count even where loads are not measured.
        if self.policy.measure:
            for item_id, load in self._busiest(reports).items():
                changed |= self._measure(item_id, load, now_monotonic_seconds)
        self._observed = True
        return changed

    def forget_all_but(self, item_ids: Collection[ItemId]) -> None:
        """Drop items that do not exist any more."""
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
            # The first reports of a new leader count at once, because its predecessor used only persistent values.
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


WEIGHT_OF_ONE = 1000
"""Declared weights are counted in thousandths."""


def declared_weight(value: object) -> int | None:
    """Return the weight that an item's value declares, in thousandths, from 1; None if it does not.

    Args:
        value: One whose items may have weights has a property `weight_thousandths: int | None`.
    """
    # `isinstance` of a protocol takes half as long as decoding the item, for each that is applied.
    weight: int | None = getattr(value, "weight_thousandths", None)
    return weight


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemWeights:
    """The inputs of all items' loads, frozen. Loads are integers.

    not measuring   a weight of 1 is 1, or, if any weight has a fraction, the least that makes all of them whole
    measuring       declared weight ──► weight × `declared_weight`
                    measured load   ──► unchanged;  not measured yet ──► as a declared weight of 1
    """

    declared: Mapping[ItemId, int] = field(default_factory=dict)
    """Thousandths, by item; items that declare none are absent."""
    measured: Mapping[ItemId, int] | None = None
    """Loads in force, by item; None if measurements are not used."""
    policy: LoadPolicy = field(default_factory=LoadPolicy)

    def loads(self, item_ids: Iterable[ItemId]) -> dict[ItemId, int]:
        """Return each item's load, at least 1; absent items weigh 1."""
        if self.measured is None:
            return self._declared_loads(item_ids)
        one = max(1, round(self.policy.declared_weight))
        measured = self.measured
        return {item_id: measured.get(item_id, one) for item_id in item_ids} | {
            item_id: max(1, round(self.policy.declared_weight * weight / WEIGHT_OF_ONE))
            for item_id, weight in self.declared.items()
        }

    def _declared_loads(self, item_ids: Iterable[ItemId]) -> dict[ItemId, int]:
        unit = gcd(WEIGHT_OF_ONE, *self.declared.values())
        one = WEIGHT_OF_ONE // unit
        loads = {} if one == 1 else dict.fromkeys(item_ids, one)
        return loads | {item_id: weight // unit for item_id, weight in self.declared.items()}
