"""A migration as a schedule: the next step of each item in order of risk, and the waiting changes.

    uncovered ≻ under-replicated ≻ single-zone ≻ draining ≻ balance

Scarce capacity, and the budget of moves, go to the most urgent items first. Limits on moves never hold back the
replacement of a lost replica. Only a cycle of full members would wait for ever: it is broken (`cycles`).

Invariants: the pass takes time for each item in the snapshot, which may be a part of all; an item that is as desired
costs one comparison. The same snapshot and targets give the same schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broadsheet.allocator.model import Item, ItemId, MemberId
from broadsheet.allocator.placement.primaries import HandOver
from broadsheet.allocator.placement.problem import ZONES_WANTED, Desired
from broadsheet.allocator.policy import TransitionPolicy
from broadsheet.allocator.state.alloc_state import AllocState, Consistency
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, Capacity, WaitReason
from broadsheet.allocator.transition.cycles import find_break
from broadsheet.allocator.transition.handover import (
    decide_hand_over,
    has_failed_primary,
    parting_hand_over,
)
from broadsheet.allocator.transition.item_step import ItemDecision, PendingItem, charge, decide_item
from broadsheet.allocator.transition.replicas import ItemReplicas, is_settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The desired placement, and the rules on the way there."""

    desired: Desired
    """Members by item; an unknown item is left alone, because it is newer than the plan."""
    primaries: Mapping[ItemId, MemberId] = field(default_factory=dict)
    """The member to elect for an item without a primary."""
    policy: TransitionPolicy = field(default_factory=TransitionPolicy)
    drains_waiting: frozenset[MemberId] = frozenset()
    """Exiting members that keep their replicas for now."""
    hand_overs: Sequence[HandOver] = ()
    """Live primaries that should move, most useful first; one at most for an item."""
    hand_overs_allowed: int = 0
    """How many may begin now."""
    sees_all_pending: bool = True
    """Whether the snapshot has every misplaced item: only then can a cycle be found."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps to perform now, most urgent first, and the waiting changes."""

    decisions: tuple[ItemDecision, ...]
    blocked: tuple[Blocked, ...]


def schedule(state: AllocState, targets: Targets, consistency: Consistency) -> Schedule:
    """Return the next step of every item in the snapshot.

    Args:
        state: The snapshot, perhaps of some items only.
        targets: The desired placement.
        consistency: Tells which replicas are consistent.
    """
    return _Pass(state, targets, consistency).schedule()


