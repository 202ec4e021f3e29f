"""What to do next about one item: which replicas to add, to remove, to promote, to renumber.

    desired, not current ──► add        if the member has room, and the budget for moves allows
    current, not desired ──► remove     if what remains is safe, else keep for now
    both                 ──► keep
    no primary is left   ──► promote    the best of what is kept
    the primary may go   ──► hand over  to a replica that has caught up and stays; it goes once that is done
    nothing to add       ──► pack       slots become 0, 1, 2, … (`slots`)
    nothing else to do   ──► hand over  the primary, if that is wanted

Additions precede removals in time: a new replica starts inconsistent, and the one that it replaces stays until enough
others are consistent.

Invariants: a member at its limit gets nothing, but for the one replica that breaks a cycle; a primary that serves is
demoted only to hand over to a consistent standby, and removed only when it is none any more; at most one replica has
slot 0 afterwards; a member that leaves gets nothing while there is another.

Source: gazette/core allocator/item_state.go (gates and their order). Ours: promotion follows the plan, and never
prefers a member that leaves; slots are inherited; hand-overs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from allocator.core.load.lag import Lag
from allocator.core.model import Assignment, Item, MemberId
from allocator.core.state import PRIMARY_SLOT, AllocState
from allocator.core.transition.blocked import Blocked, Change, Reason
from allocator.core.transition.removal import Refused, parting_primary, removals
from allocator.core.transition.replicas import Replicas, Risk
from allocator.core.transition.room import Room
from allocator.core.transition.slots import (
    Move,
    exchanged,
    packed,
    slots_for_newcomers,
    told_apart,
)


@dataclass(frozen=True, slots=True)
class Add:
    """A replica to create."""

    member_id: MemberId
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An item that is not where it should be."""

    item: Item
    replicas: Replicas
    risk: Risk
    planned_primary: MemberId | None = None
    """The replica to elect, where none is primary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDecision:
    """The next step of one item. All of it belongs in one transaction."""

    pending: Pending
    adds: tuple[Add, ...] = ()
    removes: tuple[Assignment, ...] = ()
    moves: tuple[Move, ...] = ()
    keeps: tuple[Assignment, ...] = ()
    """What stays: the step relies on it, so it must still be as it was."""
    hands_over: bool = False
    """The moves take the primary from one live replica to another."""
    blocked: tuple[Blocked, ...] = ()

    @property
    def promotes(self) -> bool:
        """Whether a replica becomes primary that was not."""
        return any(move.slot == PRIMARY_SLOT for move in self.moves)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do now."""
        return not (self.adds or self.removes or self.moves)


def decide_item(
    state: AllocState,
    pending: Pending,
    room: Room,
    *,
    waited_for: Collection[MemberId] = (),
    over_limit: MemberId | None = None,
) -> ItemDecision:
    """Return the next step of an item towards its desired placement, and take the room that it needs.

    Args:
        state: The snapshot to decide on.
        pending: One of its items.
        room: What is left by the items decided upon before.
        waited_for: Members at their limit on which other items should be.
        over_limit: A member that may hold one replica more than its limit.
    """
    replicas = pending.replicas
    removes, refused = removals(replicas, room, waited_for)
    parting = parting_primary(replicas, removes)
    if parting is not None:
        removes = tuple(a for a in removes if a is not parting)
    keep = [a for a in replicas.current if a not in removes] if removes else replicas.current
    keep = sorted(keep, key=_slot)
    placed = told_apart(replicas, keep, _promotion(state, pending, keep, room))
    heir = None if parting is None else _heir(state, pending, keep, room)
    if parting is not None and heir is not None:
        placed = exchanged(placed, parting, heir)
    elif parting is not None:
        others = len(replicas.ready - {parting.kv.key})
        refused = (*refused, Refused(parting, Reason.STANDBY_NOT_CAUGHT_UP, others))
    additions = _Additions(state, pending, room, over_limit)
    adds = tuple(additions.at_slots(slots_for_newcomers(replicas, placed)))
    # A surplus replica's key may be the very one that packing writes, and no key may be written twice at once.
    if not adds and not (replicas.surplus and any(a.kv.key in replicas.surplus for a in removes)):
        placed = packed(replicas, placed)
    moves = tuple(move for move in placed if move.slot != move.assignment.slot)
    for move in moves:
        if move.slot == PRIMARY_SLOT:
            room.elect(move.assignment.member_id)
    return ItemDecision(
        pending=pending,
        adds=adds,
        removes=removes,
        moves=moves,
        keeps=tuple(move.assignment for move in placed),
        hands_over=heir is not None,
        blocked=(*additions.blocked, *_removals_blocked(pending, refused)),
    )


def _slot(assignment: Assignment) -> int:
    return assignment.slot


