"""The slots of an item's replicas. A slot is part of a key, so another slot is another key: two writes.

    primary              slot 0, and no other replica
    newcomer             the slot of a standby that goes for it, else the lowest that is free
    nothing to add       0, 1, 2, …: what is beyond moves into the gaps

So a newcomer usually has from the start the slot that it will keep, and a slot may be held twice while a standby goes.
Of the replicas that stay each has a slot of its own; an unwanted one that cannot go for want of another place stays.

Source: gazette/core allocator/item_state.go (slot 0, and packing at rest). There a newcomer takes the next free slot,
and every replica above the one that goes is renumbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from allocator.core.transition.removal import to_go
from allocator.core.transition.replicas import Replicas
from allocator.model import Assignment
from allocator.state.alloc_state import PRIMARY_SLOT


@dataclass(frozen=True, slots=True)
class Move:
    """A replica to give another slot; slot 0 promotes it."""

    assignment: Assignment
    slot: int

    @property
    def from_primary(self) -> bool:
        """Whether it takes slot 0 from a replica."""
        return self.assignment.slot == PRIMARY_SLOT != self.slot


def assign_distinct_slots(
    replicas: Replicas, keep: Sequence[Assignment], promoted: Assignment | None
) -> list[Move]:
    """Return the replicas that are kept, each with its slot: one primary, and no slot twice among those that stay.

    Args:
        replicas: Of the item.
        keep: What does not go now, by slot.
        promoted: The one of them that becomes primary; None if one is primary, or none can be.
    """
    placed = [] if promoted is None else [Move(promoted, PRIMARY_SLOT)]
    others = keep if promoted is None else [a for a in keep if a is not promoted]
    if len({a.slot for a in others}) == len(others):
        # If one is promoted, none of them has slot 0.
        return [*placed, *(Move(assignment, assignment.slot) for assignment in others)]
    # Slots of replicas that go in the same step are left alone: their keys may not be written twice in one transaction.
    taken = {assignment.slot for assignment in replicas.current} | {PRIMARY_SLOT}
    used = {move.slot for move in placed}
    going = to_go(replicas)

    def claim(assignment: Assignment) -> tuple[int, bool, bool, int]:
        key = assignment.kv.key
        is_behind, is_unwanted = key not in replicas.consistent, key in replicas.unwanted
        return (assignment.slot, is_behind, is_unwanted, assignment.kv.create_revision)

    for assignment in sorted(others, key=claim):
        slot = assignment.slot
        counts = slot == PRIMARY_SLOT or assignment.kv.key not in going
        if counts and slot in used:
            slot = next(free for free in count() if free not in taken)
            taken.add(slot)
        if counts:
            used.add(slot)
        placed.append(Move(assignment, slot))
    return placed


def exchanged(placed: list[Move], primary: Assignment, heir: Assignment) -> list[Move]:
    """Let a primary and the replica that takes its place trade slots."""
    slot = next(move.slot for move in placed if move.assignment is heir)
    new = {primary.kv.key: slot, heir.kv.key: PRIMARY_SLOT}
    return [Move(move.assignment, new.get(move.assignment.kv.key, move.slot)) for move in placed]


def packed(replicas: Replicas, placed: list[Move]) -> list[Move]:
    """Fill each gap with what is last: no slot is left out. Without a primary there is nothing to count from."""
    used = {move.slot for move in placed}
    if PRIMARY_SLOT not in used or max(used) < len(used):
        return placed
    rest = sorted(
        placed, key=lambda move: (move.slot, move.assignment.kv.key not in replicas.unwanted)
    )
    moved: list[Move] = []
    while (gap := next(slot for slot in count() if slot not in used)) < rest[-1].slot:
        last = rest.pop()
        moved.append(Move(last.assignment, gap))
        used = {move.slot for move in (*rest, *moved)}
    return [*rest, *moved]


def slots_for_newcomers(replicas: Replicas, placed: Iterable[Move]) -> Iterator[int]:
    """Yield slots in the order in which newcomers take them, without end."""
    going = to_go(replicas)
    taken = {
        move.slot
        for move in placed
        if move.slot == PRIMARY_SLOT or move.assignment.kv.key not in going
    }
    yield from (slot for slot in count() if slot not in taken)
