"""The flow solver on graphs small enough to work out by hand."""

from __future__ import annotations

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.objective_costs import LEVEL_MAX, Weights
from broadsheet.allocator.placement.problem import Problem, ProblemItem, ProblemMember
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import Objective
from tests.support.flow_oracle import Network


def test_network_cheaper_path_is_used_first_and_dear_one_for_the_rest() -> None:
    """Two parallel ways of capacity 2 and 3, five units wanted of which four fit the sink arc."""
    network = Network()
    source, middle, sink = (network.add_node() for _ in range(3))
    dear = network.add_arc(source, middle, capacity=3, cost=5)
    cheap = network.add_arc(source, middle, capacity=2, cost=1)
    last = network.add_arc(middle, sink, capacity=4)

    network.solve(source, sink)

    assert [network.flow(arc) for arc in (dear, cheap, last)] == [2, 2, 4]


def test_network_earlier_choice_is_undone_when_it_stands_in_the_way() -> None:
    """The first shortest path takes an arc that the optimum gives back: residual arcs must be used."""
    network = Network()
    s, a, b, t = (network.add_node() for _ in range(4))
    tempting = network.add_arc(a, b, capacity=1, cost=0)
    for tail, head, cost in ((s, a, 0), (s, b, 3), (a, t, 3), (b, t, 0)):
        network.add_arc(tail, head, capacity=1, cost=cost)

    network.solve(s, t)

    assert network.flow(tempting) == 0


def test_network_unreachable_sink_sends_nothing() -> None:
    """No path is an answer, not an error."""
    network = Network()
    source, sink = network.add_node(), network.add_node()

    network.solve(source, sink)

    assert network.potentials == [0, 0]


def test_weights_heavier_objective_outweighs_all_lighter_ones_on_a_cycle() -> None:
    """One unit of an objective costs more than a cycle through every member can gain in all lighter ones."""
    members_passed = 1_000

    weights = Weights.for_cluster(members=members_passed, zones=3, objective=Objective())

    lighter = LEVEL_MAX * weights.level + members_passed * (weights.spread + weights.keep)
    assert weights.move > lighter
    assert weights.overload > lighter + 2 * members_passed * weights.move
    assert weights.zone > 2 * weights.overload + lighter + 2 * members_passed * weights.move
    assert weights.cover > members_passed * weights.zone
    assert weights.cover < 2**52, "the whole fits 64 bits with room for a path"


def test_weights_moves_before_balance_swaps_the_two() -> None:
    """An operator in the middle of a rollout asks for the fewest moves first."""
    weights = Weights.for_cluster(
        members=10, zones=3, objective=Objective(moves_before_balance=True)
    )

    assert weights.move > 10 * weights.keep + 2 * weights.overload
    assert weights.overload > 10 * weights.keep


def members(*names: str, limit: int = 100, exiting: str = "") -> tuple[ProblemMember, ...]:
    """Members such as `a1`: zone a."""
    return tuple(
        ProblemMember(member_id=MemberId(name[0], name), limit=limit, exiting=name in exiting)
        for name in sorted(names)
    )


def items(count: int, replication: int, *current: str) -> tuple[ProblemItem, ...]:
    """Items that all stand on the members named."""
    ids = tuple(MemberId(name[0], name) for name in current)
    return tuple(
        ProblemItem(
            item_id=ItemId(f"item-{n:04}"),
            replication=replication,
            current=tuple(sorted(ids)),
            primary=ids[0] if ids else None,
        )
        for n in range(count)
    )


def test_solver_thousand_items_on_ten_members_is_even_and_spans_zones() -> None:
    """The cold start: 2,000 replicas, 200 each, every item in two zones, and none twice on one member."""
    problem = Problem(
        members=members(*(f"{zone}{n}" for zone in "abc" for n in range(3)), "a9", limit=1_000),
        items=items(1_000, 2),
    )

    desired = FlowSolver().solve(problem)

    loads = {m.member_id: 0 for m in problem.members}
    for placed in desired.values():
        for member_id in placed:
            loads[member_id] += 1
    assert set(loads.values()) == {200}
    assert all(len({m.zone for m in placed}) == 2 for placed in desired.values())
    assert verify(problem, desired) == ()


