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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

from broadsheet.allocator.model import Assignment, Item, MemberId
from broadsheet.allocator.placement.problem import zones_spanned
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState
from broadsheet.allocator.state.load import Lag
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, Capacity, WaitReason
from broadsheet.allocator.transition.replicas import ItemReplicas, Risk

# Slots. A slot is part of a key, so a change of slot takes two writes.
#
#     primary              slot 0, and no other replica
#     new replica          the slot of the standby that it replaces, else the lowest free one
#     nothing to add       0, 1, 2, …: higher slots move into the gaps
#
# So a new replica usually starts with its final slot, and a slot may be held twice while a standby goes. Each remaining
# replica has a distinct slot; an unwanted one without another place remains.
#
# Source: gazette/core allocator/item_state.go (slot 0, and packing at rest). There a new replica takes the next free
# slot, and every replica above the one that goes is renumbered.


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


@dataclass(frozen=True, slots=True)
class KeptReplica:
    """An unwanted replica that stays for now, with the reason."""

    assignment: Assignment
    reason: WaitReason
    others: int
    """The number of other consistent replicas."""


def removals(
    replicas: ItemReplicas, capacity: Capacity, waited_for: Collection[MemberId]
) -> tuple[tuple[Assignment, ...], tuple[KeptReplica, ...]]:
    """Return the unwanted replicas that may go now, and those that may not.

    Invariants: a removal never leaves fewer live consistent replicas than the item wants, nor fewer zones than it spans
    now and should span. Two kinds of replica are not protected: a second one on the same member, and one whose member
    is gone or that has failed for too long, once a live consistent one can take over.

    Dead ones go first, then inconsistent ones, then those whose place another item waits for, then from the fullest;
    the primary goes last.

    Args:
        replicas: The replicas of one item.
        capacity: Loads of members.
        waited_for: Full members that other items wait for.

    Source: gazette/core allocator/item_state.go (the removal gate). Ours: each removal is decided separately, so that a
    blocked one does not block the rest; zones are checked; dead replicas do not count as consistent.
    """
    if not replicas.unwanted:
        return (), ()

    def eagerness(assignment: Assignment) -> tuple[bool, bool, bool, bool, float, MemberId, int]:
        return (
            assignment.kv.key in replicas.live,
            assignment.kv.key in replicas.consistent,
            assignment.slot == PRIMARY_SLOT,
            assignment.member_id not in waited_for,
            -capacity.load_ratio(assignment.member_id),
            assignment.member_id,
            assignment.slot,
        )

    staying = {a.kv.key: a.member_id for a in replicas.current if a.kv.key in replicas.live}
    unwanted = [a for a in replicas.current if a.kv.key in replicas.unwanted]
    if len(unwanted) > 1:
        unwanted.sort(key=eagerness)
    gone: list[Assignment] = []
    refused: list[KeptReplica] = []
    for assignment in unwanted:
        reason = _refusal(replicas, assignment.kv.key, staying, replicas.consistent)
        if reason is None:
            staying.pop(assignment.kv.key, None)
            gone.append(assignment)
        else:
            others = staying.keys() & replicas.consistent - {assignment.kv.key}
            refused.append(KeptReplica(assignment, reason, len(others)))
    return tuple(gone), tuple(refused)


def parting_primary(replicas: ItemReplicas, removes: Iterable[Assignment]) -> Assignment | None:
    """Return the primary that goes after it has handed over; None if it stays or has nothing to hand over."""
    # The item wants no replicas at all, so there is no successor to wait for.
    if replicas.replication == 0:
        return None
    for assignment in removes:
        key = assignment.kv.key
        if assignment.slot == PRIMARY_SLOT and key in replicas.live:
            could_serve = replicas.ready - replicas.unwanted | replicas.ready & {key}
            return assignment if could_serve else None
    return None


def would_free(replicas: ItemReplicas, assignment: Assignment, added: MemberId) -> bool:
    """Return whether a replica may go once another one exists and is consistent, and no other goes."""
    staying = {a.kv.key: a.member_id for a in replicas.current if a.kv.key in replicas.live}
    staying[b""] = added
    return _refusal(replicas, assignment.kv.key, staying, replicas.consistent | {b""}) is None


def to_go(replicas: ItemReplicas) -> frozenset[bytes]:
    """Return the keys of unwanted replicas that go once all desired replicas exist and have caught up.

    The others stay as long as members lack room, or the plan does not change.
    """
    if not replicas.unwanted:
        return frozenset()
    staying = {a.kv.key: a.member_id for a in replicas.current if a.kv.key in replicas.live}
    staying |= {f"missing {number}".encode(): m for number, m in enumerate(replicas.missing)}
    reliable = frozenset(staying)
    going: set[bytes] = set()
    for assignment in replicas.current:
        key = assignment.kv.key
        if key in replicas.unwanted and _refusal(replicas, key, staying, reliable) is None:
            staying.pop(key, None)
            going.add(key)
    return frozenset(going)


def _refusal(
    replicas: ItemReplicas,
    key: bytes,
    staying: Mapping[bytes, MemberId],
    reliable: Collection[bytes],
) -> WaitReason | None:
    if replicas.replication == 0 or key in replicas.surplus:
        return None
    others = [m for k, m in staying.items() if k in reliable and k != key]
    if key not in replicas.live:
        return None if others else WaitReason.STANDBY_NOT_CAUGHT_UP
    if len(others) < replicas.replication:
        return WaitReason.STANDBY_NOT_CAUGHT_UP
    zones_wanted, zone = zones_spanned(replicas.desired), staying[key].zone
    if key in reliable and _loses_a_zone(others, zone, zones_wanted):
        return WaitReason.ZONE
    rest = (m for k, m in staying.items() if k != key)
    return WaitReason.ZONE if _loses_a_zone(rest, zone, zones_wanted) else None


def _loses_a_zone(others: Iterable[MemberId], zone: str, zones_wanted: int) -> bool:
    """Return whether the others span too few zones without a replica that goes."""
    zones = {member_id.zone for member_id in others}
    return zone not in zones and len(zones) < zones_wanted


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
