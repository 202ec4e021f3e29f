"""The plan of a round: a worker's actions on the leases that it saw, whichever way leases are balanced.

    mode              whose round                                  what it plans
    OwnShare          every worker's, without a leader             take what is due and its share; ask for the rest
    AssignedOnly      every worker's, with a leader                take what is assigned to it
    GivingBack        a worker's that stops, with a leader         release what was assigned to it meanwhile
    AllLeases         the leader's                                 assign every lease to some worker

Pure: a plan follows from a view of a scan, the settings, the mode, and random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

from broadsheet.leases.worker.assignments import AssignmentLimits, LeaseAssignment, plan_assignments
from broadsheet.leases.worker.fair_share import ShareLimits, plan_shares
from broadsheet.leases.worker.lease_view import WorkerView
from broadsheet.leases.worker.settings import StealWay, WorkerSettings


class TakenHow(Enum):
    """Kind of a lease's acquisition by a worker."""

    FREE = "free"
    """It had no holder."""
    DUE = "due"
    """It was asked for or assigned, or was this worker's before it restarted."""
    STOLEN = "stolen"
    """From a holder that was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLease:
    """The worker acquires a lease, and processes it."""

    key: str
    how: TakenHow


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForLease:
    """The worker asks the holder of a lease for it."""

    key: str
    way: StealWay


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLease:
    """The worker lets go of a lease that it does not process."""

    key: str


LeaseAction: TypeAlias = TakeLease | AskForLease | LeaseAssignment | ReleaseLease


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRoundPlan:
    """The actions of one round."""

    actions: tuple[LeaseAction, ...] = ()
    """In the order in which they begin."""
    free_takes_max: int = 0
    """Most free leases that are taken; further ones are tried only in place of lost races."""
    at_once: int = 1
    """Actions under way at a time."""
    share: int | None = None
    """A worker's fair share, in leases; None: the mode has none."""
    workers: int | None = None
    """The workers that leases are assigned to; None: the mode assigns none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnShare:
    """A worker takes and asks for its share."""

    me: str
    left_alone: Collection[str]
    """Keys of leases that it does not take now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedOnly:
    """A worker takes what a leader assigned to it."""

    left_alone: Collection[str]
    """Keys of leases that it does not take now."""


@dataclass(frozen=True, slots=True)
class GivingBack:
    """A stopping worker releases what a leader assigned to it: otherwise it would idle for a lease's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllLeases:
    """A leader assigns all leases."""

    workers: Collection[str]
    """Those that live and take what they are given."""
    rebalances: bool
    """Whether living workers are asked for leases in this round."""


RoundMode: TypeAlias = OwnShare | AssignedOnly | GivingBack | AllLeases


def plan_round(
    view: WorkerView, settings: WorkerSettings, mode: RoundMode, dice: Callable[[], float]
) -> LeaseRoundPlan:
    """Plan a round.

    Args:
        view: What a scan showed: all leases; of `AssignedOnly` and `GivingBack`, only the worker's.
        settings: The worker's.
        mode: Whose round it is.
        dice: Returns numbers in [0, 1): so that workers differ in what they try first, and in what moves.
    """
    match mode:
        case OwnShare():
            return _own_share(view, settings, mode, dice)
        case AssignedOnly():
            keys = [key for key in _assigned(view) if key not in mode.left_alone]
            return LeaseRoundPlan(actions=tuple(_due(keys)))
        case GivingBack():
            return LeaseRoundPlan(actions=tuple(ReleaseLease(key=key) for key in _assigned(view)))
        case AllLeases():
            return _all_leases(view, settings, mode, dice)
        case _:
            assert_never(mode)


def _own_share(
    view: WorkerView, settings: WorkerSettings, mode: OwnShare, dice: Callable[[], float]
) -> LeaseRoundPlan:
    shares = plan_shares(
        [lease for lease in view.leases if lease.key not in mode.left_alone],
        me=mode.me,
        limits=ShareLimits(
            leases_max=settings.leases_max,
            steals_max=settings.steals_max,
            overdue_seconds=settings.overdue_seconds,
        ),
        dice=dice,
    )
    return LeaseRoundPlan(
        actions=(
            *_due([key for key in view.due if key not in mode.left_alone]),
            *(TakeLease(key=key, how=TakenHow.FREE) for key in shares.to_take),
            *(_steal(key, settings.steal) for key in shares.to_steal),
        ),
        free_takes_max=shares.take_max,
        share=shares.target,
    )


def _all_leases(
    view: WorkerView, settings: WorkerSettings, mode: AllLeases, dice: Callable[[], float]
) -> LeaseRoundPlan:
    holders = {lease.held_by for lease in view.leases if lease.held_by is not None}
    workers = len(holders.union(mode.workers))
    return LeaseRoundPlan(
        actions=plan_assignments(
            view.leases,
            workers=mode.workers,
            limits=AssignmentLimits(leases_max=settings.leases_max, moves_max=settings.steals_max),
            rebalances=mode.rebalances,
            dice=dice,
        ),
        at_once=settings.renewals_at_once,
        share=math.ceil(len(view.leases) / max(1, workers)),
        workers=workers,
    )


def _assigned(view: WorkerView) -> list[str]:
    """Return what is due to a led worker; it leaves a hand-off to the leader, even one that takes too long."""
    in_hand_off = {lease.key for lease in view.leases if lease.next_owner is not None}
    return [key for key in view.due if key not in in_hand_off]


def _due(keys: Collection[str]) -> tuple[TakeLease, ...]:
    return tuple(TakeLease(key=key, how=TakenHow.DUE) for key in keys)


def _steal(key: str, way: StealWay) -> LeaseAction:
    if way is StealWay.AT_ONCE:
        return TakeLease(key=key, how=TakenHow.STOLEN)
    return AskForLease(key=key, way=way)
