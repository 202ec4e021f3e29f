"""What must hold of a cluster at rest: I4 and I6, and that nobody waits for anything any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from allocator.model import ItemId, MemberId
from allocator.placement.certificate import verify
from allocator.placement.flow import FlowSolver
from allocator.placement.problem import (
    Desired,
    Problem,
    Solver,
    usable,
    zones_spanned,
)
from allocator.policy import AllocationPolicy
from allocator.simulation.invariants import Violation
from allocator.simulation.world import World

ZONES_WANTED = 2
"""Our own, for a mistake in the allocator's must show."""


def check_rest(world: World, solver: Solver, policy: AllocationPolicy) -> Iterable[Violation]:
    """Judge a cluster that has not changed for long.

    Args:
        world: The cluster.
        solver: The members' own; what their limits allow is said by the built-in one.
        policy: The members' own.
    """
    problem = world.state().problem()
    placed = _placement(world)
    best = FlowSolver().solve(problem)
    for dead in sorted(world.replicas.keys() - world.items.keys()):
        yield Violation("I5", f"{dead} is no item and still has assignments")
    if _is_complete(problem, best):
        yield from _coverage_violations(problem, placed, best)
        yield from _zone_violations(problem, placed)
        if not (policy.transition.settle_seconds and any(m.exiting for m in problem.members)):
            # Otherwise balance waits for who leaves.
            yield from _refused_placement(problem, placed)
            yield from _fixed_point_violations(placed, solver.solve(problem))


def _is_complete(problem: Problem, best: Desired) -> bool:
    """Tell whether there is room for every replica.

    Where there is not, what is best cannot always be reached: that an item gives a replica up so that another gets its
    first one is ruled out by I3.
    """
    usable_members = len(usable(problem.members))
    return all(
        len(best[item.item_id]) == min(item.replication, usable_members) for item in problem.items
    )


def _placement(world: World) -> Mapping[ItemId, tuple[MemberId, ...]]:
    return {
        item_id: tuple(sorted(r.member_id for r in world.replicas.get(item_id, {}).values()))
        for item_id in sorted(world.items)
    }


def _coverage_violations(problem: Problem, placed: Desired, best: Desired) -> Iterable[Violation]:
    """Compare what is there with what could be: per level of replication, and in items within one zone."""
    deepest = max((item.replication for item in problem.items), default=0)
    for level in range(1, deepest + 1):
        is_there = sum(len(members) >= level for members in placed.values())
        could_be = sum(len(members) >= level for members in best.values())
        if is_there < could_be:
            problem_text = f"{is_there} items have {level} replicas, {could_be} could"
            yield Violation("I4", problem_text)
            return
    if _in_one_zone(placed) > _in_one_zone(best):
        items = [i for i, members in placed.items() if _is_in_one_zone(members)]
        yield Violation("I4", f"{', '.join(items)} stand in one zone; fewer could")


def _refused_placement(problem: Problem, placed: Desired) -> Iterable[Violation]:
    """Use the independent verifier: it knows nothing of solvers."""
    for found in verify(problem, placed):
        # What stays on an exiting member for want of another place is current, and so no violation.
        yield Violation("I4", str(found))


def _zone_violations(problem: Problem, placed: Desired) -> Iterable[Violation]:
    """Look for items in one zone for which a member elsewhere has room: the simplest of improvements."""
    loads = Counter(m for members in placed.values() for m in members)
    roomy = [
        member.member_id
        for member in problem.members
        if loads[member.member_id] < member.limit and not member.closed
    ]
    for item in problem.items:
        members = placed[item.item_id]
        zones = {member_id.zone for member_id in members}
        elsewhere = [str(member_id) for member_id in roomy if member_id.zone not in zones]
        if len(members) > 1 and len(zones) == 1 and elsewhere:
            yield Violation("I4", f"{item.item_id} is in {zones}, {elsewhere[0]} has room")


def _fixed_point_violations(placed: Desired, plan: Desired) -> Iterable[Violation]:
    for item_id, members in placed.items():
        if members != plan.get(item_id):
            shown = " ".join(map(str, members)) or "nowhere"
            planned = " ".join(map(str, plan.get(item_id, ()))) or "nowhere"
            yield Violation("I6", f"{item_id} rests on {shown}; a new plan has it on {planned}")


def _in_one_zone(placement: Desired) -> int:
    return sum(map(_is_in_one_zone, placement.values()))


def _is_in_one_zone(members: tuple[MemberId, ...]) -> bool:
    return len(members) >= ZONES_WANTED and zones_spanned(members) < ZONES_WANTED
