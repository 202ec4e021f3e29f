"""The next step of one item: replicas to add, to remove, to promote and to renumber. Pure.

    desired, not current ──► add        if the member has capacity, and the budget for moves allows
    current, not desired ──► remove     if what remains is safe, else keep for now
    both                 ──► keep
    no primary is left   ──► promote    the best of what is kept
    the primary may go   ──► hand over  to a replica that has caught up and stays; it goes once that is done
    nothing to add       ──► pack       slots become 0, 1, 2, …
    nothing else to do   ──► hand over  the primary, if that is wanted

Additions precede removals in time: a new replica starts inconsistent, and the one that it replaces stays until enough
others are consistent.

Invariants: a member at its limit gets nothing, except the one replica that breaks a cycle; a serving primary is demoted
only to hand over to a consistent standby, and removed only when it is not primary any more; at most one replica has
slot 0 afterwards; a leaving member gets nothing while there is another.

Source: gazette/core allocator/item_state.go (gates and their order). Ours: promotion follows the plan and never prefers
a leaving member; slots are inherited; hand-overs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from broadsheet.allocator.model import Assignment, Item, MemberId
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState
from broadsheet.allocator.state.load import Lag
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, Capacity, WaitReason
from broadsheet.allocator.transition.removals import KeptReplica, parting_primary, removals
from broadsheet.allocator.transition.replicas import ItemReplicas, Risk
from broadsheet.allocator.transition.slots import (
    SlotMove,
    assign_distinct_slots,
    exchanged,
    packed,
    slots_for_newcomers,
)


@dataclass(frozen=True, slots=True)
class Add:
    """A replica to create."""

    member_id: MemberId
    slot: int
    is_move: bool
    """Whether it is for balance or draining; the replacement of a lost replica is not limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingItem:
    """An item that is not placed as desired."""

    item: Item
    replicas: ItemReplicas
    risk: Risk
    planned_primary: MemberId | None = None
    """The replica to elect, if there is no primary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDecision:
    """The next step of one item. All of it belongs in one transaction."""

    pending: PendingItem
    adds: tuple[Add, ...] = ()
    removes: tuple[Assignment, ...] = ()
    moves: tuple[SlotMove, ...] = ()
    keeps: tuple[Assignment, ...] = ()
    """The replicas that stay: the step relies on them, so they must be unchanged."""
    hands_over: bool = False
    """The moves take the primary from one live replica to another."""
    blocked: tuple[Blocked, ...] = ()

    @property
    def promotes(self) -> bool:
        """True if a standby becomes primary."""
        return any(move.slot == PRIMARY_SLOT for move in self.moves)

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to do now."""
        return not (self.adds or self.removes or self.moves)


def decide_item(
    state: AllocState,
    pending: PendingItem,
    capacity: Capacity,
    *,
    waited_for: Collection[MemberId] = (),
    over_limit: MemberId | None = None,
) -> ItemDecision:
    """Return the next step of an item towards its desired placement. The caller charges it to the capacity.

    Args:
        state: The snapshot to decide on.
        pending: One of its items.
        capacity: The capacity that earlier items left.
        waited_for: Full members that other items wait for.
        over_limit: A member that may exceed its limit by one replica.
    """
    replicas = pending.replicas
    removes, refused = removals(replicas, capacity, waited_for)
    parting = parting_primary(replicas, removes)
    if parting is not None:
        removes = tuple(a for a in removes if a is not parting)
    keep = [a for a in replicas.current if a not in removes] if removes else replicas.current
    keep = sorted(keep, key=_slot)
    placed = assign_distinct_slots(replicas, keep, _promotion(state, pending, keep, capacity))
    heir = None if parting is None else _heir(state, pending, keep, capacity)
    if parting is not None and heir is not None:
        placed = exchanged(placed, parting, heir)
    elif parting is not None:
        others = len(replicas.ready - {parting.kv.key})
        refused = (*refused, KeptReplica(parting, WaitReason.STANDBY_NOT_CAUGHT_UP, others))
    additions = _Additions(state, pending, capacity, over_limit)
    grants, adds_blocked = additions.grants()
    adds = additions.at_slots(grants, slots_for_newcomers(replicas, placed))
    # Packing may write the key of a surplus replica, and one transaction may not write a key twice.
    if not adds and not (replicas.surplus and any(a.kv.key in replicas.surplus for a in removes)):
        placed = packed(replicas, placed)
    return ItemDecision(
        pending=pending,
        adds=adds,
        removes=removes,
        moves=tuple(move for move in placed if move.slot != move.assignment.slot),
        keeps=tuple(move.assignment for move in placed),
        hands_over=heir is not None,
        blocked=(*adds_blocked, *_removals_blocked(pending, refused)),
    )


def charge(capacity: Capacity, decision: ItemDecision) -> None:
    """Count a decision's additions, for the items decided after it."""
    for add in decision.adds:
        capacity.charge_replica(add.member_id, is_move=add.is_move)
        if add.slot == PRIMARY_SLOT:
            capacity.charge_primary(add.member_id)
    for move in decision.moves:
        if move.slot == PRIMARY_SLOT:
            capacity.charge_primary(move.assignment.member_id)


def _slot(assignment: Assignment) -> int:
    return assignment.slot


def _promotion(
    state: AllocState, pending: PendingItem, keep: Sequence[Assignment], capacity: Capacity
) -> Assignment | None:
    """Return the replica to make primary, the most current first; None if there is a primary, or no live replica."""
    if keep and keep[0].slot == PRIMARY_SLOT:
        return None
    live = [a for a in keep if a.kv.key in pending.replicas.live]
    return _warmest(state, pending, live, capacity)


