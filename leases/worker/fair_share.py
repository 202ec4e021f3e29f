"""A worker's fair share: the leases that it takes, and those that it asks other workers for.

Free leases are taken first, those free for longest before others. Only when there are none is a worker asked for
leases, the one with most first, and never for so many that it falls below its share. Finished shards do not count. A
lease that was asked for counts for its next holder.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseTaker (target, very old leases, stealing). Theirs
counts finished shards, steals from one worker a round, and takes leases that are new regardless of its share.
Azure/azure-sdk-for-js event-hubs loadBalancerStrategies (who may have one of the odd ones).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from broadsheet.leases.worker.lease_view import LeaseView


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """Limits of a worker's round."""

    leases_max: int
    """Most leases that it holds."""
    steals_max: int
    """Most leases that it asks others for in a round."""
    overdue_seconds: float
    """A lease that was free for so long is taken even beyond the fair share: others have had their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Plan of a worker's round."""

    target: int
    """Its fair share, in leases."""
    to_take: tuple[str, ...]
    """Free leases, in the order in which to try them."""
    take_max: int
    """Most of them that it takes; it may lose the race for some."""
    to_steal: tuple[str, ...]
    """Leases to ask their holders for."""


def plan_shares(
    leases: Sequence[LeaseView], *, me: str, limits: ShareLimits, dice: Callable[[], float]
) -> Shares:
    """Plan a worker's round.

    Args:
        leases: All of the application that are not finished.
        me: The worker.
        limits: What it allows itself.
        dice: Returns numbers in [0, 1): so that workers differ in what they try first.
    """
    counts = _counts(leases, me)
    target = min(_fair_share(len(leases), len(counts)), limits.leases_max)
    free = [lease for lease in leases if lease.held_by is None and lease.bound_for in (None, me)]
    overdue = [lease for lease in free if lease.free_seconds > limits.overdue_seconds]
    room = limits.leases_max - counts[me]
    missing = target - counts[me]
    # No other worker took these in time, so they are taken even beyond the fair share.
    if overdue and len(overdue) > missing:
        return _taking(target, overdue, room, dice)
    if free:
        return _taking(target, free, missing, dice)
    goal = min(target, _goal(len(leases), counts, me))
    asking = min(goal - counts[me], limits.steals_max)
    spare = _SpareLeases(_by_holder(leases, me, dice), counts, goal=goal)
    to_steal = spare.chosen(asking, mine=counts[me])
    return Shares(target=target, to_take=(), take_max=0, to_steal=to_steal)


def _counts(leases: Iterable[LeaseView], me: str) -> Counter[str]:
    """Count the leases of each living worker, including the one that plans."""
    counts = Counter(lease.bound_for for lease in leases if lease.bound_for is not None)
    counts.setdefault(me, 0)
    return counts


def _fair_share(leases: int, workers: int) -> int:
    return 1 if workers >= leases else math.ceil(leases / workers)


def _goal(leases: int, counts: Counter[str], me: str) -> int:
    """Return the count of leases up to which asking others is worthwhile.

    Some workers end with one lease more than the least. A worker counts on such an odd lease only if one is left for
    it, because an overloaded worker gives leases to those with too few and keeps an odd one; otherwise leases would go
    back and forth.
    """
    least, odd = divmod(leases, len(counts))
    others_with_more = sum(count > least for worker, count in counts.items() if worker != me)
    return least + (others_with_more < odd)


def _taking(target: int, free: Sequence[LeaseView], most: int, dice: Callable[[], float]) -> Shares:
    # Leases that became free in the same round are in random order, so that workers try different ones.
    order = sorted(free, key=lambda lease: (-lease.free_seconds, dice()))
    return Shares(
        target=target,
        to_take=tuple(lease.key for lease in order),
        take_max=max(0, min(most, len(order))),
        to_steal=(),
    )


class _SpareLeases:
    """The leases that other workers have beyond a goal."""

    def __init__(
        self, keys_by_holder: dict[str, list[str]], counts: Counter[str], *, goal: int
    ) -> None:
        self._keys = keys_by_holder
        self._left = Counter({worker: counts[worker] for worker in keys_by_holder})
        self._goal = goal

    def chosen(self, most: int, *, mine: int) -> tuple[str, ...]:
        """Return leases to steal, one by one, each from the worker with most at that moment.

        Args:
            most: At most so many.
            mine: The leases that the thief has.
        """
        stolen: list[str] = []
        while len(stolen) < most and self._left:
            victim = max(self._left, key=lambda worker: (self._left[worker], worker))
            spare = self._left[victim] - self._goal
            # A difference of one lease is balanced.
            if spare < 0 or (spare == 0 and self._goal - mine - len(stolen) <= 1):
                break
            if not self._keys[victim]:
                del self._left[victim]
                continue
            stolen.append(self._keys[victim].pop())
            self._left[victim] -= 1
        return tuple(stolen)


def _by_holder(
    leases: Iterable[LeaseView], me: str, dice: Callable[[], float]
) -> dict[str, list[str]]:
    """Return every other worker's leases that it is not asked for yet."""
    keys: dict[str, list[tuple[float, str]]] = {}
    for lease in leases:
        if lease.held_by not in (None, me) and lease.held_by == lease.bound_for:
            keys.setdefault(lease.held_by, []).append((dice(), lease.key))
    return {worker: [key for _, key in sorted(found)] for worker, found in keys.items()}
