"""Assignment of leases to workers by a leader: every lease is held, and counts differ by at most one.

Free leases are assigned in every pass, to the workers with fewest. Leases of living workers are only ever *asked* for,
by a hand-off, one at a time from the worker with most to the worker with fewest, until they differ by one. A lease in
hand-off counts for its next owner, and is left alone until its holder releases it, or the hand-off times out.

Workers that take leases themselves, such as older ones or those of another program, count with their leases; they are
assigned nothing, and may be asked.

Source: awslabs/amazon-kinesis-client coordinator.assignment (assignment by count, hand-off deadlines).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from broadsheet.leases.worker.lease_view import LeaseView


class GivenHow(Enum):
    """Kind of an assignment."""

    FREE = "free"
    """The lease has no holder."""
    FORCED = "forced"
    """Its holder did not hand it off in time."""
    HAND_OFF = "hand-off"
    """Its holder is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAssignment:
    """One assignment of a lease to a worker."""

    key: str
    worker: str
    how: GivenHow


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentLimits:
    """Limits of a leader's pass."""

    leases_max: int
    """Most leases that a worker holds."""
    moves_max: int
    """Most hand-offs begun in a pass."""


def plan_assignments(
    leases: Sequence[LeaseView],
    *,
    workers: Collection[str],
    limits: AssignmentLimits,
    rebalances: bool,
    dice: Callable[[], float],
) -> tuple[LeaseAssignment, ...]:
    """Plan the assignments of one pass.

    Args:
        leases: All of the application that are not finished.
        workers: Those that live and take what they are given.
        limits: What to keep to.
        rebalances: Whether living workers are asked for leases in this pass.
        dice: Returns numbers in [0, 1): which of a worker's leases moves.
    """
    plan = _Plan(leases, workers, limits)
    plan.force_overdue()
    plan.give_free()
    if rebalances:
        plan.rebalance(dice)
    return tuple(plan.made)


class _Plan:
    """A plan in the making, with each worker's count of leases."""

    def __init__(
        self, leases: Sequence[LeaseView], workers: Collection[str], limits: AssignmentLimits
    ) -> None:
        self.made: list[LeaseAssignment] = []
        self._leases = leases
        self._workers = sorted(workers)
        self._limits = limits
        self._counts: Counter[str] = Counter(dict.fromkeys(self._workers, 0))
        self._counts.update(filter(None, map(_bound_for, leases)))

    def force_overdue(self) -> None:
        """Reassign leases whose hand-off timed out: to the next owner, if it lives."""
        for lease in self._leases:
            if lease.is_overdue:
                self._pass_on(lease, GivenHow.FORCED)

    def give_free(self) -> None:
        """Assign free leases, those free for longest first."""
        free = [lease for lease in self._leases if lease.held_by is None]
        for lease in sorted(free, key=lambda lease: (-lease.free_seconds, lease.key)):
            # A worker that takes leases itself may have claimed it: leave it to that worker.
            awaited_by_outsider = lease.bound_for not in (None, *self._workers)
            if lease.next_owner is not None or not awaited_by_outsider:
                self._pass_on(lease, GivenHow.FREE)

    def rebalance(self, dice: Callable[[], float]) -> None:
        """Move leases by hand-offs from the workers with most to those with fewest."""
        movable = self._movable(dice)
        moves = 0
        while moves < self._limits.moves_max and movable:
            giver = max(movable, key=lambda worker: (self._counts[worker], worker))
            taker = self._least_loaded(None)
            if taker is None or self._counts[giver] - self._counts[taker] <= 1:
                return
            self._assign(movable[giver].pop(), taker, GivenHow.HAND_OFF, before=giver)
            if not movable[giver]:
                del movable[giver]
            moves += 1

    def _movable(self, dice: Callable[[], float]) -> dict[str, list[str]]:
        """Return each worker's leases that it holds and is not asked for."""
        keys: dict[str, list[tuple[float, str]]] = {}
        for lease in self._leases:
            holder = lease.held_by
            if holder is not None and holder == _bound_for(lease):
                keys.setdefault(holder, []).append((dice(), lease.key))
        return {worker: [key for _, key in sorted(found)] for worker, found in keys.items()}

    def _pass_on(self, lease: LeaseView, how: GivenHow) -> None:
        """Assign a lease to the worker that awaits it, else to the one with fewest; to none if all are full."""
        awaiting = _bound_for(lease)
        if awaiting is not None and awaiting in self._workers:
            self._assign(lease.key, awaiting, how, before=awaiting)
        elif (worker := self._least_loaded(lease.last_holder)) is not None:
            self._assign(lease.key, worker, how, before=awaiting)

    def _least_loaded(self, avoided: str | None) -> str | None:
        """Return the worker with fewest leases and room for more; the avoided one counts as having one more."""
        with_room = [name for name in self._workers if self._counts[name] < self._limits.leases_max]
        return min(
            with_room,
            key=lambda name: (self._counts[name] + (name == avoided), name == avoided, name),
            default=None,
        )

    def _assign(self, key: str, worker: str, how: GivenHow, *, before: str | None) -> None:
        self.made.append(LeaseAssignment(key=key, worker=worker, how=how))
        if before is not None:
            self._counts[before] -= 1
        self._counts[worker] += 1


def _bound_for(lease: LeaseView) -> str | None:
    """Return the worker that a lease counts for; in a hand-off the next owner, because only the leader ends one."""
    return lease.next_owner or lease.bound_for
