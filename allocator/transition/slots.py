"""Slots of the replicas of an item. A slot is part of a key, so a change of slot takes two writes.

    primary              slot 0, and no other replica
    new replica          the slot of the standby that it replaces, else the lowest free one
    nothing to add       0, 1, 2, …: higher slots move into the gaps

So a new replica usually starts with its final slot, and a slot may be held twice while a standby goes. Each remaining
replica has a distinct slot; an unwanted one without another place remains.

Source: gazette/core allocator/item_state.go (slot 0, and packing at rest). There a new replica takes the next free
slot, and every replica above the one that goes is renumbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from broadsheet.allocator.model import Assignment
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT
from broadsheet.allocator.transition.removals import to_go
from broadsheet.allocator.transition.replicas import ItemReplicas


@dataclass(frozen=True, slots=True)
class SlotMove:
    """A replica's new slot; slot 0 promotes it."""

    assignment: Assignment
    slot: int

    @property
    def from_primary(self) -> bool:
        """True if the move takes slot 0 from a replica."""
        return self.assignment.slot == PRIMARY_SLOT != self.slot


def assign_distinct_slots(
    replicas: ItemReplicas, keep: Sequence[Assignment], promoted: Assignment | None
) -> list[SlotMove]:
    """Return the kept replicas with their slots: one primary, and distinct slots among those that stay.

    Args:
        replicas: The replicas of the item.
        keep: The replicas that do not go now, by slot.
        promoted: The one that becomes primary; None if there is a primary, or none can be.
    """
    placed = [] if promoted is None else [SlotMove(promoted, PRIMARY_SLOT)]
    others = keep if promoted is None else [a for a in keep if a is not promoted]
    if len({a.slot for a in others}) == len(others):
        # If one is promoted, none of them has slot 0.
        return [*placed, *(SlotMove(assignment, assignment.slot) for assignment in others)]
    # Slots of replicas that go in the same step stay unused, because one transaction may not write a key twice.
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
        placed.append(SlotMove(assignment, slot))
    return placed


def exchanged(placed: list[SlotMove], primary: Assignment, heir: Assignment) -> list[SlotMove]:
    """Exchange the slots of a primary and its successor."""
    slot = next(move.slot for move in placed if move.assignment is heir)
    new = {primary.kv.key: slot, heir.kv.key: PRIMARY_SLOT}
    return [
        SlotMove(move.assignment, new.get(move.assignment.kv.key, move.slot)) for move in placed
    ]


def packed(replicas: ItemReplicas, placed: list[SlotMove]) -> list[SlotMove]:
    """Fill each gap with the last replica, so that no slot is skipped. Without a primary, nothing is packed."""
    used = {move.slot for move in placed}
    if PRIMARY_SLOT not in used or max(used) < len(used):
        return placed
    rest = sorted(
        placed, key=lambda move: (move.slot, move.assignment.kv.key not in replicas.unwanted)
    )
    moved: list[SlotMove] = []
    while (gap := next(slot for slot in count() if slot not in used)) < rest[-1].slot:
        last = rest.pop()
        moved.append(SlotMove(last.assignment, gap))
        used = {move.slot for move in (*rest, *moved)}
    return [*rest, *moved]


def slots_for_newcomers(replicas: ItemReplicas, placed: Iterable[SlotMove]) -> Iterator[int]:
    """Yield slots in the order in which new replicas take them, without end."""
    going = to_go(replicas)
    taken = {
        move.slot
        for move in placed
        if move.slot == PRIMARY_SLOT or move.assignment.kv.key not in going
    }
    yield from (slot for slot in count() if slot not in taken)
