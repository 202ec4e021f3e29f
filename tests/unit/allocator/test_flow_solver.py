"""The solver on arrays: what it does beyond the property tests, one step at a time."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement import certificate as certificates
from broadsheet.allocator.placement.arcs import Arcs, FlowUnsolvedError, potentials, solve
from broadsheet.allocator.placement.certificate import certify, verify
from broadsheet.allocator.placement.columns import columns_of
from broadsheet.allocator.placement.flow import Solution, solution_of
from broadsheet.allocator.placement.hub_network import classes_of
from broadsheet.allocator.placement.objective_costs import Scale, scales_for
from broadsheet.allocator.placement.problem import Desired, Problem, ProblemItem, ProblemMember
from broadsheet.allocator.placement.roles import first_roles
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.placement.unit_assignment import deal_order, pair_hub_units
from broadsheet.allocator.policy import Objective

SEED = 3


def cluster(count: int, *, limit: int = 10_000, zones: int = 3) -> list[ProblemMember]:
    """Members dealt over zones."""
    return [
        ProblemMember(member_id=MemberId(f"z{n % zones}", f"m{n:03}"), limit=limit, exiting=False)
        for n in range(count)
    ]


def at_random(count: int, members: list[ProblemMember], replication: int) -> Problem:
    """Items on members drawn again for each: the worst start there is."""
    draw = random.Random(SEED)
    ids = [member.member_id for member in members]
    items: list[ProblemItem] = []
    for n in range(count):
        current = draw.sample(ids, replication)
        items.append(
            ProblemItem(
                item_id=ItemId(f"item-{n:05}"),
                replication=replication,
                current=tuple(sorted(current)),
                primary=current[0],
            )
        )
    members = sorted(members, key=lambda member: member.member_id)
    return Problem(members=tuple(members), items=tuple(items))


def carried_out(problem: Problem, desired: Desired) -> list[ProblemItem]:
    """The problem's items where a plan put them."""
    return [
        ProblemItem(
            item_id=item.item_id,
            replication=item.replication,
            current=desired[item.item_id],
            primary=desired[item.item_id][0],
        )
        for item in problem.items
    ]


def moves(items: list[ProblemItem], desired: Desired) -> int:
    """New replicas."""
    return sum(len(set(desired[item.item_id]) - set(item.current)) for item in items)


@pytest.mark.parametrize("replication", [2, 3])
def test_array_solver_random_start_is_balanced_with_a_certificate(replication: int) -> None:
    """Thousands of items anywhere: loads end within one of each other, proven to cost the fewest moves."""
    problem = at_random(3_000, cluster(30), replication)

    solution = solution_of(problem)

    loads = Counter(m for placed in solution.desired.values() for m in placed)
    assert set(loads.values()) == {100 * replication}
    assert verify(problem, solution.desired) == ()
    certificate = certify(problem, solution.desired, explicit=solution.explicit)
    assert certificate.optimal
    assert certificate.moves == certificate.moves_bound > 0


def test_array_solver_lost_member_moves_only_what_it_held() -> None:
    """One of thirty balanced members goes: its 200 replicas are placed again, and nothing else moves."""
    members = cluster(30)
    settled = at_random(3_000, members, 2)
    desired = FlowSolver().solve(settled)
    gone = settled.members[7].member_id
    items = [
        ProblemItem(
            item_id=item.item_id,
            replication=2,
            current=tuple(m for m in item.current if m != gone),
            primary=item.primary if item.primary != gone else None,
        )
        for item in carried_out(settled, desired)
    ]
    problem = Problem(
        members=tuple(m for m in settled.members if m.member_id != gone), items=tuple(items)
    )

    after = FlowSolver().solve(problem)

    assert moves(items, after) == 200
    assert certify(problem, after).optimal


