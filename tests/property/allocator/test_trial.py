"""What is said against a move, refuted by making the move: each reason holds, and it is the first that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import example, given, settings

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Desired, Problem, zones_spanned
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.placement.trial import Trial, Verdict
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, WaitReason
from broadsheet.allocator.whatif.causes import CauseFinder
from tests.property.allocator.test_placement_optimal import (
    objectives,
    problems,
    single_replica_among_drains,
)


def _moves(problem: Problem, desired: Desired) -> Iterator[tuple[ItemId, MemberId, MemberId]]:
    for item_id, placed in desired.items():
        for source in placed:
            yield from (
                (item_id, source, m.member_id) for m in problem.members if m.member_id != source
            )


def _moved(desired: Desired, item_id: ItemId, source: MemberId | None, target: MemberId) -> Desired:
    others = [each for each in desired[item_id] if each != source]
    return {**desired, item_id: tuple(sorted([*others, target]))}


class _Judge:
    """Says of a move what came of making it."""

    def __init__(self, problem: Problem, desired: Desired) -> None:
        self._problem = problem
        self._desired = desired
        self._members = {member.member_id: member for member in problem.members}
        self._items = {item.item_id: item for item in problem.items}
        self._loads = Counter(m for placed in desired.values() for m in placed)
        self._before = objectives(problem, desired)

    def verdict(self, item_id: ItemId, source: MemberId | None, target: MemberId) -> Verdict:
        """Make the move; with no source, one more replica."""
        item, member = self._items[item_id], self._members[target]
        if target in self._desired[item_id]:
            return Verdict.HOLDS_ANOTHER
        if member.exiting and target not in item.current:
            return Verdict.LEAVING
        if member.cordoned and target not in item.current:
            return Verdict.CORDONED
        if self._loads[target] + 1 > member.limit:
            return Verdict.FULL
        after = objectives(self._problem, _moved(self._desired, item_id, source, target))
        pairs = enumerate(zip(self._before, after, strict=True))
        changed = next((place for place, (old, new) in pairs if old != new), None)
        if changed is None:
            return Verdict.AS_GOOD
        if after < self._before:
            return Verdict.BETTER
        fails = target in item.avoided and source not in item.avoided
        moves = Verdict.FAILED if fails else Verdict.MOVE
        middle = [Verdict.BALANCE, moves]
        if self._problem.objective.moves_before_balance:
            middle.reverse()
        worse = [Verdict.ZONES, Verdict.DRAINED, *middle, Verdict.PRIMARY, Verdict.ZONES]
        # Coverage comes first, in two numbers, and no move of one replica makes it worse.
        return worse[changed - 2]


def _refuse_what_does_not_hold(problem: Problem, desired: Desired) -> Counter[Verdict]:
    """Make every move that there is, and compare what became worse first with what was said."""
    seen: Counter[Verdict] = Counter()
    trial, judge = Trial(problem, desired), _Judge(problem, desired)
    for move in _moves(problem, desired):
        verdict = trial.verdict(*move)
        seen[verdict] += 1
        assert verdict is judge.verdict(*move)
    return seen


def _blocked(problem: Problem, desired: Desired) -> Iterator[Blocked]:
    """What a schedule says that the plan itself does not provide for."""
    exiting = {member.member_id for member in problem.members if member.exiting}
    for item in problem.items:
        item_id, placed = item.item_id, desired[item.item_id]
        if len(placed) < item.replication:
            for reason in (WaitReason.NO_MEMBER, WaitReason.LIMIT):
                yield Blocked(
                    item_id=item_id, reason=reason, change=BlockedChange.ADD, detail="lacks"
                )
        elif len(placed) > 1 and zones_spanned(placed) == 1:
            yield Blocked(item_id=item_id, reason=WaitReason.ZONE, detail="flat")
        for member_id in placed:
            if member_id in exiting or member_id in item.avoided:
                yield Blocked(
                    item_id=item_id,
                    reason=WaitReason.NO_MEMBER,
                    change=BlockedChange.REMOVE,
                    member_id=member_id,
                    detail="kept",
                )


def _judged(problem: Problem, desired: Desired, judge: _Judge, blocked: Blocked) -> list[Verdict]:
    """What came of every move that could help, as mild as any replica has it; one verdict a member."""
    item_id, placed = blocked.item_id, desired[blocked.item_id]
    members = [member.member_id for member in problem.members]
    sources: tuple[MemberId | None, ...] = (blocked.member_id,)
    if blocked.reason is WaitReason.ZONE:
        sources = placed
        members = [each for each in members if each.zone != placed[0].zone]
    order = list(Verdict)
    return [
        max((judge.verdict(item_id, source, each) for source in sources), key=order.index)
        for each in members
        if each != blocked.member_id
    ]


def _refuse_causes_that_do_not_hold(problem: Problem, desired: Desired) -> Counter[Verdict]:
    """Try what every change waits for, and compare with the causes, and with what is said for people."""
    seen: Counter[Verdict] = Counter()
    finder, judge = CauseFinder(problem, desired), _Judge(problem, desired)
    blocked = tuple(_blocked(problem, desired))
    for each, explained in zip(blocked, finder.explained(blocked), strict=True):
        causes = finder.of_blocked(each)
        assert causes is not None
        assert causes == Counter(_judged(problem, desired, judge, each))
        for verdict, count in causes.items():
            assert f" {count} {verdict.value}" in explained.detail
        seen.update(causes)
    return seen


@settings(max_examples=200, deadline=None)
@given(problems(members_max=6, items_max=8, limit_max=6))
def test_every_reason_holds_and_no_move_betters_the_plan(problem: Problem) -> None:
    """The solver's own plan: each move is refused for what the objectives say, and none would be better."""
    seen = _refuse_what_does_not_hold(problem, FlowSolver().solve(problem))

    assert not seen[Verdict.BETTER]


@settings(max_examples=200, deadline=None)
@given(problems(members_max=6, items_max=8, limit_max=3))
@example(single_replica_among_drains())
def test_every_cause_of_what_the_plan_lacks_holds(problem: Problem) -> None:
    """Scarce room: replicas without a place, in one zone, on members that leave or where they fail. Each member is
    counted for what trying it there shows, and none would be better.
    """
    seen = _refuse_causes_that_do_not_hold(problem, FlowSolver().solve(problem))

    assert not seen[Verdict.BETTER]


@settings(max_examples=200, deadline=None)
@given(problems(members_max=6, items_max=8, limit_max=6))
def test_every_reason_holds_of_a_plan_for_other_ends(problem: Problem) -> None:
    """A plan that was made before members failed, for other objectives: better moves are called so, and only those."""
    objective = replace(
        problem.objective, moves_before_balance=not problem.objective.moves_before_balance
    )
    bare = tuple(replace(item, avoided=(), primary=None) for item in problem.items)
    desired = FlowSolver().solve(replace(problem, items=bare, objective=objective))

    _refuse_what_does_not_hold(problem, desired)
    _refuse_causes_that_do_not_hold(problem, desired)
