"""What a member can carry beside the others."""

from __future__ import annotations

from allocator.core.placement.problem import ProblemMember


def capacity_of(member: ProblemMember) -> int:
    """Return a member's capacity, which is its limit unless it declares another; from 1."""
    return max(1, member.capacity or member.limit)
