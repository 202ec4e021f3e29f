"""Choice of the replica of each item that should be its primary.

Primaries are chosen after the replicas, because a primary costs more than a standby, and members with a fair share of
replicas may still have all primaries or none. Primaries are elected where there are few, in proportion to the members'
capacities, counted as one each.

    live, and stays desired   fixed, unless hand-overs are wanted: then it may move to any other replica of its item
    lost                      one of the remaining replicas, because only they can take over at once
    to leave, or none yet     any desired replica, because the new ones are ready by then

Invariants: a planned primary is one of its item's desired replicas; nothing is planned on a leaving member, or on a
replica that stays failed, if there is another. The choice is the most level one, then the one with the fewest
hand-overs (`semi_matching`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Desired, Problem, ProblemItem, ProblemMember
from broadsheet.allocator.placement.semi_matching import SemiMatching, UnitClass
from broadsheet.allocator.placement.shares import capacity_of
from broadsheet.allocator.policy import PrimaryPolicy

HAND_OVERS_LISTED_MAX = 32
"""Hand-overs returned at a time: few are carried out at once, and the others are computed again."""

Primaries = Mapping[ItemId, MemberId]
"""The replica of each item that should be primary; an item without replicas is absent."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """A live primary that should move to another replica of its item."""

    item_id: ItemId
    from_member: MemberId
    to_member: MemberId


def plan_primaries(problem: Problem, desired: Desired, *, policy: PrimaryPolicy) -> Primaries:
    """Return the member that should be primary of each item.

    Args:
        problem: The problem that `desired` answers.
        desired: The members that should hold each item.
        policy: Whether live primaries may move.
    """
    election = _Election(problem, desired)
    primaries = election.held(hand_over=False)
    threshold = policy.hand_over_above_spread
    if threshold > 0 and primary_spread(problem.members, Counter(primaries.values())) > threshold:
        return election.held(hand_over=True)
    return primaries


def wanted_hand_overs(
    problem: Problem, desired: Desired, *, policy: PrimaryPolicy
) -> tuple[HandOver, ...]:
    """Return the hand-overs that would level primaries now, most useful first; empty if they are level enough.

    It starts from the current live primaries rather than the planned ones, because elections choose replicas that have
    caught up.

    Args:
        problem: The current problem.
        desired: The members that should hold each item.
        policy: Whether live primaries may move.
    """
    live = Counter(item.primary for item in problem.items if item.primary is not None)
    threshold = policy.hand_over_above_spread
    if not threshold or primary_spread(problem.members, live) <= threshold:
        return ()
    planned = plan_primaries(problem, desired, policy=policy)
    wanted = [
        HandOver(item.item_id, item.primary, planned[item.item_id])
        for item in problem.items
        if item.primary is not None
        and item.primary in desired.get(item.item_id, ())
        and planned[item.item_id] != item.primary
        and planned[item.item_id] in item.current
    ]
    return _most_useful_first(problem.members, live, wanted)


def primary_spread(members: Sequence[ProblemMember], primaries: Mapping[MemberId, int]) -> int:
    """Return the largest difference in primaries between two members, each counted from its share by capacity.

    With equal capacities it is the most minus the fewest. Members that leave or take nothing do not count, nor do their
    primaries.
    """
    staying = [member for member in members if _stays(member)]
    if not staying:
        return 0
    total = sum(primaries.get(member.member_id, 0) for member in staying)
    capacity = sum(map(capacity_of, staying))
    # Counted in units of 1/total capacity, so that all numbers are integers.
    excess = [
        primaries.get(member.member_id, 0) * capacity - total * capacity_of(member)
        for member in staying
    ]
    return (max(excess) - min(excess)) // capacity


def _stays(member: ProblemMember) -> bool:
    return member.limit > 0 and not member.closed


class _Election:
    """Items that need a primary, grouped by their candidates."""

    def __init__(self, problem: Problem, desired: Desired) -> None:
        self._items = problem.items
        self._desired = desired
        self._members = problem.members
        self._staying = frozenset(m.member_id for m in problem.members if _stays(m))

    def held(self, *, hand_over: bool) -> dict[ItemId, MemberId]:
        """Return the best primaries, with or without moving live ones."""
        fixed: dict[ItemId, MemberId] = {}
        free: dict[tuple[tuple[MemberId, ...], MemberId | None], list[ItemId]] = {}
        for item in self._items:
            placed = self._desired.get(item.item_id, ())
            if not placed:
                continue
            home = item.primary if item.primary in placed else None
            if home is not None and not hand_over:
                fixed[item.item_id] = home
                continue
            choices = self._choices(item, placed)
            if home is not None and home not in choices:
                fixed[item.item_id] = home
            elif len(choices) == 1:
                fixed[item.item_id] = choices[0]
            else:
                free.setdefault((choices, home), []).append(item.item_id)
        if not free:
            return fixed
        return fixed | self._elect(fixed, free)

    def _choices(self, item: ProblemItem, placed: tuple[MemberId, ...]) -> tuple[MemberId, ...]:
        """Return the replicas that may become primary."""
        choices = placed
        # Only a replica that exists can take over at once.
        if item.primary is None and item.current:
            choices = _preferred(choices, item.current.__contains__)
        choices = _preferred(choices, lambda member_id: member_id not in item.avoided)
        return _preferred(choices, self._staying.__contains__)

    def _elect(
        self,
        fixed: Mapping[ItemId, MemberId],
        free: Mapping[tuple[tuple[MemberId, ...], MemberId | None], list[ItemId]],
    ) -> dict[ItemId, MemberId]:
        index = {member.member_id: i for i, member in enumerate(self._members)}
        base_loads = [0] * len(index)
        for member_id in fixed.values():
            base_loads[index[member_id]] += 1
        choice = SemiMatching(
            [capacity_of(member) for member in self._members],
            base_loads,
            [
                UnitClass(
                    choices=tuple(index[member_id] for member_id in choices),
                    home=None if home is None else index[home],
                    size=len(item_ids),
                )
                for (choices, home), item_ids in free.items()
            ],
        )
        choice.solve()
        elected: dict[ItemId, MemberId] = {}
        for class_index, item_ids in enumerate(free.values()):
            left = iter(item_ids)
            for member, units in choice.units(class_index):
                for _ in range(units):
                    elected[next(left)] = self._members[member].member_id
        return elected


def _preferred(
    choices: tuple[MemberId, ...], is_better: Callable[[MemberId], bool]
) -> tuple[MemberId, ...]:
    """Return the preferred candidates, or all if there are none."""
    return tuple(member_id for member_id in choices if is_better(member_id)) or choices


def _most_useful_first(
    members: Sequence[ProblemMember],
    live: Mapping[MemberId, int],
    wanted: Sequence[HandOver],
) -> tuple[HandOver, ...]:
    """Return hand-overs in the order in which each, after those before it, levels the most."""
    scale = lcm(*map(capacity_of, members))
    per_unit = {member.member_id: scale // capacity_of(member) for member in members}
    loads = Counter(live)
    waiting: dict[tuple[MemberId, MemberId], list[HandOver]] = {}
    for each in reversed(wanted):
        waiting.setdefault((each.from_member, each.to_member), []).append(each)

    def gain(pair: tuple[MemberId, MemberId]) -> int:
        source, target = pair
        return (2 * loads[source] - 1) * per_unit[source] - (2 * loads[target] + 1) * per_unit[
            target
        ]

    ordered: list[HandOver] = []
    while waiting and len(ordered) < HAND_OVERS_LISTED_MAX:
        best = max(waiting, key=gain)
        ordered.append(waiting[best].pop())
        loads[best[0]] -= 1
        loads[best[1]] += 1
        if not waiting[best]:
            del waiting[best]
    return tuple(ordered)
