"""What members can carry and items weigh."""

from __future__ import annotations

from allocator.core.placement.problem import Problem, ProblemMember


def capacity_of(member: ProblemMember) -> int:
    """Return a member's capacity, which is its limit unless it declares another; from 1."""
    return max(1, member.capacity or member.limit)


def is_weighted(problem: Problem) -> bool:
    """Return whether items weigh differently; where they do not, counts say it all."""
    return len({item.load for item in problem.items}) > 1
