"""The moves that a plan still asks for: replicas that are not where they should be yet. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from broadsheet.allocator.model import Item, ItemId, MemberId
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.state.alloc_state import AllocState, Consistency
from broadsheet.allocator.state.load import Lag
from broadsheet.allocator.transition.replicas import ItemReplicas, Risk
from broadsheet.allocator.whatif.leader_snapshot import LeaderSnapshot


class MovePhase(Enum):
    """The step of a move."""

    WAITING = "waiting"
    """The member has not got the replica yet."""
    CATCHING_UP = "catching up"
    """The replica recovers, or plays what its primary has written; it cannot be relied upon yet."""
    LEAVING = "leaving"
    """All replacements can be relied upon; the replaced replica is still at its member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveUnderWay:
    """One replica on its way to a member or, in its last step, away from one."""

    item_id: ItemId
    member_id: MemberId
    """The member that gets it; of a leaving one, the member that has it."""
    phase: MovePhase
    risk: Risk
    lag: Lag | None
    """What a replica that catches up has to play; None: unknown, because its member has not reported any."""


def moves_of(leader: LeaderSnapshot) -> list[MoveUnderWay] | None:
    """Return the moves that a leader's plan still asks for, the most urgent first; None: there is no plan."""
    plan = leader.plan
    if plan is None:
        return None
    state = leader.state()
    moves = [
        move
        for item in state.items.values()
        for move in _of_item(state, item, plan, leader.consistency)
    ]
    moves.sort(key=lambda move: (move.risk, move.item_id, move.member_id))
    return moves


def _of_item(
    state: AllocState, item: Item, plan: Plan, consistency: Consistency
) -> Iterator[MoveUnderWay]:
    desired = plan.desired.get(item.item_id)
    # The item is newer than the plan; the next one has a place for it.
    if desired is None:
        return
    replicas = ItemReplicas.sort_out(state, item, desired=desired, consistency=consistency)
    catching_up = replicas.catching_up
    if not (replicas.missing or catching_up or replicas.unwanted):
        return
    risk = replicas.risk(state)

    def move(member_id: MemberId, phase: MovePhase, lag: Lag | None = None) -> MoveUnderWay:
        return MoveUnderWay(
            item_id=item.item_id, member_id=member_id, phase=phase, risk=risk, lag=lag
        )

    for member_id in replicas.missing:
        yield move(member_id, MovePhase.WAITING)
    for assignment in catching_up:
        lag = state.lags.get((item.item_id, assignment.member_id))
        yield move(assignment.member_id, MovePhase.CATCHING_UP, lag)
    # Each move is told once: a replica is kept until what replaces it is there.
    if replicas.missing or catching_up:
        return
    for assignment in replicas.current:
        # What left with its member is no replica any more.
        if assignment.kv.key in replicas.unwanted and assignment.member_id in state.members:
            yield move(assignment.member_id, MovePhase.LEAVING)
