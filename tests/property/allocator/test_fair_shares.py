"""Fair shares against every load that members can have: they can be met, and none are fairer."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations

from hypothesis import given, settings, strategies as st

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.problem import (
    Problem,
    ProblemItem,
    ProblemMember,
    zones_spanned,
)
from broadsheet.allocator.placement.shares import Totals, capacity_of, load_windows
from broadsheet.allocator.placement.solver import FlowSolver

Loads = tuple[int, ...]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Items that outnumber members, on members of any size, some with room for far more than there are items."""
    ids = draw(
        st.lists(
            st.builds(MemberId, st.sampled_from("abc"), st.sampled_from("pqrs")),
            unique=True,
            min_size=1,
            max_size=4,
        )
    )
    members = tuple(
        ProblemMember(
            member_id=member_id,
            limit=draw(st.sampled_from([1, 2, 3, 5, 8, 40])),
            exiting=False,
            capacity=draw(st.sampled_from([0, 0, 1])),
        )
        for member_id in sorted(ids)
    )
    count = draw(st.integers(len(ids) + 1, 7))
    items = tuple(
        ProblemItem(
            item_id=ItemId(f"item-{number}"),
            replication=draw(st.integers(1, 3)),
            current=(),
            primary=None,
        )
        for number in range(count)
    )
    return Problem(members=members, items=items)


def best_loads(problem: Problem) -> list[Loads]:
    """Return every load of the members with which coverage and zones are as good as they can be."""
    members = problem.members
    several = len({m.member_id.zone for m in members}) > 1
    reached: dict[Loads, tuple[int, int, int]] = {(0,) * len(members): (0, 0, 0)}
    for item in problem.items:
        choices = [
            (chosen, _cost([members[n].member_id for n in chosen], several=several))
            for size in range(item.replication + 1)
            for chosen in combinations(range(len(members)), size)
        ]
        following: dict[Loads, tuple[int, int, int]] = {}
        for loads, cost in reached.items():
            for chosen, added in choices:
                after = tuple(load + (n in chosen) for n, load in enumerate(loads))
                if all(load <= m.limit for load, m in zip(after, members, strict=True)):
                    total = (cost[0] + added[0], cost[1] + added[1], cost[2] + added[2])
                    following[after] = min(following.get(after, total), total)
        reached = following
    best = min(reached.values())
    return [loads for loads, cost in reached.items() if cost == best]


def _cost(placed: list[MemberId], *, several: bool) -> tuple[int, int, int]:
    count = len(placed)
    return (
        -count,
        count * (count - 1) // 2,
        count - min(2, zones_spanned(placed)) if several else 0,
    )


def _unfairness(problem: Problem, loads: Mapping[MemberId, int]) -> Fraction:
    return sum(
        (Fraction(loads[m.member_id] ** 2, capacity_of(m)) for m in problem.members), Fraction()
    )


@settings(max_examples=60, deadline=None)
@given(problems())
def test_fair_shares_can_be_met_and_the_solver_meets_them(problem: Problem) -> None:
    """Whatever the limits: some placement has every load between floor and ceiling, and so has the solver's; no other
    one spreads load²/capacity more evenly by a whole replica.
    """
    windows = load_windows(problem.members, Totals.of(problem), problem.objective)
    ids = [member.member_id for member in problem.members]
    possible = [dict(zip(ids, loads, strict=True)) for loads in best_loads(problem)]

    desired = FlowSolver().solve(problem)

    solved = {m: sum(m in placed for placed in desired.values()) for m in ids}
    within = [
        loads
        for loads in possible
        if all(windows[m].floor <= load <= windows[m].ceiling for m, load in loads.items())
    ]
    assert solved in within
    assert verify(problem, desired) == ()
    if len({capacity_of(member) for member in problem.members}) == 1:
        fairest = min(_unfairness(problem, loads) for loads in possible)
        assert min(_unfairness(problem, loads) for loads in within) == fairest