def _heir(
    state: AllocState, pending: PendingItem, keep: Sequence[Assignment], capacity: Capacity
) -> Assignment | None:
    """Return the most current replica that can take over from a primary that goes; None if none can.

    Also None while a surplus replica of a member goes, because the primary could need the deleted key.
    """
    replicas = pending.replicas
    if replicas.surplus:
        return None
    ready = [
        a for a in keep if a.kv.key in replicas.ready - replicas.unwanted and a.slot != PRIMARY_SLOT
    ]
    return _warmest(state, pending, ready, capacity)


def _warmest(
    state: AllocState, pending: PendingItem, candidates: Iterable[Assignment], capacity: Capacity
) -> Assignment | None:
    replicas = pending.replicas

    def rank(assignment: Assignment) -> tuple[bool, bool, Lag, bool, bool, float, int]:
        member_id, key = assignment.member_id, assignment.kv.key
        return (
            key not in replicas.ready,
            key not in replicas.consistent,
            state.lag(assignment),
            key in replicas.unwanted or state.is_leaving(member_id),
            member_id != pending.planned_primary,
            capacity.primary_ratio(member_id),
            assignment.slot,
        )

    return min(candidates, key=rank, default=None)


@dataclass(frozen=True, slots=True)
class _Grant:
    """A member that gets a replica, with its place in the item."""

    member_id: MemberId
    is_move: bool


@dataclass(frozen=True, slots=True)
class _Additions:
    """The missing replicas of an item, and the decision on each."""

    state: AllocState
    pending: PendingItem
    capacity: Capacity
    over_limit: MemberId | None

    def grants(self) -> tuple[tuple[_Grant, ...], tuple[Blocked, ...]]:
        """Return which members get a replica now, and why the others do not."""
        granted: list[_Grant] = []
        blocked: list[Blocked] = []
        for member_id in self._in_order():
            match self._answer(member_id, granted):
                case _Grant() as grant:
                    granted.append(grant)
                case Blocked() as refusal:
                    blocked.append(refusal)
        return tuple(granted), tuple(blocked)

    def at_slots(self, grants: Sequence[_Grant], free_slots: Iterator[int]) -> tuple[Add, ...]:
        """Return the granted replicas at these slots; a first primary as planned, or where there are fewest."""
        if not grants:
            return ()
        ordered = list(grants)
        first = next(free_slots)
        if first == PRIMARY_SLOT:
            primary = min(ordered, key=lambda grant: self._primary_rank(grant.member_id))
            ordered.remove(primary)
            ordered.insert(0, primary)
        else:
            # The planned primary moves to slot 0 later, so it gets the last slot, which leaves no gap.
            ordered.sort(key=lambda grant: grant.member_id == self.pending.planned_primary)
        slots = chain((first,), free_slots)
        return tuple(
            Add(grant.member_id, slot, grant.is_move)
            for grant, slot in zip(ordered, slots, strict=False)
        )

    def _in_order(self) -> Sequence[MemberId]:
        """Return members that should hold the item and do not, those in an additional zone first."""
        replicas = self.pending.replicas
        missing = replicas.missing
        if len(missing) < 2:
            return missing
        zones = {a.member_id.zone for a in replicas.current if a.kv.key in replicas.live}
        return sorted(missing, key=lambda m: (m.zone in zones, m))

    def _answer(self, member_id: MemberId, granted: Sequence[_Grant]) -> _Grant | Blocked:
        """Return whether a member gets a replica beside those granted before, or why not."""
        if self._is_spare(member_id):
            return self._blocked(member_id, WaitReason.NO_MEMBER, f"{member_id} leaves")
        capacity = self.capacity
        # Replacements of lost replicas come first; only additions beyond those are moves.
        is_move = self.pending.replicas.lost <= len(granted)
        moves = sum(grant.is_move for grant in granted)
        match capacity.refusal(member_id, is_move=is_move, moves_granted=moves):
            case None:
                return _Grant(member_id, is_move)
            case WaitReason.LIMIT:
                if member_id == self.over_limit:
                    return _Grant(member_id, is_move)
                return self._blocked(member_id, WaitReason.LIMIT, capacity.describe(member_id))
            case reason:
                detail = capacity.describe_moves(member_id, moves_granted=moves)
                return self._blocked(member_id, reason, detail)

    def _is_spare(self, member_id: MemberId) -> bool:
        """Return whether a member is leaving while the item has another member, or could have."""
        if not self.state.members[member_id].value.is_exiting():
            return False
        replicas = self.pending.replicas
        return bool(replicas.live) or any(
            not self.state.members[m].value.is_exiting() for m in replicas.missing
        )

    def _blocked(self, member_id: MemberId, reason: WaitReason, detail: str) -> Blocked:
        return Blocked(
            item_id=self.pending.item.item_id,
            reason=reason,
            change=BlockedChange.ADD,
            member_id=member_id,
            detail=detail,
        )

    def _primary_rank(self, member_id: MemberId) -> tuple[bool, bool, float, float, MemberId]:
        return (
            self.state.is_leaving(member_id),
            member_id != self.pending.planned_primary,
            self.capacity.primary_ratio(member_id),
            # Including the replica that it is granted.
            self.capacity.load_ratio(member_id, more=1),
            member_id,
        )


def _removals_blocked(pending: PendingItem, refused: Iterable[KeptReplica]) -> Iterator[Blocked]:
    wanted = pending.replicas.replication
    for each in refused:
        yield Blocked(
            item_id=pending.item.item_id,
            reason=each.reason,
            change=BlockedChange.REMOVE,
            member_id=each.assignment.member_id,
            detail="it alone is consistent in its zone"
            if each.reason is WaitReason.ZONE
            else f"{each.others} of {wanted} others are consistent",
        )
