"""Hand-over of an item's primary: for balance, because its member leaves, or because it has failed for too long.

One transaction: the old primary takes the standby's slot, the standby takes slot 0. It happens only while the item
needs nothing else, and only if the standby could serve at once.

    wanted ──► the item is at rest ──► the standby has caught up ──► its turn has come ──► hand over

A primary on a leaving member that cannot be replaced needs no turn, because the member may be gone at any moment; nor
does one that has failed for too long where it is planned, because its item is not served meanwhile.
"""

from __future__ import annotations

from broadsheet.allocator.model import Assignment, ItemId
from broadsheet.allocator.placement.primaries import HandOver
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, WaitReason
from broadsheet.allocator.transition.item_step import ItemDecision, PendingItem
from broadsheet.allocator.transition.slots import SlotMove


def parting_hand_over(state: AllocState, pending: PendingItem) -> HandOver | None:
    """Return the hand-over from a leaving member, or from a primary that has failed for too long, to the most current
    standby; None without such a primary or a ready standby.
    """
    replicas = pending.replicas
    primary = next((a for a in replicas.current if a.slot == PRIMARY_SLOT), None)
    member = state.members.get(primary.member_id) if primary is not None else None
    if primary is None or member is None:
        return None
    has_failed = has_failed_primary(state, pending.item.item_id)
    if not has_failed and not member.value.is_exiting():
        return None
    # A failed standby would count beside a failed primary, but would serve no better.
    able = replicas.ready if has_failed else replicas.consistent
    ready = [
        assignment
        for assignment in replicas.current
        if assignment.kv.key in able
        and assignment is not primary
        and assignment.kv.key not in replicas.unwanted
        and not state.is_leaving(assignment.member_id)
    ]
    if not ready:
        return None
    warmest = min(ready, key=lambda assignment: (state.lag(assignment), assignment.slot))
    return HandOver(pending.item.item_id, primary.member_id, warmest.member_id)


def has_failed_primary(state: AllocState, item_id: ItemId) -> bool:
    """Return whether an item's primary has failed for too long, while another replica could serve."""
    return any(
        a.slot == PRIMARY_SLOT and (item_id, a.member_id) in state.avoided
        for a in state.assignments.get(item_id, ())
    )


def decide_hand_over(
    state: AllocState,
    pending: PendingItem,
    wanted: HandOver,
    *,
    at_rest: bool,
    hand_overs_left: int,
) -> ItemDecision:
    """Return the hand-over, or the reason to wait; neither, if the wanted one is outdated.

    Args:
        state: The snapshot to decide on.
        pending: The item.
        wanted: The hand-over that should take place.
        at_rest: Whether the item needs nothing else.
        hand_overs_left: How many hand-overs may still begin; each takes a turn.
    """
    replicas = pending.replicas
    by_member = {a.member_id: a for a in replicas.current if a.kv.key not in replicas.surplus}
    old, new = by_member.get(wanted.from_member), by_member.get(wanted.to_member)
    # Made on an older view. Nothing is reported, because hand-overs are computed again from the new view.
    if old is None or new is None or old.slot != PRIMARY_SLOT or old is new:
        return ItemDecision(pending=pending)
    if not at_rest:
        return _waits(
            pending, wanted, WaitReason.HAND_OVER_WAITS, "replicas of the item are in motion"
        )
    # Outdated as well: the primary must not move to where it cannot stay.
    if state.is_leaving(wanted.to_member) or new.kv.key in replicas.unwanted:
        return ItemDecision(pending=pending)
    if new.kv.key not in replicas.consistent:
        detail = f"{wanted.to_member} has not caught up"
        return _waits(pending, wanted, WaitReason.STANDBY_NOT_CAUGHT_UP, detail)
    if hand_overs_left <= 0:
        return _waits(
            pending, wanted, WaitReason.HAND_OVER_WAITS, "a few are handed over at a time"
        )
    return ItemDecision(
        pending=pending,
        moves=_exchange(old, new),
        keeps=replicas.current,
        hands_over=True,
    )


def _exchange(old: Assignment, new: Assignment) -> tuple[SlotMove, ...]:
    return (SlotMove(old, new.slot), SlotMove(new, PRIMARY_SLOT))


def _waits(pending: PendingItem, wanted: HandOver, reason: WaitReason, detail: str) -> ItemDecision:
    return ItemDecision(
        pending=pending,
        blocked=(
            Blocked(
                item_id=wanted.item_id,
                reason=reason,
                change=BlockedChange.HAND_OVER,
                member_id=wanted.from_member,
                detail=detail,
            ),
        ),
    )
