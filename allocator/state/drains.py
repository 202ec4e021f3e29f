"""Progress of members that leave: their hand-overs so far, and how long the rest takes. Pure; time is data.

    replicas of exiting members at each look ──► durations of hand-overs ──► median × replicas left

Invariants: a drain that has handed nothing over, or has stopped to, has no time left that could be told. What was
handed over before the first look is not known, and is not counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

from broadsheet.allocator.keys import AssignmentKey
from broadsheet.allocator.model import ItemId, Member, MemberId
from broadsheet.allocator.state.mirror import Changes

HAND_OVERS_KEPT = 64
"""Hand-overs whose durations make the median: the last ones, because members that fill up take the rest slower."""
STALLED_MEDIANS = 10
"""A drain has stopped once this many medians have passed without a hand-over …"""
STALLED_SECONDS_LEAST = 10.0
"""… and at least this time: several replicas of one transaction leave with almost none between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Progress of one member's drain."""

    member_id: MemberId
    done: int
    """Replicas that were handed over, as far as they were seen."""
    left: int
    """Replicas that the member still has."""
    seconds_each: float | None
    """Median time of a hand-over, above 0; None: unknown."""

    @property
    def eta_seconds(self) -> float | None:
        """Seconds that the rest takes at the present rate; None: unknown."""
        if not self.left:
            return 0.0
        return None if self.seconds_each is None else self.left * self.seconds_each


@dataclass(slots=True)
class _Drain:
    """One member's drain: its replicas, and the durations of hand-overs."""

    fell_monotonic_seconds: float
    """Of the last hand-over; at first, of the first look."""
    held: set[AssignmentKey] = field(default_factory=set)
    slots: Counter[ItemId] = field(default_factory=Counter)
    """Slots of each item held: a primary that becomes a standby changes its slot, and leaves nothing."""
    done: int = 0
    durations_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=HAND_OVERS_KEPT))

    def hold(self, key: AssignmentKey) -> None:
        """Count a replica that the member has."""
        if key not in self.held:
            self.held.add(key)
            self.slots[key.item_id] += 1

    def release(self, key: AssignmentKey) -> None:
        """Count a replica no more, if it was counted."""
        if key not in self.held:
            return
        self.held.remove(key)
        self.slots[key.item_id] -= 1
        if not self.slots[key.item_id]:
            del self.slots[key.item_id]

    def on_left(self, gone: int, now_monotonic_seconds: float) -> None:
        """Count items that the member has no more."""
        if not gone:
            return
        passed = max(0.0, now_monotonic_seconds - self.fell_monotonic_seconds)
        self.fell_monotonic_seconds = now_monotonic_seconds
        self.done += gone
        self.durations_seconds.extend([passed / gone] * min(gone, HAND_OVERS_KEPT))

    def seconds_each(self, now_monotonic_seconds: float) -> float | None:
        """Return the median duration of a hand-over; None if there was none, or none for long."""
        if not self.durations_seconds:
            return None
        each = median(self.durations_seconds)
        rests_after = max(STALLED_SECONDS_LEAST, STALLED_MEDIANS * each)
        stalled = now_monotonic_seconds - self.fell_monotonic_seconds > rests_after
        # A clock that is too coarse for a hand-over tells no rate.
        return None if stalled or not each else each


class Drains:
    """The drains of a cluster, fed with each change of a mirror."""

    def __init__(self) -> None:
        self._drains: dict[MemberId, _Drain] = {}

    def look(
        self,
        members: Mapping[MemberId, Member],
        assignments: Collection[tuple[ItemId, MemberId, int]],
        changes: Changes,
        *,
        now_monotonic_seconds: float,
    ) -> None:
        """Take a step of the mirror.

        Costs one pass over all assignments when a member begins to leave, and else a look at the changed ones.

        Args:
            members: All that there are.
            assignments: Keys of all that there are; must be quick to look up.
            changes: Since the last look.
            now_monotonic_seconds: Never less than at the last look.
        """
        if changes.members:
            exiting = {m for m, member in members.items() if member.value.is_exiting()}
            # A member that is gone, or stays after all, drains no more.
            for member_id in self._drains.keys() - exiting:
                del self._drains[member_id]
            begun = exiting - self._drains.keys()
            if begun:
                self._begin(begun, assignments, now_monotonic_seconds)
        if not self._drains or not changes.assignments:
            return
        touched: dict[MemberId, set[ItemId]] = {}
        for key in changes.assignments:
            drain = self._drains.get(key.member_id)
            if drain is None:
                continue
            if key.item_id in drain.slots:
                touched.setdefault(key.member_id, set()).add(key.item_id)
            if key in assignments:
                drain.hold(key)
            else:
                drain.release(key)
        for member_id, items in touched.items():
            drain = self._drains[member_id]
            drain.on_left(len(items - drain.slots.keys()), now_monotonic_seconds)

    def _begin(
        self,
        begun: Collection[MemberId],
        assignments: Collection[tuple[ItemId, MemberId, int]],
        now_monotonic_seconds: float,
    ) -> None:
        for member_id in begun:
            self._drains[member_id] = _Drain(now_monotonic_seconds)
        for item_id, member_id, slot in assignments:
            if member_id in begun:
                self._drains[member_id].hold(AssignmentKey(item_id, member_id, slot))

    def progress(self, now_monotonic_seconds: float) -> Mapping[MemberId, DrainProgress]:
        """Return how far each drain is, by member."""
        return {
            member_id: DrainProgress(
                member_id=member_id,
                done=drain.done,
                left=len(drain.slots),
                seconds_each=drain.seconds_each(now_monotonic_seconds),
            )
            for member_id, drain in sorted(self._drains.items())
        }
