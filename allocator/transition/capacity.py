"""Members' remaining limits and the remaining budget for moves, within one pass.

One counter serves the whole pass: an addition is charged as soon as it is decided. Places that removals free are not
counted, because a removal may still be refused: a place is reused only when it is seen to be free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.policy import TransitionPolicy
from broadsheet.allocator.state.alloc_state import AllocState

# Reasons for which a pending change of an item waits, shared by decisions, plans and explanations.


class BlockedChange(Enum):
    """A kind of change that waits."""

    ADD = "add"
    REMOVE = "remove"
    HAND_OVER = "hand-over"


class WaitReason(Enum):
    """The reason for which a change waits."""

    NO_MEMBER = "no-member"
    """The plan has no better member for a replica: too few may take it, or each other one would be worse."""
    DISABLED = "disabled"
    """The item wants no replicas."""
    LIMIT = "limit"
    """The member that should take the replica is at its limit."""
    ZONE = "zone"
    """Removing the replica would leave fewer zones, or the plan itself has it in one zone."""
    STANDBY_NOT_CAUGHT_UP = "standby-not-caught-up"
    """Too few other replicas are consistent for this one to go, or to take over."""
    MOVE_BUDGET = "move-budget"
    """As many moves are in flight as the policy allows."""
    SETTLING = "settling"
    """Balance waits for membership to settle."""
    DRAIN_WAITS = "drain-waits"
    """The drain waits for a member that replaces the leaving one."""
    HAND_OVER_WAITS = "hand-over-waits"
    """A planned hand-over of the primary waits for its turn."""
    QUARANTINED = "quarantined"
    """The step was refused repeatedly, and is retried at growing intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """One waiting change."""

    item_id: ItemId
    reason: WaitReason
    change: BlockedChange | None = None
    """None: nothing is planned, and the reason says why."""
    member_id: MemberId | None = None
    """The member that would gain or lose the replica, or the primary."""
    detail: str = ""
    """Numbers for people: "holds 8 of 8"."""


class Capacity:
    """Loads of members and moves in flight, including the additions of this pass."""

    def __init__(self, state: AllocState, policy: TransitionPolicy) -> None:
        self.total = dict(state.loads.total)
        """Replicas by existing member."""
        self.primary = dict(state.loads.primary)
        """Primaries by member."""
        self._limits = state.limits
        self._policy = policy
        self._is_budgeted = bool(policy.moves_max or policy.moves_per_member_max)
        self._moves_by_member: Counter[MemberId] = Counter()
        self._moves = 0

    def charge_moves(self, members: Iterable[MemberId]) -> None:
        """Count a move to each of these members, if moves are limited."""
        if not self._is_budgeted:
            return
        for member_id in members:
            self._moves_by_member[member_id] += 1
            self._moves += 1

    def charge_replica(self, member_id: MemberId, *, is_move: bool) -> None:
        """Count one more replica on a member."""
        self.total[member_id] += 1
        if is_move:
            self.charge_moves((member_id,))

    def charge_primary(self, member_id: MemberId) -> None:
        """Count one more primary on a member."""
        if member_id in self.primary:
            self.primary[member_id] += 1

    def refusal(
        self, member_id: MemberId, *, is_move: bool, moves_granted: int
    ) -> WaitReason | None:
        """Return why a member cannot get a replica now; None if it can.

        Args:
            member_id: An existing member that gets no other replica in the same step.
            is_move: Whether the replica is for balance or draining, and so within the budget.
            moves_granted: Other moves of the same step, not charged yet.
        """
        if self.total[member_id] >= self._limits[member_id]:
            return WaitReason.LIMIT
        # The replacement of a lost replica never waits for the budget.
        if not is_move or not self._is_budgeted:
            return None
        in_all, per_member = self._policy.moves_max, self._policy.moves_per_member_max
        if in_all and self._moves + moves_granted >= in_all:
            return WaitReason.MOVE_BUDGET
        if per_member and self._moves_by_member[member_id] >= per_member:
            return WaitReason.MOVE_BUDGET
        return None

    def load_ratio(self, member_id: MemberId, *, more: int = 0) -> float:
        """Return a member's replicas relative to its limit. A missing limit or member is the worst ratio.

        Args:
            member_id: Any member.
            more: Replicas that it will get, not charged yet.
        """
        limit = self._limits.get(member_id, 0)
        return (self.total[member_id] + more) / limit if limit > 0 else inf

    def primary_ratio(self, member_id: MemberId) -> float:
        """Return a member's primaries relative to its limit."""
        limit = self._limits.get(member_id, 0)
        return self.primary[member_id] / limit if limit > 0 else inf

    def describe(self, member_id: MemberId) -> str:
        """Return a member's load for people."""
        return f"holds {self.total[member_id]} of {self._limits[member_id]}"

    def describe_moves(self, member_id: MemberId, *, moves_granted: int) -> str:
        """Return the moves under way for people."""
        moves = self._moves + moves_granted
        return f"{self._moves_by_member[member_id]} moves to it, {moves} in all"
