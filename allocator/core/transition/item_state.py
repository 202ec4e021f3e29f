"""What to do next about one item: which replicas to add, to remove, to promote, to renumber.

    desired, not current ──► add      if the member has room
    current, not desired ──► remove   if what remains is safe, else keep for now
    both                 ──► keep
    no primary is left   ──► promote  the best of what is kept
    nothing else to do   ──► pack     slots become 0, 1, 2, …

Additions precede removals in time: a new replica starts inconsistent, and the one that it replaces stays until enough
others are consistent.

Invariants: a member at its limit gets nothing; a primary in place is never demoted; at most one replica has slot 0
afterwards.

Source: gazette/core allocator/item_state.go (gates and their order). Ours: promotion never prefers a member that
leaves; new primaries go where the fewest are; freed slots are used again; two replicas at one slot are told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from allocator.core.consistency import Consistency
from allocator.core.model import Assignment, Item, MemberId
from allocator.core.state import PRIMARY_SLOT, AllocState, Loads
from allocator.core.transition.removal import Replicas, load_ratio, removals


@dataclass(frozen=True, slots=True)
class Add:
    """A replica to create."""

    member_id: MemberId
    slot: int


@dataclass(frozen=True, slots=True)
class Move:
    """A replica to give another slot; slot 0 promotes it."""

    assignment: Assignment
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDecision:
    """The next step of one item. All of it belongs in one transaction."""

    item: Item
    adds: tuple[Add, ...] = ()
    removes: tuple[Assignment, ...] = ()
    moves: tuple[Move, ...] = ()
    keeps: tuple[Assignment, ...] = ()
    """What stays: removals rely on it, so it must still be as it was."""
    adds_blocked: int = 0
    """Additions that wait for room on their member."""
    removes_blocked: int = 0
    """Removals that wait for replacements to become consistent."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.adds or self.removes or self.moves)

    def loads_after(self, loads: Loads) -> Loads:
        """Return the loads once the step is done, without what its removals free.

        A removal may still fail, so its room is given away only when it is seen to be free.
        """
        if self.is_idle:
            return loads
        primaries = Counter(add.member_id for add in self.adds if add.slot == PRIMARY_SLOT)
        primaries.update(m.assignment.member_id for m in self.moves if m.slot == PRIMARY_SLOT)
        return loads.plus(Counter(add.member_id for add in self.adds), primaries)


def decide_item(
    state: AllocState,
    item: Item,
    *,
    desired: Collection[MemberId],
    loads: Loads,
    consistency: Consistency,
) -> ItemDecision:
    """Return the next step towards the desired placement of an item.

    Args:
        state: The snapshot to decide on.
        item: One of its items.
        desired: Members that should hold the item.
        loads: Replicas by member, with what was decided for earlier items.
        consistency: Tells which replicas may be relied upon.
    """
    current = state.assignments.get(item.item_id, ())
    if _is_settled(current, desired):
        return ItemDecision(item=item)
    replicas = Replicas.sort_out(state, item, desired=desired, consistency=consistency)
    removes = tuple(removals(state, replicas, loads))
    placed = _placed(state, replicas, removes, loads)
    holders = {assignment.member_id for assignment in current}
    wanted = [member_id for member_id in replicas.desired if member_id not in holders]
    adds = tuple(_additions(state, wanted, taken={move.slot for move in placed}, loads=loads))
    if not adds and not removes:
        placed = _packed(placed)
    return ItemDecision(
        item=item,
        adds=adds,
        removes=removes,
        moves=tuple(move for move in placed if move.slot != move.assignment.slot),
        keeps=tuple(move.assignment for move in placed),
        adds_blocked=len(wanted) - len(adds),
        removes_blocked=len(replicas.unwanted) - len(removes),
    )


def _is_settled(current: Sequence[Assignment], desired: Collection[MemberId]) -> bool:
    """Return whether an item is as desired to the last slot: the usual case, told cheaply."""
    return (
        len(current) == len(desired)
        and {a.member_id for a in current} == set(desired)
        and {a.slot for a in current} == set(range(len(current)))
    )


def _placed(
    state: AllocState, replicas: Replicas, removes: Collection[Assignment], loads: Loads
) -> list[Move]:
    """Return what is kept, by slot, each with the slot it should have now: one primary, no slot twice."""
    keep = sorted((a for a in replicas.current if a not in removes), key=lambda a: a.slot)
    promoted = _promotion(state, replicas, keep, loads)
    placed = [] if promoted is None else [Move(promoted, PRIMARY_SLOT)]
    # Slots of replicas that go in the same step are left alone: their keys may not be written twice in one transaction.
    taken = {assignment.slot for assignment in replicas.current} | {PRIMARY_SLOT}
    used = {move.slot for move in placed}
    for assignment in keep:
        if assignment is promoted:
            continue
        slot = assignment.slot
        if slot in used:
            slot = next(free for free in count() if free not in taken)
            taken.add(slot)
        used.add(slot)
        placed.append(Move(assignment, slot))
    return placed


def _promotion(
    state: AllocState, replicas: Replicas, keep: Sequence[Assignment], loads: Loads
) -> Assignment | None:
    """Return the replica to make primary; None if there is a primary, or no live replica."""
    if any(assignment.slot == PRIMARY_SLOT for assignment in keep):
        return None

    def rank(assignment: Assignment) -> tuple[bool, bool, float, int]:
        member_id, key = assignment.member_id, assignment.kv.key
        return (
            key not in replicas.consistent,
            key in replicas.unwanted or state.is_leaving(member_id),
            load_ratio(state, member_id, loads.primary),
            assignment.slot,
        )

    return min((a for a in keep if a.kv.key in replicas.live), key=rank, default=None)


def _additions(
    state: AllocState, wanted: Sequence[MemberId], *, taken: Collection[int], loads: Loads
) -> Iterator[Add]:
    """Yield additions for members with room, at the lowest free slots; a first primary where the fewest are."""
    roomy = [m for m in wanted if loads.total[m] < state.limits[m]]
    if PRIMARY_SLOT not in taken and roomy:
        primary = min(roomy, key=lambda m: _primary_rank(state, m, loads))
        roomy.remove(primary)
        roomy.insert(0, primary)
    free_slots = (slot for slot in count() if slot not in taken)
    for member_id, slot in zip(roomy, free_slots, strict=False):
        yield Add(member_id, slot)


def _primary_rank(
    state: AllocState, member_id: MemberId, loads: Loads
) -> tuple[bool, float, float, MemberId]:
    return (
        state.is_leaving(member_id),
        load_ratio(state, member_id, loads.primary),
        load_ratio(state, member_id, loads.total),
        member_id,
    )


def _packed(placed: list[Move]) -> list[Move]:
    """Close gaps between slots. Without a primary there is nothing to count from."""
    by_slot = sorted(placed, key=lambda move: move.slot)
    if not by_slot or by_slot[0].slot != PRIMARY_SLOT:
        return placed
    return [Move(move.assignment, slot) for slot, move in enumerate(by_slot)]