def _promotion(
    state: AllocState, pending: Pending, keep: Sequence[Assignment], room: Room
) -> Assignment | None:
    """Return the replica to make primary, the warmest first; None if there is a primary, or no live replica."""
    if keep and keep[0].slot == PRIMARY_SLOT:
        return None
    live = [a for a in keep if a.kv.key in pending.replicas.live]
    return _warmest(state, pending, live, room)


def _heir(
    state: AllocState, pending: Pending, keep: Sequence[Assignment], room: Room
) -> Assignment | None:
    """Return the replica to hand a primary over to that goes afterwards, the warmest first; None if none can take it.

    None while a second replica of a member goes, too: the primary could need the key that is deleted.
    """
    replicas = pending.replicas
    if replicas.surplus:
        return None
    ready = [
        a for a in keep if a.kv.key in replicas.ready - replicas.unwanted and a.slot != PRIMARY_SLOT
    ]
    return _warmest(state, pending, ready, room)


def _warmest(
    state: AllocState, pending: Pending, candidates: Iterable[Assignment], room: Room
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
            room.primary_ratio(member_id),
            assignment.slot,
        )

    return min(candidates, key=rank, default=None)


class _Additions:
    """Replicas that an item lacks, and what becomes of each."""

    def __init__(
        self, state: AllocState, pending: Pending, room: Room, over_limit: MemberId | None
    ) -> None:
        self.blocked: list[Blocked] = []
        self._added = 0
        self._state = state
        self._pending = pending
        self._room = room
        self._over_limit = over_limit

    def at_slots(self, free_slots: Iterator[int]) -> Iterator[Add]:
        """Yield what can be added now, at these slots; a first primary where it is planned, or fewest are."""
        granted = [m for m in self._in_order() if self._is_granted(m)]
        if not granted:
            return
        first = next(free_slots)
        if first == PRIMARY_SLOT:
            primary = min(granted, key=self._primary_rank)
            granted.remove(primary)
            granted.insert(0, primary)
            self._room.elect(primary)
        elif (planned := self._pending.planned_primary) in granted:
            # It leaves its slot for slot 0 later: so that no gap remains, it has the last one.
            granted.sort(key=lambda member_id: member_id == planned)
        for member_id, slot in zip(granted, chain((first,), free_slots), strict=False):
            yield Add(member_id, slot)

    def _in_order(self) -> list[MemberId]:
        """Return members that should hold the item and do not: those in a zone of their own come first."""
        replicas = self._pending.replicas
        missing = replicas.missing
        if len(missing) < 2:
            return list(missing)
        zones = {a.member_id.zone for a in replicas.current if a.kv.key in replicas.live}
        return sorted(missing, key=lambda m: (m.zone in zones, m))

    def _is_granted(self, member_id: MemberId) -> bool:
        replicas, room = self._pending.replicas, self._room
        if self._is_spare(member_id):
            self._block(member_id, Reason.NO_MEMBER, f"{member_id} leaves")
            return False
        is_move = replicas.lost <= self._added
        reason = room.refusal(member_id, is_move=is_move)
        if reason is Reason.LIMIT and member_id == self._over_limit:
            reason = None
        if reason is Reason.LIMIT:
            self._block(member_id, reason, room.describe(member_id))
            return False
        if reason is not None:
            self._block(member_id, reason, room.describe_moves(member_id))
            return False
        room.take(member_id, is_move=is_move)
        self._added += 1
        return True

    def _is_spare(self, member_id: MemberId) -> bool:
        """Return whether a member leaves while the item has another, or could have."""
        if not self._state.members[member_id].value.is_exiting():
            return False
        replicas = self._pending.replicas
        return bool(replicas.live) or any(
            not self._state.members[m].value.is_exiting() for m in replicas.missing
        )

    def _block(self, member_id: MemberId, reason: Reason, detail: str) -> None:
        self.blocked.append(
            Blocked(
                item_id=self._pending.item.item_id,
                reason=reason,
                change=Change.ADD,
                member_id=member_id,
                detail=detail,
            )
        )

    def _primary_rank(self, member_id: MemberId) -> tuple[bool, bool, float, float, MemberId]:
        return (
            self._state.is_leaving(member_id),
            member_id != self._pending.planned_primary,
            self._room.primary_ratio(member_id),
            self._room.load_ratio(member_id),
            member_id,
        )


def _removals_blocked(pending: Pending, refused: Iterable[Refused]) -> Iterator[Blocked]:
    wanted = pending.replicas.replication
    for each in refused:
        yield Blocked(
            item_id=pending.item.item_id,
            reason=each.reason,
            change=Change.REMOVE,
            member_id=each.assignment.member_id,
            detail="it alone is consistent in its zone"
            if each.reason is Reason.ZONE
            else f"{each.others} of {wanted} others are consistent",
        )
