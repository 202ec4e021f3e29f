"""Loads of members that have room for more replicas than there are items to hold one of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import certify, verify
from broadsheet.allocator.placement.flow import solution_of
from broadsheet.allocator.placement.problem import (
    Desired,
    Problem,
    ProblemItem,
    ProblemMember,
)
from broadsheet.allocator.placement.solver import FlowSolver

LARGE, *SMALL = (MemberId("a", name) for name in ("large", "s1", "s2", "s3"))


def _members(large: int, small: int) -> tuple[ProblemMember, ...]:
    limits = {LARGE: large, **dict.fromkeys(SMALL, small)}
    return tuple(
        ProblemMember(member_id=member_id, limit=limit, exiting=False)
        for member_id, limit in limits.items()
    )


def _items(held: Sequence[tuple[MemberId, ...]]) -> tuple[ProblemItem, ...]:
    return tuple(
        ProblemItem(
            item_id=ItemId(f"i{number:05}"),
            replication=3,
            current=current,
            primary=current[0] if current else None,
        )
        for number, current in enumerate(held)
    )


def _uneven(items: int) -> Problem:
    """Items of three replicas on a large member and three small ones that hold 80, 82 and 38 of a hundred."""
    pairs = ((SMALL[0], SMALL[1]), (SMALL[0], SMALL[2]), (SMALL[1], SMALL[2]))
    shares = (62, 18, 20)
    held = [(LARGE, *pair) for pair, share in zip(pairs, shares, strict=True) for _ in range(share)]
    return Problem(members=_members(10 * items, 2 * items), items=_items(held * (items // 100)))


def _loads(desired: Desired) -> list[int]:
    return sorted(Counter(m for placed in desired.values() for m in placed).values())


@pytest.mark.parametrize("problem", [_uneven(100), _uneven(1_000)], ids=["100", "1000"])
def test_what_a_large_member_cannot_hold_is_shared_fairly_by_the_others(problem: Problem) -> None:
    """Limits of 1,000 and three times 200, but the large member holds each of 100 items once: the others share 200."""
    items = len(problem.items)

    desired = FlowSolver().solve(problem)

    *small, large = _loads(desired)
    assert large == items
    assert sum(small) == 2 * items
    assert max(small) - min(small) <= 1
    assert verify(problem, desired) == ()
    certificate = certify(problem, desired)
    assert (certificate.optimal, certificate.moves) == (True, certificate.moves_bound)


def test_verifier_refuses_uneven_loads_of_members_alike() -> None:
    """Three members alike with 80, 82 and 38: whatever the solver holds their share to be, it is the same share."""
    problem = _uneven(100)
    desired = {item.item_id: item.current for item in problem.items}

    found = [str(each) for each in verify(problem, desired)]

    assert found
    assert all("has too many, a#s3 too few" in each for each in found)


def test_new_items_on_a_large_member_get_no_arcs_of_their_own() -> None:
    """2,000 new items, of which the large member gets one replica each: dealt at the first attempt."""
    problem = Problem(members=_members(20_000, 4_000), items=_items([()] * 2_000))

    solution = solution_of(problem)

    assert (len(solution.explicit), solution.solves) == (0, 1)
    assert _loads(solution.desired) == [1_333, 1_333, 1_334, 2_000]
