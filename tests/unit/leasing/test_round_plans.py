"""The plan of a round in each mode, without a store: which actions follow from what was seen."""

from __future__ import annotations

from random import Random

import pytest

from broadsheet.leases.worker.assignments import GivenHow, LeaseAssignment
from broadsheet.leases.worker.lease_view import LeaseView, WorkerView
from broadsheet.leases.worker.round_plan import (
    AllLeases,
    AskForLease,
    AssignedOnly,
    GivingBack,
    LeaseRoundPlan,
    OwnShare,
    ReleaseLease,
    RoundMode,
    TakeLease,
    TakenHow,
    plan_round,
)
from broadsheet.leases.worker.settings import StealWay, WorkerSettings

FREE = LeaseView(key="free", bound_for=None, held_by=None)
DUE = LeaseView(key="due", bound_for="me", held_by="me")
PROMISED = LeaseView(key="promised", bound_for="me", held_by="me", next_owner="me")


def _held(worker: str, *keys: str) -> list[LeaseView]:
    return [LeaseView(key=key, bound_for=worker, held_by=worker) for key in keys]


def _plan(
    *leases: LeaseView,
    mode: RoundMode,
    due: tuple[str, ...] = (),
    settings: WorkerSettings | None = None,
) -> LeaseRoundPlan:
    view = WorkerView(leases=leases, due=due, is_asking=False, memory={})
    return plan_round(view, settings or WorkerSettings(), mode, Random(0).random)


def test_worker_takes_what_is_due_before_what_is_free() -> None:
    """What others hold back for it comes first; of the free ones it takes no more than its share."""
    mode = OwnShare(me="me", left_alone=())

    plan = _plan(FREE, DUE, *_held("other", "x"), mode=mode, due=("due",))

    assert plan.actions == (
        TakeLease(key="due", how=TakenHow.DUE),
        TakeLease(key="free", how=TakenHow.FREE),
    )
    assert (plan.free_takes_max, plan.share, plan.at_once, plan.workers) == (1, 2, 1, None)


@pytest.mark.parametrize(
    ("way", "action"),
    [
        (StealWay.CLAIM, AskForLease(key="b", way=StealWay.CLAIM)),
        (StealWay.HAND_OFF, AskForLease(key="b", way=StealWay.HAND_OFF)),
        (StealWay.AT_ONCE, TakeLease(key="b", how=TakenHow.STOLEN)),
    ],
)
def test_worker_gets_what_it_lacks_in_the_way_that_is_set(
    way: StealWay, action: AskForLease | TakeLease
) -> None:
    """Of two that another holds, one."""
    mode = OwnShare(me="me", left_alone=())

    plan = _plan(*_held("other", "a", "b"), mode=mode, settings=WorkerSettings(steal=way))

    (planned,) = plan.actions
    assert type(planned) is type(action)
    assert planned.key in {"a", "b"}


def test_leases_that_failed_here_are_left_alone() -> None:
    """Neither taken nor counted, with a leader or without."""
    left_alone = {"free", "due"}

    own = _plan(FREE, DUE, mode=OwnShare(me="me", left_alone=left_alone), due=("due",))
    assigned = _plan(DUE, mode=AssignedOnly(left_alone=left_alone), due=("due",))

    assert own.actions == assigned.actions == ()


def test_led_worker_leaves_hand_offs_to_the_leader() -> None:
    """Also one that is due by its time: only the leader ends it, and a worker that stops gives back no such lease."""
    seen, due = (DUE, PROMISED), ("due", "promised")

    assert _plan(*seen, mode=AssignedOnly(left_alone=()), due=due).actions == (
        TakeLease(key="due", how=TakenHow.DUE),
    )
    assert _plan(*seen, mode=GivingBack(), due=due).actions == (ReleaseLease(key="due"),)
    assert len(_plan(*seen, mode=OwnShare(me="me", left_alone=()), due=due).actions) == 2


def test_leader_assigns_all_leases_at_once() -> None:
    """Its plan is of the same type; the share counts workers without a lease, and those that take for themselves."""
    leases = [FREE, *_held("outsider", "x", "y")]

    plan = _plan(*leases, mode=AllLeases(workers=("w1", "w2"), rebalances=False))

    assert plan.actions == (LeaseAssignment(key="free", worker="w1", how=GivenHow.FREE),)
    assert (plan.share, plan.workers) == (1, 3)
    assert plan.at_once == WorkerSettings().renewals_at_once


def test_leader_moves_leases_in_rebalancing_rounds_only() -> None:
    """And no more than the settings allow."""
    leases = _held("w1", "a", "b", "c", "d")
    settings = WorkerSettings(steals_max=1)

    still = _plan(*leases, mode=AllLeases(workers=("w1", "w2"), rebalances=False))
    moving = _plan(
        *leases, mode=AllLeases(workers=("w1", "w2"), rebalances=True), settings=settings
    )

    assert still.actions == ()
    (moved,) = moving.actions
    assert isinstance(moved, LeaseAssignment)
    assert (moved.worker, moved.how) == ("w2", GivenHow.HAND_OFF)
