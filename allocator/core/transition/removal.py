"""Which replicas of an item may go now.

Invariants: a removal never leaves fewer live consistent replicas than the item wants, nor fewer zones than it spans
now and is meant to span. Two kinds of replica are not protected: a second one on the same member, and one whose member
is gone, or that has failed for too long, once a live consistent one can take over.

Source: gazette/core allocator/item_state.go (the removal gate). Ours: each removal is judged by itself, so that a
blocked one does not block the rest; zones are looked at; dead replicas do not count as consistent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from allocator.core.consistency import Consistency
from allocator.core.model import Assignment, Item, MemberId
from allocator.core.placement.problem import ZONES_WANTED, zones_spanned
from allocator.core.state import AllocState, Loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """An item's assignments, sorted out."""

    replication: int
    current: tuple[Assignment, ...]
    desired: tuple[MemberId, ...]
    """Members that should hold the item and are there."""
    unwanted: frozenset[bytes]
    """Keys of assignments that should go."""
    surplus: frozenset[bytes]
    """Keys of assignments beside another of the same member: not legal, and worth nothing."""
    live: frozenset[bytes]
    """Keys of assignments, surplus ones and long failed ones apart, whose member is there."""
    consistent: frozenset[bytes]
    """Keys of live assignments that may be relied upon."""

    @classmethod
    def sort_out(
        cls,
        state: AllocState,
        item: Item,
        *,
        desired: Collection[MemberId],
        consistency: Consistency,
    ) -> Replicas:
        """Look at every assignment of an item once."""
        current = state.assignments.get(item.item_id, ())
        surplus = frozenset(_surplus_keys(current))
        live = [
            a
            for a in current
            if a.member_id in state.members
            and a.kv.key not in surplus
            and (a.item_id, a.member_id) not in state.avoided
        ]
        return cls(
            replication=item.value.desired_replication(),
            current=current,
            desired=tuple(m for m in desired if m in state.members),
            unwanted=surplus | {a.kv.key for a in current if a.member_id not in desired},
            surplus=surplus,
            live=frozenset(a.kv.key for a in live),
            consistent=frozenset(
                a.kv.key for a in live if consistency.is_consistent(item, a, current)
            ),
        )


def _surplus_keys(current: Sequence[Assignment]) -> Iterator[bytes]:
    """Yield all but the lowest slot of each member."""
    seen: set[MemberId] = set()
    for assignment in sorted(current, key=lambda a: (a.member_id, a.slot)):
        if assignment.member_id in seen:
            yield assignment.kv.key
        seen.add(assignment.member_id)


def load_ratio(state: AllocState, member_id: MemberId, loads: Mapping[MemberId, int]) -> float:
    """Return a member's load by its limit. Without a limit, or without a member, nothing is worse."""
    limit = state.limits.get(member_id, 0)
    return loads[member_id] / limit if limit > 0 else inf


def removals(state: AllocState, replicas: Replicas, loads: Loads) -> Iterator[Assignment]:
    """Yield unwanted replicas that may go now: dead ones first, then inconsistent ones, then from loaded members."""

    def eagerness(assignment: Assignment) -> tuple[bool, bool, float, MemberId, int]:
        return (
            assignment.kv.key in replicas.live,
            assignment.kv.key in replicas.consistent,
            -load_ratio(state, assignment.member_id, loads.total),
            assignment.member_id,
            assignment.slot,
        )

    staying = {a.kv.key: a for a in replicas.current if a.kv.key in replicas.live}
    unwanted = (a for a in replicas.current if a.kv.key in replicas.unwanted)
    for assignment in sorted(unwanted, key=eagerness):
        if _may_go(replicas, assignment, staying):
            staying.pop(assignment.kv.key, None)
            yield assignment


def _may_go(
    replicas: Replicas, assignment: Assignment, staying: Mapping[bytes, Assignment]
) -> bool:
    key = assignment.kv.key
    if replicas.replication == 0 or key in replicas.surplus:
        return True
    consistent = [a for a in staying.values() if a.kv.key in replicas.consistent]
    if key not in replicas.live:
        return bool(consistent)
    consistent_after = [a for a in consistent if a is not assignment]
    if len(consistent_after) < replicas.replication:
        return False
    zones_wanted = min(ZONES_WANTED, zones_spanned(replicas.desired))
    staying_after = [a for a in staying.values() if a is not assignment]
    return all(
        _zones(after) >= min(zones_wanted, _zones(before))
        for before, after in ((consistent, consistent_after), (staying.values(), staying_after))
    )


def _zones(assignments: Iterable[Assignment]) -> int:
    return zones_spanned(a.member_id for a in assignments)