class _Pass:
    def __init__(self, state: AllocState, targets: Targets, consistency: Consistency) -> None:
        self._state = state
        self._targets = targets
        self._consistency = consistency
        self._capacity = Capacity(state, targets.policy)
        self._exiting = {m for m, member in state.members.items() if member.value.is_exiting()}
        self._staying = {
            m
            for m, member in state.members.items()
            if state.limits[m] > 0 and not member.value.is_cordoned()
        } - self._exiting
        self._zones = len(state.zones)
        self._orphans = any(
            item_id not in state.items and item_id not in state.unreadable_items
            for item_id in state.assignments
        )
        self._blocked: list[Blocked] = []
        self._parting: dict[ItemId, Item] = {}
        """Items with a replica that stays on a leaving member, because it cannot be replaced, or whose primary has
        failed for too long."""

    def schedule(self) -> Schedule:
        pending = sorted(self._pending(), key=lambda each: (each.risk, each.item.item_id))
        waited_for = self._waited_for(pending)
        decisions = [self._decide(each, waited_for=waited_for) for each in pending]
        self._break_cycle(decisions)
        decisions += self._hand_overs({d.pending.item.item_id: d for d in decisions})
        for decision in decisions:
            self._blocked += decision.blocked
        return Schedule(tuple(d for d in decisions if not d.is_idle), tuple(self._blocked))

    def _pending(self) -> Iterator[PendingItem]:
        state, desired = self._state, self._targets.desired
        for item_id, item in state.items.items():
            wanted = desired.get(item_id)
            # The item is newer than the plan, so it waits for the next one.
            if wanted is None:
                continue
            self._blocked += self._shortfall(item, wanted)
            keeps_a_leaver = not self._exiting.isdisjoint(wanted) and self._keeps_a_leaver(
                item, wanted
            )
            if keeps_a_leaver or (state.avoided and has_failed_primary(state, item_id)):
                self._parting[item_id] = item
            if not is_settled(state.assignments.get(item_id, ()), wanted):
                yield self._pend(item, wanted)

    def _pend(self, item: Item, wanted: tuple[MemberId, ...]) -> PendingItem:
        replicas = ItemReplicas.sort_out(
            self._state, item, desired=wanted, consistency=self._consistency
        )
        self._capacity.charge_moves(replicas.moving)
        return PendingItem(
            item=item,
            replicas=replicas,
            risk=replicas.risk(self._state),
            planned_primary=self._targets.primaries.get(item.item_id),
        )

    def _decide(
        self,
        pending: PendingItem,
        *,
        waited_for: Collection[MemberId] = (),
        over_limit: MemberId | None = None,
    ) -> ItemDecision:
        """Decide one item, and charge its additions before the next one is decided."""
        decision = decide_item(
            self._state, pending, self._capacity, waited_for=waited_for, over_limit=over_limit
        )
        charge(self._capacity, decision)
        return decision

    def _waited_for(self, pending: list[PendingItem]) -> frozenset[MemberId]:
        """Return full members that items wait for."""
        loads, limits = self._capacity.total, self._state.limits
        full = {m for m, load in loads.items() if load >= limits[m]}
        if not full:
            return frozenset()
        return frozenset(m for each in pending for m in each.replicas.missing if m in full)

    def _break_cycle(self, decisions: list[ItemDecision]) -> None:
        if not self._targets.sees_all_pending or self._orphans:
            # Replicas of deleted items are removed anyway, and leave room.
            return
        if not any(b.reason is WaitReason.LIMIT for d in decisions for b in d.blocked):
            return
        found = find_break(self._state, decisions, loads=self._capacity.total)
        if found is None:
            return
        index = decisions.index(found.decision)
        decisions[index] = self._decide(found.decision.pending, over_limit=found.member_id)

    def _hand_overs(self, decided: Mapping[ItemId, ItemDecision]) -> Iterator[ItemDecision]:
        state, targets = self._state, self._targets
        for item_id, left in self._parting.items():
            known = decided.get(item_id)
            # A hand-over waits until the item needs nothing else. From a failed primary it waits only for steps,
            # and not for changes that wait themselves.
            if known is not None and not (known.is_idle and has_failed_primary(state, item_id)):
                continue
            pending = self._pend(left, targets.desired[item_id])
            parting = parting_hand_over(state, pending)
            if parting is not None:
                # Outside the turns, because the member may be gone at any moment.
                yield decide_hand_over(state, pending, parting, at_rest=True, hand_overs_left=1)
        hand_overs_left = targets.hand_overs_allowed
        for wanted in targets.hand_overs:
            item_id = wanted.item_id
            item = state.items.get(item_id)
            if item is None or item_id not in targets.desired:
                continue
            known = decided.get(item_id)
            pending = self._pend(item, targets.desired[item_id]) if known is None else known.pending
            decision = decide_hand_over(
                state, pending, wanted, at_rest=known is None, hand_overs_left=hand_overs_left
            )
            # Only a hand-over that begins takes a turn.
            hand_overs_left -= decision.hands_over
            yield decision

    def _shortfall(self, item: Item, wanted: tuple[MemberId, ...]) -> Iterator[Blocked]:
        """Yield items for which even the plan is not the best placement; `whatif.causes` finds out why."""
        replication = item.value.desired_replication()
        if replication == 0:
            yield Blocked(item_id=item.item_id, reason=WaitReason.DISABLED)
            return
        if len(wanted) < replication:
            possible = len(self._staying.union(wanted))
            too_few = possible < replication
            yield Blocked(
                item_id=item.item_id,
                reason=WaitReason.NO_MEMBER if too_few else WaitReason.LIMIT,
                change=BlockedChange.ADD,
                detail=f"{len(wanted)} of {replication} replicas have a place",
            )
        elif replication >= ZONES_WANTED <= self._zones and wanted[0].zone == wanted[-1].zone:
            yield Blocked(
                item_id=item.item_id, reason=WaitReason.ZONE, detail="it is planned in one zone"
            )
        if self._state.avoided or not self._exiting.isdisjoint(wanted):
            yield from self._retained(item, wanted)

    def _keeps_a_leaver(self, item: Item, wanted: tuple[MemberId, ...]) -> bool:
        """Return whether a replica stays on a leaving member because it cannot be replaced."""
        return item.value.desired_replication() > 0 and any(
            member_id in self._exiting
            and member_id not in self._targets.drains_waiting
            and (item.item_id, member_id) not in self._state.avoided
            for member_id in wanted
        )

    def _retained(self, item: Item, wanted: tuple[MemberId, ...]) -> Iterator[Blocked]:
        """Yield replicas that stay on exiting members, or on members where they fail."""
        for member_id in wanted:
            if (item.item_id, member_id) in self._state.avoided:
                yield Blocked(
                    item_id=item.item_id,
                    reason=WaitReason.NO_MEMBER,
                    change=BlockedChange.REMOVE,
                    member_id=member_id,
                    detail="it has failed for too long, and the plan keeps it",
                )
            elif member_id in self._exiting:
                waits = member_id in self._targets.drains_waiting
                yield Blocked(
                    item_id=item.item_id,
                    reason=WaitReason.DRAIN_WAITS if waits else WaitReason.NO_MEMBER,
                    change=BlockedChange.REMOVE,
                    member_id=member_id,
                    detail="waits for a member that replaces it" if waits else "the plan keeps it",
                )
