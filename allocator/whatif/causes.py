"""Causes found by trial: a replica is tried on every member that it is kept from, and the verdicts are counted.

A leader's own decisions do not need causes. Thousands of changes may wait in a cluster at once, so trials are bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Desired, Problem
from broadsheet.allocator.placement.trial import Trial, Verdict
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, WaitReason

TRIALS_MAX = 100_000
"""Trials for one answer, about half a second: 1,000 changes that wait in a cluster of 100 members."""

NOT_TRIED = "`explain` tells the cause"
"""The text for changes beyond that bound; an explanation is for one item, and tries all of its changes."""

Causes = Mapping[Verdict, int]
"""How many members each verdict keeps a replica from."""

_MILDNESS = {verdict: rank for rank, verdict in enumerate(Verdict)}


def told(causes: Causes) -> str:
    """Return causes for people."""
    return (
        ", ".join(f"{causes[each]} {each.value}" for each in Verdict if causes.get(each))
        or "there are none"
    )


class _Whom(Enum):
    """The members on which a replica is tried; the value is for people."""

    ALL = "members"
    OTHERS = "other members"
    OTHER_ZONES = "members of other zones"


@dataclass(frozen=True, slots=True)
class _Question:
    """Moves to try: for each target, the mildest verdict from any source counts."""

    item_id: ItemId
    sources: tuple[MemberId | None, ...]
    """Planned replicas that might move; None: one more."""
    whom: _Whom


class CauseFinder:
    """Finds causes in a plan and in the problem that it answers."""

    def __init__(self, problem: Problem, planned: Desired, *, trials_max: int = TRIALS_MAX) -> None:
        """Prepare trials.

        Args:
            problem: The problem that the plan should answer now.
            planned: The plan. It may be older than the problem: members that are gone since do not count.
            trials_max: The approximate number of trials that `explained` makes.
        """
        members = {member.member_id for member in problem.members}
        self._members = tuple(member.member_id for member in problem.members)
        self._problem = problem
        self._planned = {
            item.item_id: tuple(m for m in planned.get(item.item_id, ()) if m in members)
            for item in problem.items
        }
        self._trials_left = trials_max
        self._answers: dict[_Question, str] = {}

    def planned(self, item_id: ItemId) -> tuple[MemberId, ...]:
        """Return the existing members that should hold an item."""
        return self._planned.get(item_id, ())

    def verdict(self, item_id: ItemId, source: MemberId | None, target: MemberId) -> Verdict:
        """Return the first objective that a move of a replica, or one more replica, would worsen; see
        `Trial.verdict`.
        """
        return self._trial.verdict(item_id, source, target)

    def of_replica(self, item_id: ItemId, member_id: MemberId) -> Causes:
        """Return the causes that keep a planned replica from every other member."""
        return self._causes(_Question(item_id, (member_id,), _Whom.OTHERS))

    def of_blocked(self, blocked: Blocked) -> Causes | None:
        """Return why the plan itself is not better; None for a change that waits for another reason."""
        question = self._question(blocked)
        return None if question is None else self._causes(question)

    def explained(self, blocked: Iterable[Blocked]) -> tuple[Blocked, ...]:
        """Return waiting changes, with their causes added where the plan itself is not better."""
        return tuple(self._explained(each) for each in blocked)

    @cached_property
    def _trial(self) -> Trial:
        # A complete plan needs no causes.
        return Trial(self._problem, self._planned)

    def _explained(self, blocked: Blocked) -> Blocked:
        question = self._question(blocked)
        return (
            replace(blocked, detail=f"{blocked.detail}; {self._answer(question)}")
            if question is not None
            else blocked
        )

    def _answer(self, question: _Question) -> str:
        # A dry run asks most questions twice: at its beginning and at its end.
        if question in self._answers:
            return self._answers[question]
        if self._trials_left <= 0:
            return NOT_TRIED
        self._trials_left -= len(question.sources) * len(self._members)
        answer = f"{question.whom.value}: {told(self._causes(question))}"
        self._answers[question] = answer
        return answer

    def _question(self, blocked: Blocked) -> _Question | None:
        item_id, source = blocked.item_id, blocked.member_id
        planned = self.planned(item_id)
        match blocked.reason, blocked.change:
            case WaitReason.NO_MEMBER, BlockedChange.REMOVE if source in planned:
                return _Question(item_id, (source,), _Whom.OTHERS)
            case WaitReason.NO_MEMBER | WaitReason.LIMIT, BlockedChange.ADD if source is None:
                return _Question(item_id, (None,), _Whom.ALL)
            case WaitReason.ZONE, None if planned:
                return _Question(item_id, planned, _Whom.OTHER_ZONES)
        return None

    def _causes(self, question: _Question) -> Causes:
        item_id, sources = question.item_id, question.sources
        return Counter(
            max(
                (self._trial.verdict(item_id, source, target) for source in sources),
                key=_MILDNESS.__getitem__,
            )
            for target in self._targets(question)
        )

    def _targets(self, question: _Question) -> Iterator[MemberId]:
        zones: set[str] = set()
        if question.whom is _Whom.OTHER_ZONES:
            zones = {each.zone for each in question.sources if each is not None}
        for member_id in self._members:
            is_other = question.whom is _Whom.ALL or member_id not in question.sources
            if is_other and member_id.zone not in zones:
                yield member_id