def test_solver_scarce_slots_serve_every_item_once_before_any_twice() -> None:
    """Three slots, three items of three: one replica each, for a shard without a primary is down."""
    problem = Problem(members=members("a1", "b1", "c1", limit=1), items=items(3, 3))

    desired = FlowSolver().solve(problem)

    assert [len(placed) for placed in desired.values()] == [1, 1, 1]


def test_solver_new_replicas_avoid_exiting_members_at_the_price_of_balance() -> None:
    """Two of three members want to leave but cannot shed: what arrives goes to the one that stays, beyond its share."""
    problem = Problem(members=members("a1", "a2", "a3", exiting="a1 a2"), items=items(9, 1))

    desired = FlowSolver().solve(problem)

    assert {placed[0].suffix for placed in desired.values()} == {"a3"}


def test_solver_replication_lowered_keeps_the_primary() -> None:
    """One of two replicas must go and either may: the primary stays, for a promotion costs a restart."""
    problem = Problem(members=members("a1", "b1"), items=items(1, 1, "b1", "a1"))

    desired = FlowSolver().solve(problem)

    assert desired[ItemId("item-0000")] == (MemberId("b", "b1"),)


def test_solver_replica_that_stays_failed_is_placed_elsewhere() -> None:
    """A long failed standby moves to the idle member; where there is none, it stays."""
    (item,) = items(1, 2, "a1", "b1")
    failed = ProblemItem(
        item_id=item.item_id,
        replication=2,
        current=item.current,
        primary=item.primary,
        avoided=(MemberId("b", "b1"),),
    )

    with_room = FlowSolver().solve(Problem(members=members("a1", "b1", "b2"), items=(failed,)))
    without = FlowSolver().solve(Problem(members=members("a1", "b1"), items=(failed,)))

    assert [m.suffix for m in with_room[item.item_id]] == ["a1", "b2"]
    assert [m.suffix for m in without[item.item_id]] == ["a1", "b1"]


def test_verifier_names_each_kind_of_defect() -> None:
    """Every rule has its finding, with the item and member it is about: a broken solver must not reach etcd."""
    cluster = members("a1", "a2", "b1", limit=2) + members("c1", limit=2, exiting="c1")
    a1, a2, b1, c1 = (member.member_id for member in cluster)
    problem = Problem(members=cluster, items=items(1, 2))
    item_id = problem.items[0].item_id

    def found(*placed: MemberId) -> list[str]:
        return [str(each) for each in verify(problem, {item_id: placed})]

    assert found(a1, b1) == []
    assert found(b1, a1) == ["item-0000: has members out of order"]
    assert found(a1, a1)[:2] == [
        "item-0000: has a member twice",
        "item-0000 on b#b1: is in one zone, another has room",
    ]
    assert found(a1, a2) == ["item-0000 on b#b1: is in one zone, another has room"]
    assert found(a1) == ["item-0000 on a#a2: is short of a replica that fits"]
    assert "item-0000: has 3 of 2 replicas" in found(a1, a2, b1)
    assert found(a1, MemberId("z", "z9"))[0] == "z#z9: is no member"
    assert [str(each) for each in verify(problem, {})] == ["item-0000: has no answer"]
    assert found(a1, c1) == ["item-0000 on c#c1: is new on a member that is leaving or cordoned"]


def test_verifier_finds_a_member_with_too_many_beside_one_with_too_few() -> None:
    """Three items on a1 and none on a2, where one and two would do: fair shares hold wherever a zone allows."""
    cluster = members("a1", "a2")
    problem = Problem(members=cluster, items=items(3, 1))
    a1, a2 = (member.member_id for member in cluster)
    ids = [item.item_id for item in problem.items]

    uneven = verify(problem, dict.fromkeys(ids, (a1,)))
    even = verify(problem, {ids[0]: (a1,), ids[1]: (a1,), ids[2]: (a2,)})

    assert str(uneven[0]) == "item-0000 on a#a1: has too many, a#a2 too few"
    assert even == ()
