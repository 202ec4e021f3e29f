"""The decisions of a leader's round, each branch as a row: what to look at, what to remember, when to look again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broadsheet.allocator.leader.decision import Decision
from broadsheet.allocator.leader.round_plan import (
    REST_SECONDS_MAX,
    Ending,
    RoundFacts,
    RoundPlan,
    RoundResult,
    Scope,
    conclude_round,
    ending_of,
    plan_round,
)
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.plan import Plan, PlanRefused
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, WaitReason
from broadsheet.allocator.transition.converge import Convergence
from tests.support.memory_cluster import MemoryCluster

OPEN, WAITING, OTHER = (ItemId(name) for name in ("open", "waiting", "other"))
MEMBER = MemberId("a", "a1")
STARTED = 1000.0

AT_REST = RoundFacts(
    now_monotonic_seconds=STARTED,
    audited_monotonic_seconds=STARTED - 10.0,
    audit_seconds=300.0,
    plan_version=7,
    answered_version=7,
    open_items=frozenset(),
    waiting_items=frozenset({WAITING}),
    is_crowded=False,
    has_move_budget=False,
    hand_overs_allowed=0,
)
"""Nothing changed since the last round, and one item waits for its own replicas."""
ONE_OPEN = replace(AT_REST, open_items=frozenset({OPEN}))
ONE = frozenset({OPEN})
BOTH = frozenset({OPEN, WAITING})


def plan(
    scope: Scope,
    items: frozenset[ItemId] = frozenset(),
    *,
    hand_overs: int = 0,
    sees_all: bool = False,
    version: int = 7,
) -> RoundPlan:
    """What a round should look at."""
    return RoundPlan(
        scope=scope,
        items=items,
        hand_overs=hand_overs,
        sees_all_pending=sees_all,
        plan_version=version,
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(AT_REST, plan(Scope.NOTHING), id="at-rest"),
        pytest.param(replace(AT_REST, is_crowded=True), plan(Scope.NOTHING), id="at-rest-crowded"),
        pytest.param(ONE_OPEN, plan(Scope.OPEN_ITEMS, ONE), id="open"),
        pytest.param(
            replace(ONE_OPEN, is_crowded=True),
            plan(Scope.OPEN_ITEMS, BOTH, sees_all=True),
            id="open-crowded",
        ),
        pytest.param(
            replace(ONE_OPEN, has_move_budget=True),
            plan(Scope.OPEN_ITEMS, BOTH, sees_all=True),
            id="open-budget",
        ),
        pytest.param(
            replace(AT_REST, plan_version=8), plan(Scope.EVERYTHING, version=8), id="new-version"
        ),
        pytest.param(
            replace(ONE_OPEN, plan_version=8),
            plan(Scope.EVERYTHING, ONE, version=8),
            id="new-version-open",
        ),
        pytest.param(
            replace(AT_REST, answered_version=-1), plan(Scope.EVERYTHING), id="no-plan-yet"
        ),
        pytest.param(
            replace(AT_REST, audited_monotonic_seconds=STARTED - 299.9),
            plan(Scope.NOTHING),
            id="audit-soon",
        ),
        pytest.param(
            replace(AT_REST, audited_monotonic_seconds=STARTED - 300.0),
            plan(Scope.EVERYTHING),
            id="audit-due",
        ),
        pytest.param(
            replace(AT_REST, hand_overs_allowed=2),
            plan(Scope.EVERYTHING, hand_overs=2),
            id="hand-overs",
        ),
        pytest.param(
            replace(ONE_OPEN, hand_overs_allowed=2),
            plan(Scope.OPEN_ITEMS, ONE),
            id="hand-overs-wait-for-open-items",
        ),
        pytest.param(
            replace(AT_REST, hand_overs_allowed=2, has_move_budget=True),
            plan(Scope.EVERYTHING, frozenset({WAITING}), hand_overs=2, sees_all=True),
            id="hand-overs-budget",
        ),
    ],
)
def test_round_looks_at_no_more_than_it_must(facts: RoundFacts, expected: RoundPlan) -> None:
    """Everything is looked at for a new plan, an audit or a hand-over; else the open items; else nothing. A round that
    looks at too little leaves an item where it is; one that looks at too much makes a status write cost a whole scan.
    """
    assert plan_round(facts) == expected


def decision(*blocked: Blocked, refused: PlanRefused | None = None) -> Decision:
    """A decision that leaves one item open and has another one wait."""
    state = MemoryCluster().state()
    return Decision(
        state=state,
        plan=Plan(state.demand(), {OPEN: (MEMBER,)}),
        convergence=Convergence(steps=(), blocked=blocked),
        open=frozenset({OPEN}),
        waiting=frozenset({OTHER}),
        refused=refused,
    )


FULL = Blocked(item_id=OPEN, reason=WaitReason.LIMIT, change=BlockedChange.ADD, member_id=MEMBER)
REFUSED = PlanRefused(error=ValueError("defective"))
CROWDED_BEFORE = replace(ONE_OPEN, is_crowded=True)


def result(
    *,
    open_items: frozenset[ItemId] = ONE,
    removed: frozenset[ItemId] | None,
    added: frozenset[ItemId] = frozenset({OTHER}),
    crowded: bool = False,
    audited: float = STARTED - 10.0,
    adopts: bool = False,
) -> RoundResult:
    """What should be remembered of a decision that took a quarter of a second."""
    return RoundResult(
        open_items=open_items,
        waiting_removed=removed,
        waiting_added=added,
        is_crowded=crowded,
        audited_monotonic_seconds=audited,
        rests_until_monotonic_seconds=STARTED + 0.5,
        adopts_plan=adopts,
    )


@pytest.mark.parametrize(
    ("planned", "facts", "decided", "expected"),
    [
        pytest.param(
            plan(Scope.OPEN_ITEMS, ONE), ONE_OPEN, decision(), result(removed=ONE), id="part"
        ),
        pytest.param(
            plan(Scope.OPEN_ITEMS, ONE),
            ONE_OPEN,
            decision(FULL),
            result(removed=ONE, crowded=True),
            id="part-becomes-crowded",
        ),
        pytest.param(
            plan(Scope.OPEN_ITEMS, BOTH, sees_all=True),
            CROWDED_BEFORE,
            decision(),
            result(removed=BOTH),
            id="part-no-longer-crowded",
        ),
        pytest.param(
            plan(Scope.EVERYTHING, ONE),
            ONE_OPEN,
            decision(),
            result(removed=None, audited=STARTED, adopts=True),
            id="everything",
        ),
        pytest.param(
            plan(Scope.EVERYTHING, ONE),
            ONE_OPEN,
            decision(refused=REFUSED),
            result(removed=None, audited=STARTED),
            id="everything-plan-kept",
        ),
        pytest.param(
            plan(Scope.EVERYTHING, BOTH, sees_all=True),
            CROWDED_BEFORE,
            REFUSED,
            result(open_items=BOTH, removed=frozenset(), added=frozenset(), crowded=True),
            id="no-plan",
        ),
    ],
)
def test_round_remembers_what_was_found_and_only_that(
    planned: RoundPlan, facts: RoundFacts, decided: Decision | PlanRefused, expected: RoundResult
) -> None:
    """A whole look replaces what was known and counts as the audit, a partial one adds to it, and a failed one loses
    nothing: what was taken to be looked at is open again.
    """
    found = conclude_round(planned, facts, decided, decided_monotonic_seconds=STARTED + 0.25)
    assert found == expected


@pytest.mark.parametrize(
    ("seconds", "rest_seconds"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0), (30.0, REST_SECONDS_MAX)]
)
def test_round_rests_as_long_as_it_worked_within_a_bound(
    seconds: float, rest_seconds: float
) -> None:
    """A leader of a busy cluster is busy half of the time at most, and a long solve does not put off what waits."""
    for decided in (decision(), REFUSED):
        ended = STARTED + seconds
        found = conclude_round(
            plan(Scope.EVERYTHING), AT_REST, decided, decided_monotonic_seconds=ended
        )
        assert found.rests_until_monotonic_seconds == ended + rest_seconds


@pytest.mark.parametrize(
    ("decided", "answered", "right_lost", "ending"),
    [
        (decision(), True, False, Ending.DONE),
        (decision(), True, True, Ending.RIGHT_LOST),
        (decision(), False, False, Ending.UNANSWERED),
        (decision(refused=REFUSED), True, False, Ending.PLAN_KEPT),
        (decision(refused=REFUSED), True, True, Ending.RIGHT_LOST),
        (decision(refused=REFUSED), False, False, Ending.UNANSWERED),
        (REFUSED, True, False, Ending.NO_PLAN),
    ],
)
def test_round_ends_by_the_gravest_thing_that_happened(
    decided: Decision | PlanRefused, answered: bool, right_lost: bool, ending: Ending
) -> None:
    """A step that may still be on its way outweighs everything, because nothing may be decided before it is fenced."""
    assert ending_of(decided, answered=answered, right_lost=right_lost) is ending


@pytest.mark.parametrize(
    ("ending", "waits_for_deadline", "retries"),
    [
        (Ending.AT_REST, True, False),
        (Ending.DONE, True, False),
        (Ending.PLAN_KEPT, True, True),
        (Ending.RIGHT_LOST, True, True),
        (Ending.NO_PLAN, False, True),
        (Ending.UNANSWERED, False, True),
    ],
)
def test_round_that_failed_is_tried_again_by_itself(
    ending: Ending, waits_for_deadline: bool, retries: bool
) -> None:
    """A failure is retried on a timer of its own. Without one, a leader would stand still until something unrelated
    changes; after a success, it would spin.
    """
    assert (ending.waits_for_deadline, ending.retries) == (waits_for_deadline, retries)
