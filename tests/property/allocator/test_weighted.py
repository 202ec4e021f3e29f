"""Weighted placement: counts where nothing weighs more, levelled loads where something does, and an honest gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

from hypothesis import assume, given, settings, strategies as st

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.imbalance import (
    imbalance_gap,
    level,
    utilisation_bound,
    utilisation_max,
)
from broadsheet.allocator.placement.problem import (
    Desired,
    Problem,
    ProblemItem,
    ProblemMember,
    zones_spanned,
)
from broadsheet.allocator.placement.shares import is_weighted
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.placement.weighted import WeightedSolver
from broadsheet.allocator.policy import Objective

COUNTS = FlowSolver()
WEIGHTED = WeightedSolver(COUNTS)


@st.composite
def _problems(
    draw: st.DrawFn, *, loads: st.SearchStrategy[int], members_max: int = 5, items_max: int = 8
) -> Problem:
    names = draw(
        st.sets(st.sampled_from(["ap", "aq", "bp", "bq", "cp", "cq"]), max_size=members_max)
    )
    ids = [MemberId(name[0], name[1]) for name in sorted(names)]
    members = tuple(
        ProblemMember(
            member_id=member_id,
            limit=draw(st.integers(0, 6)),
            exiting=draw(st.booleans()) and draw(st.booleans()),
            cordoned=draw(st.integers(0, 5)) == 0,
            capacity=draw(st.sampled_from([0, 0, 1, 5])),
        )
        for member_id in ids
    )
    items = tuple(
        _item(draw, f"i{number}", ids, draw(loads))
        for number in range(draw(st.integers(0, items_max)))
    )
    objective = Objective(
        moves_before_balance=draw(st.booleans()), tolerance_ratio=draw(st.sampled_from([0.0, 0.5]))
    )
    return Problem(members=members, items=items, objective=objective)


def _item(draw: st.DrawFn, name: str, ids: list[MemberId], load: int) -> ProblemItem:
    current = tuple(sorted(draw(st.permutations(ids))[: draw(st.integers(0, 3))]))
    return ProblemItem(
        item_id=ItemId(name),
        replication=draw(st.integers(0, 3)),
        current=current,
        primary=draw(st.sampled_from(current)) if current else None,
        avoided=current[:1] if draw(st.booleans()) and draw(st.booleans()) else (),
        load=load,
    )


def _moves(problem: Problem, desired: Desired) -> int:
    return sum(len(set(desired[item.item_id]) - set(item.current)) for item in problem.items)


@settings(max_examples=150, deadline=None)
@given(_problems(loads=st.just(1)))
def test_weighted_all_loads_one_is_the_inner_answer(problem: Problem) -> None:
    """Default weight 1 behaves exactly as counts: the very same placement."""
    assert WEIGHTED.solve(problem) == COUNTS.solve(problem)


@settings(max_examples=250, deadline=None)
@given(_problems(loads=st.sampled_from([1, 1, 2, 3, 10])))
def test_weighted_keeps_what_comes_before_balance(problem: Problem) -> None:
    """Each item has the replicas and zones that the flow on counts gives, and no rule is broken."""
    assume(is_weighted(problem))
    by_count = replace(problem, objective=replace(problem.objective, moves_before_balance=True))
    inner = COUNTS.solve(by_count)

    desired = WEIGHTED.solve(problem)

    assert not verify(problem, desired)
    for item in problem.items:
        placed = desired[item.item_id]
        assert len(placed) == len(inner[item.item_id])
        assert zones_spanned(placed) >= zones_spanned(inner[item.item_id])
    assert utilisation_max(problem, desired) <= utilisation_max(problem, inner) or (
        _moves(problem, desired) < _moves(problem, inner)
    )
    if problem.objective.moves_before_balance:
        assert _moves(problem, desired) <= _moves(problem, inner)
    assert WEIGHTED.solve(problem) == desired


@settings(max_examples=120, deadline=None)
@given(_problems(loads=st.sampled_from([1, 2, 5, 9]), members_max=4, items_max=4))
def test_imbalance_bound_is_below_every_placement(problem: Problem) -> None:
    """All placements with the same replicas and zones an item are tried: none is below the bound."""
    assume(problem.members)
    desired = WEIGHTED.solve(problem)

    best = min(utilisation_max(problem, other) for other in _all_placements_like(problem, desired))

    assert utilisation_bound(problem, desired) <= best <= utilisation_max(problem, desired)
    assert imbalance_gap(problem, desired) >= 0.0


def _all_placements_like(problem: Problem, desired: Desired) -> Iterator[Desired]:
    limits = {member.member_id: member.limit for member in problem.members}
    closed = {member.member_id for member in problem.members if member.closed}
    choices = []
    for item in problem.items:
        placed = desired[item.item_id]
        choices.append(
            [
                found
                for found in combinations(sorted(limits), len(placed))
                if zones_spanned(found) >= zones_spanned(placed)
                and all(m in item.current for m in found if m in closed)
            ]
        )
    for picked in product(*choices):
        counts = Counter(member_id for found in picked for member_id in found)
        if all(count <= limits[member_id] for member_id, count in counts.items()):
            yield dict(zip((item.item_id for item in problem.items), picked, strict=True))


def _cluster(loads: list[int], *, members: int, replication: int = 1) -> Problem:
    return Problem(
        members=tuple(
            ProblemMember(member_id=MemberId("ab"[n % 2], f"{n:02}"), limit=100, exiting=False)
            for n in sorted(range(members), key=lambda n: ("ab"[n % 2], n))
        ),
        items=tuple(
            ProblemItem(
                item_id=ItemId(f"i{n:03}"),
                replication=replication,
                current=(),
                primary=None,
                load=load,
            )
            for n, load in enumerate(loads)
        ),
    )


def test_weighted_one_heavy_item_stands_alone() -> None:
    """Counts would give each of two members three items; the heavy one weighs as much as the five others."""
    problem = _cluster([5, 1, 1, 1, 1, 1], members=2)

    desired = WEIGHTED.solve(problem)

    assert Counter(desired.values())[desired[ItemId("i000")]] == 1
    assert utilisation_max(problem, desired) == Fraction(5, 100)
    assert imbalance_gap(problem, desired) == 0.0


def test_weighted_a_member_that_joins_gets_load_and_a_level_cluster_gets_no_move() -> None:
    """The newcomer ends near the others, and the placement made for it is then left as it is."""
    loads = [1 + (n * 7) % 13 for n in range(200)]
    before = _cluster(loads, members=8, replication=2)
    placed = WEIGHTED.solve(before)
    joined = _cluster(loads, members=9, replication=2)
    joined = replace(
        joined,
        items=tuple(replace(item, current=placed[item.item_id]) for item in joined.items),
    )

    desired = WEIGHTED.solve(joined)

    assert imbalance_gap(joined, desired) < 0.03
    newcomer = MemberId("a", "08")
    carried = sum(i.load for i in joined.items if newcomer in desired[i.item_id])
    # One replica of each item stands in zone a, which has five members now.
    assert carried > 0.75 * sum(loads) / 5
    settled = replace(
        joined,
        items=tuple(replace(item, current=desired[item.item_id]) for item in joined.items),
    )
    assert WEIGHTED.solve(settled) == desired


def test_weighted_moves_before_balance_leaves_replicas_where_they_are() -> None:
    """While membership is in motion, loads are no reason to make a replica."""
    problem = _cluster([9, 1, 1, 1], members=2)
    here = (problem.members[0].member_id,)
    lopsided = replace(
        problem,
        items=tuple(replace(item, current=here) for item in problem.items),
        objective=Objective(moves_before_balance=True),
    )

    assert set(WEIGHTED.solve(lopsided).values()) == {here}
    willing = replace(lopsided, objective=Objective())
    assert _moves(willing, WEIGHTED.solve(willing)) == 1
    tolerant = replace(lopsided, objective=Objective(tolerance_ratio=1.0))
    assert set(WEIGHTED.solve(tolerant).values()) == {here}


class _Restless:
    """A solver that leaves every item where it is, but for the last."""

    def solve(self, problem: Problem) -> Desired:
        """Put the last item on the second member."""
        placed = {item.item_id: item.current for item in problem.items}
        return placed | {problem.items[-1].item_id: (problem.members[1].member_id,)}


def test_weighted_no_replica_moves_that_might_as_well_stay() -> None:
    """Members end at 96, 102 and 102 of 300, all level enough; the item that moved fits where it was, so it stays."""
    held = [[1] * 96, [2] * 50, [2] * 51]
    loads = [load for group in held for load in group]
    problem = _cluster([*loads, 2], members=3)
    homes = [m.member_id for m, group in zip(problem.members, held, strict=True) for _ in group]
    homes.append(problem.members[0].member_id)
    settled = replace(
        problem,
        items=tuple(
            replace(item, current=(home,)) for item, home in zip(problem.items, homes, strict=True)
        ),
    )

    assert _moves(settled, _Restless().solve(settled)) == 1
    assert _moves(settled, WeightedSolver(_Restless()).solve(settled)) == 0


def test_level_is_reached_by_members_that_are_not_full() -> None:
    """A member that takes one item of two holds the heavier at most: the others carry the rest."""
    problem = _cluster([4, 4, 4, 4], members=3)
    first, *others = problem.members
    tight = replace(problem, members=(replace(first, limit=1, capacity=100), *others))
    desired = FlowSolver().solve(tight)

    assert level(problem, FlowSolver().solve(problem)) == Fraction(16, 300)
    assert level(tight, desired) == Fraction(12, 200)
