"""The solver against exhaustive search, and against its own certificate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

from hypothesis import example, given, settings, strategies as st

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import certify, rounds_max, verify
from broadsheet.allocator.placement.flow import solution_of
from broadsheet.allocator.placement.problem import (
    Desired,
    Problem,
    ProblemItem,
    ProblemMember,
    kept_zones,
    zones_spanned,
)
from broadsheet.allocator.placement.shares import Totals, load_windows
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import Balance, Objective
from tests.support.flow_oracle import PlacementOracle


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    members_max: int,
    items_max: int,
    limit_max: int,
    zones: str = "abc",
    may_exit: bool = True,
) -> Problem:
    """Any placement problem, small clusters with scarce and plentiful room alike."""
    ids = draw(
        st.lists(
            st.builds(MemberId, st.sampled_from(zones), st.sampled_from("pqrstuvw")),
            unique=True,
            max_size=members_max,
        )
    )
    members = tuple(_member(draw, each, limit_max, may_exit=may_exit) for each in sorted(ids))
    items = tuple(
        _item(draw, number, sorted(ids)) for number in range(draw(st.integers(0, items_max)))
    )
    objective = Objective(
        balance=draw(st.sampled_from(Balance)),
        moves_before_balance=draw(st.booleans()),
        tolerance_ratio=draw(st.sampled_from([0.0, 0.3])),
    )
    return Problem(members=members, items=items, objective=objective)


def _member(
    draw: st.DrawFn, member_id: MemberId, limit_max: int, *, may_exit: bool
) -> ProblemMember:
    exiting = may_exit and draw(st.booleans()) and draw(st.booleans())
    return ProblemMember(
        member_id=member_id,
        limit=draw(st.integers(0, limit_max)),
        exiting=exiting,
        cordoned=may_exit and draw(st.integers(0, 5)) == 0,
        capacity=draw(st.sampled_from([0, 0, 1, 7])),
        drain_cost=draw(st.integers(0, 4)) if exiting else 0,
    )


def _item(draw: st.DrawFn, number: int, ids: list[MemberId]) -> ProblemItem:
    current = draw(st.permutations(ids))[: draw(st.integers(0, 3))]
    return ProblemItem(
        item_id=ItemId(f"item-{number:03}"),
        replication=draw(st.integers(0, 3)),
        current=tuple(sorted(current)),
        primary=draw(st.sampled_from([None, *current])),
        avoided=tuple(current[:1]) if draw(st.integers(0, 4)) == 0 else (),
    )


def single_replica_among_drains() -> Problem:
    """One replica, which two draining members may keep: the older one, or one in a zone that is given up."""

    def member(zone: str, name: str, limit: int, drain_cost: int = 0) -> ProblemMember:
        return ProblemMember(
            member_id=MemberId(zone, name),
            limit=limit,
            exiting=drain_cost > 0,
            cordoned=True,
            drain_cost=drain_cost,
        )

    failed, older, younger = MemberId("a", "p"), MemberId("a", "s"), MemberId("c", "p")
    return Problem(
        members=(
            member("a", "p", 0),
            member("a", "q", 0),
            member("a", "r", 1),
            member("a", "s", 1, drain_cost=2),
            member("b", "p", 1),
            member("c", "p", 1, drain_cost=1),
        ),
        items=(
            ProblemItem(
                item_id=ItemId("item-000"),
                replication=1,
                current=(failed, older, younger),
                primary=None,
                avoided=(failed,),
            ),
        ),
        objective=Objective(balance=Balance.TWO_SIDED),
    )


def objectives(problem: Problem, desired: Desired) -> tuple[int, ...]:
    """What a placement costs, most important first; who of equals gets the odd replica left out."""
    windows = load_windows(problem.members, Totals.of(problem), problem.objective)
    kept = kept_zones(problem.members)
    spread_matters = len(kept) > 1
    drain_costs = {m.member_id: m.drain_cost for m in problem.members}
    loads = Counter(m for placed in desired.values() for m in placed)
    uncovered = zone = moves = keep = spread = waits = 0
    for item in problem.items:
        placed = desired[item.item_id]
        count = len(placed)
        uncovered -= count
        waits += count * (count - 1) // 2
        if spread_matters and item.replication > 1:
            spanned = zones_spanned(m for m in placed if m.zone in kept)
            zone += count - min(2, spanned)
            spread += count - spanned
        moves += len(set(placed) - set(item.current)) + 2 * len(set(placed) & set(item.avoided))
        keep += count - (item.primary in placed)
    overload = sum(
        max(0, load - windows[m].floor) + max(0, load - windows[m].ceiling)
        for m, load in loads.items()
    )
    balance_and_moves = [overload, moves]
    if problem.objective.moves_before_balance:
        balance_and_moves.reverse()
    drained = sum(drain_costs[m] * load for m, load in loads.items())
    return (uncovered, waits, zone, drained, *balance_and_moves, keep, spread)


def all_placements(problem: Problem) -> Iterator[Desired]:
    """Every placement within the limits, with nothing new on a closed member."""
    ids = [member.member_id for member in problem.members]
    closed = {member.member_id for member in problem.members if member.closed}
    limits = {member.member_id: member.limit for member in problem.members}
    choices = [
        [
            chosen
            for size in range(item.replication + 1)
            for chosen in combinations(ids, size)
            if closed.intersection(chosen) <= set(item.current)
        ]
        for item in problem.items
    ]
    for chosen in product(*choices):
        loads = Counter(m for placed in chosen for m in placed)
        if all(load <= limits[m] for m, load in loads.items()):
            yield {item.item_id: placed for item, placed in zip(problem.items, chosen, strict=True)}


@settings(max_examples=60, deadline=None)
@given(problems(members_max=4, items_max=3, limit_max=4))
@example(single_replica_among_drains())
def test_solver_tiny_problem_is_the_exhaustive_optimum(problem: Problem) -> None:
    """Every objective in its order: coverage, zones, drains, fair shares, moves, primaries; none is better."""
    desired = FlowSolver().solve(problem)

    assert verify(problem, desired) == ()
    best = min(objectives(problem, each) for each in all_placements(problem))
    assert objectives(problem, desired) == best


@settings(max_examples=60, deadline=None)
@given(problems(members_max=8, items_max=30, limit_max=20))
def test_oracle_flow_proves_itself_minimal(problem: Problem) -> None:
    """No residual arc has a negative reduced cost, and the verifier accepts: what the product is held to is right."""
    oracle = PlacementOracle(problem)

    network = oracle.network
    assert all(
        network.reduced_cost(arc) >= 0
        for arc in range(len(network.heads))
        if network.residuals[arc] > 0
    )
    assert verify(problem, oracle.desired) == ()


def failed_replica_in_the_last_zone() -> Problem:
    """Return a problem whose zone b is given up, with a failed replica in the zone that is kept."""
    leaving = [MemberId("a", "p"), MemberId("b", "p"), MemberId("b", "q")]
    members = [
        ProblemMember(member_id=each, limit=1, exiting=True, cordoned=True, drain_cost=1)
        for each in leaving
    ]
    members.insert(
        1, ProblemMember(member_id=MemberId("a", "q"), limit=1, exiting=False, cordoned=True)
    )
    item = ProblemItem(
        item_id=ItemId("item-000"),
        replication=2,
        current=tuple(leaving),
        primary=None,
        avoided=(leaving[0],),
    )
    return Problem(members=tuple(members), items=(item,), objective=Objective())


@settings(max_examples=150, deadline=None)
@given(problems(members_max=9, items_max=40, limit_max=20, zones="abcd"))
@example(failed_replica_in_the_last_zone())
def test_solver_proves_itself_minimal_and_equals_the_oracle(problem: Problem) -> None:
    """Two networks, two algorithms, one optimum; and the dual, computed apart, meets the moves."""
    solution = solution_of(problem)

    for explicit in {solution.explicit, frozenset[ItemId]()}:
        certificate = certify(problem, solution.desired, explicit=explicit)
        assert certificate.optimal
        assert certificate.moves_bound == certificate.moves
        assert certificate.rounds <= rounds_max(problem)
    assert verify(problem, solution.desired) == ()
    plain = PlacementOracle(problem).desired
    assert objectives(problem, solution.desired) == objectives(problem, plain)


@settings(max_examples=100, deadline=None)
@given(problems(members_max=9, items_max=12, limit_max=6, zones="ab"))
def test_certificate_finds_which_items_hubs_would_double(problem: Problem) -> None:
    """Scarce room, so that hubs undercut the best placement: it is proven from problem and answer alone, in a bounded
    number of rounds.
    """
    certificate = certify(problem, FlowSolver().solve(problem))

    assert certificate.optimal
    assert certificate.moves_bound == certificate.moves
    assert certificate.rounds <= rounds_max(problem)


@settings(max_examples=40, deadline=None)
@given(problems(members_max=4, items_max=3, limit_max=3), st.integers(0))
def test_certificate_of_any_placement_ends_and_proves_only_the_best(
    problem: Problem, choice: int
) -> None:
    """A placement that somebody made up is judged, too: never as minimal unless it is, and never without end."""
    placements = list(all_placements(problem))
    desired = placements[choice % len(placements)]

    certificate = certify(problem, desired)

    assert certificate.rounds <= rounds_max(problem)
    best = min(objectives(problem, each) for each in placements)
    if certificate.optimal:
        assert objectives(problem, desired) == best


@settings(max_examples=40, deadline=None)
@given(problems(members_max=8, items_max=30, limit_max=20, may_exit=False))
def test_solver_asked_again_after_its_plan_moves_nothing(problem: Problem) -> None:
    """A placement carried out is a fixed point: the next solve keeps every replica where the first put it (I6).

    Exiting members are left out: fair shares follow what they still hold, and that has changed.
    """
    first = FlowSolver().solve(problem)
    carried_out = Problem(
        members=problem.members,
        items=tuple(
            ProblemItem(
                item_id=item.item_id,
                replication=item.replication,
                current=first[item.item_id],
                primary=next(iter(first[item.item_id]), None),
            )
            for item in problem.items
        ),
        objective=problem.objective,
    )

    assert FlowSolver().solve(carried_out) == first
