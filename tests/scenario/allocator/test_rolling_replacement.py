"""Every member replaced, one after another: each replica moves once, however the rollout goes about it.

The same rollouts as the benchmark's, smaller; its bound is the replicas that stood on replaced members.
"""

from __future__ import annotations

import pytest

from bench.allocator.rolling import AT_ONCE, DEFAULT, PATIENT, SETTLING, Rollout, moves_of
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import TransitionPolicy

ZONES = ("a", "b", "a", "b", "a")


def two_zones() -> Rollout:
    """Five members of limit 75 and a leader of limit 1, replaced by members of limit 61; 100 items of three."""
    return Rollout(
        items=100,
        replication=3,
        old=tuple(MemberId(zone, f"m{n}") for n, zone in enumerate(ZONES)),
        new=tuple(MemberId(zone, f"m{n}") for n, zone in enumerate(ZONES, 5)),
        limit_old=75,
        limit_new=61,
        leader=MemberId("a", "leader"),
    )


def three_zones() -> Rollout:
    """Six members in three zones, ample room; 40 items of three."""
    zones = ("a", "b", "c") * 2
    return Rollout(
        items=40,
        replication=3,
        old=tuple(MemberId(zone, f"m{n}") for n, zone in enumerate(zones)),
        new=tuple(MemberId(zone, f"m{n}") for n, zone in enumerate(zones, 6)),
        limit_old=100,
        limit_new=100,
    )


@pytest.mark.parametrize("rollout", [two_zones(), three_zones()], ids=["two-zones", "three-zones"])
@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        ("up-first", DEFAULT),
        ("up-first", SETTLING),
        ("up-first", PATIENT),
        ("down-first", PATIENT),
    ],
    ids=["up-first-default", "up-first-settling", "up-first-patient", "down-first-patient"],
)
def test_rollout_that_is_given_time_moves_each_replica_once(
    rollout: Rollout, mode: str, policy: TransitionPolicy
) -> None:
    """Balance waits for the cluster to settle, and drains go to the newcomer: within 5 % of the joint bound.

    Safety is judged after every step by the cluster, and in the end all is placed in two zones and the old are gone.
    """
    moves, bound = moves_of(rollout, mode, policy, FlowSolver())

    assert bound <= moves <= 1.05 * bound


@pytest.mark.parametrize("mode", ["up-first", "down-first"])
def test_rollout_a_step_at_a_time_moves_no_replica_more_than_twice(mode: str) -> None:
    """Where nothing waits each step is taken alone, and balanced: the price is bounded, and safety is the same."""
    moves, bound = moves_of(two_zones(), mode, AT_ONCE, FlowSolver())

    assert bound <= moves <= 1.84 * bound
