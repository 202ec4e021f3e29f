r"""What starts, is promoted or stops here: the shards that run against those assigned.

A promotion is seen as a *new* assignment key (the slot is part of the key) with a lower slot. Every other new key, that
is any other create revision, is another life of the replica: the old one ends and a new one starts.

    running \ assigned     absent   same key   lower slot   other key, slot not lower
    absent                 -        -          -            Start
    running                Stop     Update     Promote      Replace

Source: gazette/core consumer/resolver.go (updateLocalShards), consumer/shard.go (transition).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from allocator.model import Assignment, Item, ItemId, MemberId


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that this process runs: the assignment it was last told of."""

    slot: int
    create_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A replica that this process should run."""

    item: Item
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Start:
    """Run the replica: as a standby, and at once as the primary if its slot is 0."""

    assigned: Assigned


@dataclass(frozen=True, slots=True)
class Update:
    """Tell the running replica its present spec and status; nothing restarts."""

    assigned: Assigned


@dataclass(frozen=True, slots=True)
class Promote:
    """Tell the running replica its lower slot; in slot 0 it becomes the primary."""

    assigned: Assigned


@dataclass(frozen=True, slots=True)
class Replace:
    """Stop the running replica and start a new one."""

    assigned: Assigned


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the running replica: it is assigned here no more."""

    item_id: ItemId


Instruction = Start | Update | Promote | Replace | Stop


def assigned_to(
    member_id: MemberId, items: Mapping[ItemId, Item], assignments: Iterable[Assignment]
) -> dict[ItemId, Assigned]:
    """Return the replicas of one member, by shard id.

    An assignment without its item is left out: there is no spec to run it by. Of two for one item the lowest slot
    counts.
    """
    assigned: dict[ItemId, Assigned] = {}
    for assignment in assignments:
        item = items.get(assignment.item_id)
        if assignment.member_id != member_id or item is None:
            continue
        known = assigned.get(assignment.item_id)
        if known is None or assignment.slot < known.assignment.slot:
            assigned[assignment.item_id] = Assigned(item=item, assignment=assignment)
    return assigned


def diff(
    running: Mapping[ItemId, Replica], assigned: Mapping[ItemId, Assigned]
) -> tuple[Instruction, ...]:
    """Return what to do, stops first, then by shard id."""
    stops: tuple[Instruction, ...] = tuple(
        Stop(item_id) for item_id in sorted(running.keys() - assigned.keys())
    )
    return stops + tuple(
        _instruction(running.get(item_id), assigned[item_id]) for item_id in sorted(assigned)
    )


def _instruction(running: Replica | None, assigned: Assigned) -> Instruction:
    if running is None:
        return Start(assigned)
    if assigned.assignment.slot < running.slot:
        return Promote(assigned)
    if assigned.assignment.kv.create_revision == running.create_revision:
        return Update(assigned)
    return Replace(assigned)
