"""What is left of members' limits and of the budget for moves, within one pass.

One counter for the whole pass: an addition takes room as soon as it is decided upon. What removals free is not counted.
A removal may still be refused, so its room is given away only when it is seen to be free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from allocator.core.model import MemberId
from allocator.core.policy import TransitionPolicy
from allocator.core.state import AllocState
from allocator.core.transition.blocked import Reason


class Room:
    """Loads of members and moves in flight, with what this pass adds."""

    def __init__(self, state: AllocState, policy: TransitionPolicy) -> None:
        self.total = dict(state.loads.total)
        """Replicas by member, absent members left out."""
        self.primary = dict(state.loads.primary)
        """Primaries by member."""
        self._limits = state.limits
        self._policy = policy
        self._is_budgeted = bool(policy.moves_max or policy.moves_per_member_max)
        self._moves_by_member: Counter[MemberId] = Counter()
        self._moves = 0

    def under_way(self, members: Iterable[MemberId]) -> None:
        """Count moves that were begun before, if it matters."""
        if not self._is_budgeted:
            return
        for member_id in members:
            self._moves_by_member[member_id] += 1
            self._moves += 1

    def refusal(self, member_id: MemberId, *, is_move: bool) -> Reason | None:
        """Return why a member cannot be given a replica now; None if it can.

        Args:
            member_id: A member that is there.
            is_move: Whether the replica is for balance or draining, and so within the budget.
        """
        if self.total[member_id] >= self._limits[member_id]:
            return Reason.LIMIT
        return None if self.within_budget(member_id, is_move=is_move) else Reason.MOVE_BUDGET

    def within_budget(self, member_id: MemberId, *, is_move: bool) -> bool:
        """Return whether another replica on a member is not too many at a time."""
        if not is_move or not self._is_budgeted:
            return True
        policy = self._policy
        return not (
            (policy.moves_max and self._moves >= policy.moves_max)
            or (
                policy.moves_per_member_max
                and self._moves_by_member[member_id] >= policy.moves_per_member_max
            )
        )

    def take(self, member_id: MemberId, *, is_move: bool) -> None:
        """Give a member one replica more."""
        self.total[member_id] += 1
        if is_move and self._is_budgeted:
            self.under_way((member_id,))

    def elect(self, member_id: MemberId) -> None:
        """Give a member one primary more."""
        if member_id in self.primary:
            self.primary[member_id] += 1

    def load_ratio(self, member_id: MemberId) -> float:
        """Return a member's replicas by its limit. Without a limit, or without a member, nothing is worse."""
        return self._ratio(self.total, member_id)

    def primary_ratio(self, member_id: MemberId) -> float:
        """Return a member's primaries by its limit."""
        return self._ratio(self.primary, member_id)

    def describe(self, member_id: MemberId) -> str:
        """Return a member's load for people."""
        return f"holds {self.total[member_id]} of {self._limits[member_id]}"

    def describe_moves(self, member_id: MemberId) -> str:
        """Return the moves under way for people."""
        return f"{self._moves_by_member[member_id]} moves to it, {self._moves} in all"

    def _ratio(self, loads: dict[MemberId, int], member_id: MemberId) -> float:
        limit = self._limits.get(member_id, 0)
        return loads[member_id] / limit if limit > 0 else inf
