"""Which plans a leader remembers, and for how long they are good."""

from __future__ import annotations

from broadsheet.allocator.model import ItemId
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.placement.problem import Desired
from broadsheet.allocator.state.alloc_state import Demand
from broadsheet.allocator.whatif.leader_snapshot import Basis
from broadsheet.consumer.rpc.plan_cache import PLANS_KEPT_MAX, CachedPlan, PlanCache
from broadsheet.wire.allocation_pb2 import PlanRequest

BEFORE: Basis = (1, 1, 1)
NOW: Basis = (1, 2, 1)


def _kept(plan_id: str, basis: Basis, *, shards: int = 0) -> CachedPlan:
    return CachedPlan(
        id=plan_id,
        basis=basis,
        plan=Plan(Demand(members=(), items=(), avoided=frozenset()), _desired(shards)),
        drained=frozenset(),
        can_be_applied=True,
        asked=PlanRequest(),
    )


def _desired(shards: int) -> Desired:
    return {ItemId(str(number)): () for number in range(shards)}


def test_plan_is_found_while_its_basis_is_what_it_was() -> None:
    """And by the leader that made it: the basis names the leadership."""
    plans, kept = PlanCache(), _kept("a", NOW)
    plans.keep(kept, basis=NOW)

    assert plans.find("a", basis=NOW) is kept
    assert plans.find("a", basis=(2, 2, 1)) is None
    assert plans.find("a", basis=None) is None
    assert plans.find("b", basis=NOW) is None


def test_plan_that_can_never_be_applied_leaves_its_name_alone() -> None:
    """A placement of every shard is large, and a basis does not come back; but whoever asks is told the right thing."""
    plans = PlanCache()
    plans.keep(_kept("old", BEFORE), basis=BEFORE)
    plans.keep(_kept("late", BEFORE), basis=NOW)
    plans.keep(_kept("new", NOW), basis=NOW)

    assert [plan_id in plans for plan_id in ("old", "late", "new")] == [True, True, True]
    assert plans.find("old", basis=BEFORE) is None
    assert plans.find("late", basis=BEFORE) is None
    assert plans.find("new", basis=NOW) is not None


def test_only_so_many_are_remembered() -> None:
    """The oldest is forgotten; one that is asked for again is not the oldest."""
    plans = PlanCache()
    for number in range(PLANS_KEPT_MAX):
        plans.keep(_kept(str(number), NOW), basis=NOW)
    plans.keep(_kept("0", NOW), basis=NOW)
    plans.keep(_kept("one more", NOW), basis=NOW)

    assert "0" in plans
    assert "1" not in plans


def test_plans_of_very_many_shards_are_fewer() -> None:
    """Two of them are more than a leader should hold beside its own: the newest stays, however large."""
    plans = PlanCache(placements_max=10)
    for name in ("first", "second", "third"):
        plans.keep(_kept(name, NOW, shards=5), basis=NOW)
    assert ["first" in plans, "second" in plans, "third" in plans] == [False, True, True]

    plans.keep(_kept("huge", NOW, shards=11), basis=NOW)

    assert ["third" in plans, "huge" in plans] == [False, True]