def test_array_solver_newcomers_get_their_floor_and_no_more_moves() -> None:
    """Three members join thirty: each takes its fair share rounded down, which is what any balanced answer needs."""
    members = cluster(33)
    settled = at_random(3_000, members[:30], 2)
    items = carried_out(settled, FlowSolver().solve(settled))
    problem = Problem(members=tuple(sorted(members, key=lambda m: m.member_id)), items=tuple(items))

    after = FlowSolver().solve(problem)

    assert moves(items, after) == 3 * (6_000 // 33)
    assert verify(problem, after) == ()


def test_certificate_refuses_a_placement_with_a_needless_move() -> None:
    """One swap too many, within every bound: the verifier cannot see it, the certificate must."""
    problem = at_random(60, cluster(6), 2)
    desired = dict(FlowSolver().solve(problem))
    settled = Problem(members=problem.members, items=tuple(carried_out(problem, desired)))
    assert certify(settled, desired).optimal
    one, other = _swappable(desired)
    desired[one[0]], desired[other[0]] = one[1], other[1]

    certificate = certify(settled, desired)

    assert verify(settled, desired) == ()
    assert not certificate.optimal
    assert certificate.moves == 2


def _swappable(
    desired: Desired,
) -> tuple[tuple[ItemId, tuple[MemberId, ...]], tuple[ItemId, tuple[MemberId, ...]]]:
    """Return two items and where they would stand after exchanging a member of one zone."""
    for one, ours in desired.items():
        for other, theirs in desired.items():
            if ours[0].zone == theirs[0].zone and not set(ours) & set(theirs):
                swapped = tuple(sorted((theirs[0], ours[1]))), tuple(sorted((ours[0], theirs[1])))
                return (one, swapped[0]), (other, swapped[1])
    raise AssertionError("two items share a zone and no member")


def _full_and_roomy(count: int) -> Problem:
    """One member is full of items of one replica, another has room; as many new items need both."""
    roomy, full = MemberId("a", "m1"), MemberId("a", "m2")
    new = (
        ProblemItem(item_id=ItemId(f"i{n:04}"), replication=2, current=(), primary=None)
        for n in range(count)
    )
    old = (
        ProblemItem(item_id=ItemId(f"j{n:04}"), replication=1, current=(full,), primary=full)
        for n in range(count)
    )
    return Problem(
        members=tuple(
            ProblemMember(member_id=member_id, limit=limit, exiting=False)
            for member_id, limit in ((roomy, 9 * count), (full, count))
        ),
        items=(*new, *old),
    )


@pytest.mark.parametrize("count", [1, 500])
def test_array_solver_items_that_hubs_would_double_get_arcs_of_their_own(count: int) -> None:
    """A hub alone would put new items on the roomy member twice rather than move what the full one holds."""
    problem = _full_and_roomy(count)

    solution = solution_of(problem)

    assert solution.explicit
    assert all(len(placed) == item.replication for item, placed in _placed(problem, solution))
    for explicit in (solution.explicit, frozenset[ItemId]()):
        assert certify(problem, solution.desired, explicit=explicit).optimal


def test_certificate_too_large_to_be_exact_proves_nothing_but_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without room for arcs from all items to all members it says less, never something untrue, and never hangs."""
    problem = _full_and_roomy(20)
    desired = solution_of(problem).desired
    monkeypatch.setattr(certificates, "EXPLICIT_CELLS_MAX", 1)

    certificate = certify(problem, desired)

    assert not certificate.optimal
    assert certificate.moves_bound <= certificate.moves
    assert certificate.rounds <= certificates.rounds_max(problem)


def _placed(problem: Problem, solution: Solution) -> list[tuple[ProblemItem, tuple[MemberId, ...]]]:
    return [(item, solution.desired[item.item_id]) for item in problem.items]


def test_items_alike_with_arcs_of_their_own_are_one_class() -> None:
    """500 items that hubs would double cost as much as one: the network must not grow with them."""
    columns = columns_of(_full_and_roomy(500))
    explicit = np.arange(500)
    roles = first_roles(columns)
    roles.open(columns, explicit)

    classes = classes_of(columns, roles, explicit)

    assert classes.explicit.sum() == 1
    assert classes.size[classes.explicit] == [500]
    assert (classes.alike(np.array([7])) == explicit).all()


def test_array_solver_scarce_room_takes_second_replicas_from_items_at_rest() -> None:
    """Three places, two taken by an item at rest, two new items: what takes part at first is priced as the rest is."""
    one, two = MemberId("a", "m1"), MemberId("a", "m2")
    problem = Problem(
        members=(
            ProblemMember(member_id=one, limit=2, exiting=False),
            ProblemMember(member_id=two, limit=1, exiting=False),
        ),
        items=tuple(
            ProblemItem(
                item_id=ItemId(f"i{n}"), replication=replication, current=current, primary=None
            )
            for n, (replication, current) in enumerate([(1, ()), (3, (one, two)), (1, ())])
        ),
    )

    desired = FlowSolver().solve(problem)

    assert [len(placed) for placed in desired.values()] == [1, 1, 1]


def test_pairs_of_a_member_with_most_of_the_units_double_nobody() -> None:
    """In turn, the last items would get the large member twice or thrice, with partners far away."""
    quotas = {0: 30_000, 1: 20_000, 2: 20_000, 3: 20_000}
    items = [item for item in range(30_000) for _ in range(3)]

    members, stuck = pair_hub_units(items, quotas, members=4, taken=lambda _: ())

    assert stuck == []
    assert len(set(zip(items, members, strict=True))) == len(items)
    assert Counter(members) == quotas


def _two_ways() -> tuple[Arcs, list[Scale]]:
    """Three units, two ways: one is better in the first objective, the other in the second."""
    arcs = Arcs(
        nodes=4,
        tail=np.array([0, 0, 1, 2], dtype=np.int32),
        head=np.array([1, 2, 3, 3], dtype=np.int32),
        capacity=np.array([2, 3, 2, 3], dtype=np.int64),
        units=np.array([[0, 9], [1, 0], [0, 9], [0, 0]], dtype=np.int16),
        supply=np.array([3, 0, 0, -3], dtype=np.int64),
    )
    scales = [
        Scale(objective="first", weight=1_000, cycle_max=1),
        Scale(objective="second", weight=1, cycle_max=18),
    ]
    return arcs, scales


def test_stages_choose_by_the_first_objective_alone() -> None:
    """In one stage or, where bits are short, in two: the first objective decides whatever the second costs."""
    arcs, scales = _two_ways()
    heavy = [scales[0], Scale(objective="second", weight=1, cycle_max=2**59)]

    assert solve(arcs, scales).flow.tolist() == [2, 1, 2, 1]
    assert solve(arcs, heavy).flow.tolist() == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("supply", "reason"),
    [
        ([9, 0, 0, -9], "INFEASIBLE"),
        ([3, 0, 0, -4], "sum to 0, not -1"),
        ([4, 0, 0, -3], "sum to 0, not 1"),
    ],
)
def test_network_that_cannot_carry_its_supply_is_refused(supply: list[int], reason: str) -> None:
    """More than arcs hold, or a demand that no supply meets: an error, never a part of the flow taken for all."""
    arcs, scales = _two_ways()

    with pytest.raises(FlowUnsolvedError, match=reason):
        solve(replace(arcs, supply=np.array(supply, dtype=np.int64)), scales)


def test_potentials_of_a_flow_that_is_not_cheapest_are_refused() -> None:
    """A negative cycle has no distances: better an error than a wrong proof."""
    arcs, _ = _two_ways()

    with pytest.raises(FlowUnsolvedError, match="negative cycle"):
        potentials(
            arcs,
            np.array([0, 3, 0, 3], dtype=np.int64),
            arcs.units[:, 0].astype(np.int64),
            np.zeros(4, dtype=np.int64),
        )


def test_pairs_swap_members_rather_than_give_one_twice() -> None:
    """Item 0 is on member 0 and is paired with it first; another pair takes it over."""
    members, stuck = pair_hub_units(
        [0, 1], {0: 1, 1: 1}, members=2, taken={0: [0], 1: []}.__getitem__
    )

    assert (members, stuck) == ([1, 0], [])


def test_pairs_without_a_partner_are_stuck() -> None:
    """Both items are on the only member that has units to get."""
    _, stuck = pair_hub_units([0, 1], {0: 2}, members=1, taken={0: [0], 1: [0]}.__getitem__)

    assert stuck == [0, 1]


def test_zones_new_to_an_item_are_dealt_first_and_the_fullest_in_front() -> None:
    """Otherwise units of a full zone between two half ones would leave items in one zone."""
    assert deal_order({0: 2, 1: 6, 2: 2}) == [1, 0, 2]
    assert deal_order({0: 2, 1: 6, 2: 2}, entered=[1]) == [0, 2, 1]


def test_weights_of_thousands_of_members_leave_out_the_lightest_objectives() -> None:
    """Ten thousand members: 64 bits hold coverage, zones, balance and moves; niceties are dropped, not the order."""
    scales = scales_for(members=10_000, zones=3, objective=Objective())

    weights = {scale.objective: scale.weight for scale in scales}
    assert weights["level"] == weights["spread"] == 0
    assert weights["cover"] > weights["zone"] > weights["overload"] > weights["move"] > 0
    assert max(weights.values()) <= 2**55


def test_solver_imports_its_libraries_at_the_first_solve_only() -> None:
    """Clients and members that never lead import the solver's module, and are spared its libraries."""
    program = """
import sys
from broadsheet.allocator import Session
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Problem, ProblemItem, ProblemMember
from broadsheet.allocator.placement.solver import FlowSolver
solver = FlowSolver()
before = "pylmcf" in sys.modules
member = ProblemMember(member_id=MemberId("a", "b"), limit=99, exiting=False)
item = ProblemItem(item_id=ItemId("1"), replication=1, current=(), primary=None)
solver.solve(Problem(members=(member,), items=(item,)))
print(before, "pylmcf" in sys.modules)
"""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["False", "True"]
