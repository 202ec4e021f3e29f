"""What is said against a move, refuted by making the move: each reason holds, and it is the first that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings

from allocator.core.model import ItemId, MemberId
from allocator.core.placement.flow import FlowSolver
from allocator.core.placement.problem import Desired, Problem
from allocator.core.placement.trial import Trial, Verdict
from tests.property.allocator.test_placement_optimal import objectives, problems


def _moves(problem: Problem, desired: Desired) -> Iterator[tuple[ItemId, MemberId, MemberId]]:
    for item_id, placed in desired.items():
        for source in placed:
            yield from (
                (item_id, source, m.member_id) for m in problem.members if m.member_id != source
            )


def _moved(desired: Desired, item_id: ItemId, source: MemberId, target: MemberId) -> Desired:
    others = [each for each in desired[item_id] if each != source]
    return {**desired, item_id: tuple(sorted([*others, target]))}


def _refuse_what_does_not_hold(problem: Problem, desired: Desired) -> Counter[Verdict]:
    """Make every move that there is, and compare what became worse first with what was said."""
    seen: Counter[Verdict] = Counter()
    trial = Trial(problem, desired)
    members = {member.member_id: member for member in problem.members}
    items = {item.item_id: item for item in problem.items}
    loads = Counter(m for placed in desired.values() for m in placed)
    balance, moves = (5, 4) if problem.objective.moves_before_balance else (4, 5)
    places = {
        Verdict.ZONES: {2, 7},
        Verdict.DRAINED: {3},
        Verdict.BALANCE: {balance},
        Verdict.FAILED: {moves},
        Verdict.MOVE: {moves},
        Verdict.PRIMARY: {6},
    }
    before = objectives(problem, desired)
    for item_id, source, target in _moves(problem, desired):
        verdict = trial.verdict(item_id, source, target)
        seen[verdict] += 1
        if verdict is Verdict.HOLDS_ANOTHER:
            assert target in desired[item_id]
            continue
        if verdict is Verdict.LEAVING:
            assert members[target].exiting
            assert target not in items[item_id].current
            continue
        if verdict is Verdict.FULL:
            assert loads[target] + 1 > members[target].limit
            continue
        after = objectives(problem, _moved(desired, item_id, source, target))
        changed = next(
            (n for n, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]),
            None,
        )
        if verdict is Verdict.AS_GOOD:
            assert changed is None
        elif verdict is Verdict.BETTER:
            assert after < before
        else:
            assert after > before
            assert changed in places[verdict]
    return seen


@settings(max_examples=200, deadline=None)
@given(problems(members_max=6, items_max=8, limit_max=6))
def test_every_reason_holds_and_no_move_betters_the_plan(problem: Problem) -> None:
    """The solver's own plan: each move is refused for what the objectives say, and none would be better."""
    seen = _refuse_what_does_not_hold(problem, FlowSolver().solve(problem))

    assert not seen[Verdict.BETTER]


@settings(max_examples=200, deadline=None)
@given(problems(members_max=6, items_max=8, limit_max=6))
def test_every_reason_holds_of_a_plan_for_other_ends(problem: Problem) -> None:
    """A plan that was made before members failed, for other objectives: better moves are called so, and only those."""
    objective = replace(
        problem.objective, moves_before_balance=not problem.objective.moves_before_balance
    )
    bare = tuple(replace(item, avoided=(), primary=None) for item in problem.items)

    _refuse_what_does_not_hold(
        problem, FlowSolver().solve(replace(problem, items=bare, objective=objective))
    )
