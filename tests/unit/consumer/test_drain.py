"""When a leaving process gives up on handing over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broadsheet.allocator.model import Assignment, Member
from broadsheet.consumer.member.drain import Drain, DrainBounds, DrainVerdict
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.key_space_values import assignment, member, member_id

BOUNDS = DrainBounds(total_seconds=100.0, alone_seconds=5.0, covered_seconds=20.0)
OURS = assignment("shard-1", "here", 0, code=ReplicaStatus.PRIMARY)
STANDBY = assignment("shard-1", "there", 1, code=ReplicaStatus.STANDBY)
BEHIND = assignment("shard-1", "there", 1, code=ReplicaStatus.BACKFILL)
STAYING = (member("here", exiting=True), member("there"))
CORDONED = (member("here", exiting=True), member("there", cordoned=True))
ALL_LEAVING = (member("here", exiting=True), member("there", exiting=True))


def look(
    drain: Drain, at: float, members: tuple[Member, ...], *replicas: Assignment
) -> DrainVerdict:
    """Judge at `at` seconds from the beginning."""
    return drain.look(
        {one.member_id: one for one in members},
        replicas,
        leaving=member_id("here"),
        now_monotonic_seconds=at,
    )


@pytest.mark.parametrize(
    ("at", "members", "replicas", "verdict"),
    [
        pytest.param(99.0, STAYING, (OURS,), DrainVerdict.WAIT, id="others-may-take-it"),
        pytest.param(100.0, STAYING, (OURS,), DrainVerdict.GIVE_UP_LATE, id="they-did-not"),
        pytest.param(4.9, ALL_LEAVING, (OURS,), DrainVerdict.WAIT, id="someone-may-join"),
        pytest.param(5.0, ALL_LEAVING, (OURS,), DrainVerdict.GIVE_UP_ALONE, id="all-leave"),
        pytest.param(19.0, STAYING, (OURS, STANDBY), DrainVerdict.WAIT, id="room-may-come"),
        pytest.param(20.0, STAYING, (OURS, STANDBY), DrainVerdict.GIVE_UP_COVERED, id="covered"),
        pytest.param(20.0, STAYING, (OURS, BEHIND), DrainVerdict.WAIT, id="standby-not-ready"),
        pytest.param(5.0, CORDONED, (OURS,), DrainVerdict.GIVE_UP_ALONE, id="others-take-nothing"),
        pytest.param(19.0, CORDONED, (OURS, STANDBY), DrainVerdict.WAIT, id="standby-takes-over"),
    ],
)
def test_drain_bounds_count_from_the_beginning(
    at: float,
    members: tuple[Member, ...],
    replicas: tuple[Assignment, ...],
    verdict: DrainVerdict,
) -> None:
    """Each state of the cluster has its own bound; a state that lasts from the start counts from the start."""
    drain = Drain(BOUNDS, began_monotonic_seconds=0.0)
    # Looked at along the way, as the service does.
    for second in range(int(at)):
        look(drain, float(second), members, *replicas)

    assert look(drain, at, members, *replicas) is verdict


def test_drain_alone_counts_from_when_the_last_other_left() -> None:
    """A member that stayed for a while gave hope; the short bound begins when it is gone."""
    drain = Drain(BOUNDS, began_monotonic_seconds=0.0)

    assert look(drain, 50.0, STAYING, OURS) is DrainVerdict.WAIT
    assert look(drain, 54.0, ALL_LEAVING, OURS) is DrainVerdict.WAIT
    assert look(drain, 55.0, ALL_LEAVING, OURS) is DrainVerdict.GIVE_UP_ALONE


def test_drain_covered_starts_over_when_a_standby_falls_behind() -> None:
    """Only a cover that lasts makes leaving harmless."""
    drain = Drain(BOUNDS, began_monotonic_seconds=0.0)

    look(drain, 19.0, STAYING, OURS, BEHIND)

    assert look(drain, 38.0, STAYING, OURS, STANDBY) is DrainVerdict.WAIT
    assert look(drain, 39.0, STAYING, OURS, STANDBY) is DrainVerdict.GIVE_UP_COVERED


@pytest.mark.parametrize(
    ("zero", "members", "replicas", "verdict"),
    [
        pytest.param("alone_seconds", STAYING, (OURS,), DrainVerdict.WAIT, id="alone-but-is-not"),
        pytest.param(
            "alone_seconds", ALL_LEAVING, (OURS,), DrainVerdict.GIVE_UP_ALONE, id="alone-and-is"
        ),
        pytest.param("covered_seconds", STAYING, (OURS,), DrainVerdict.WAIT, id="not-covered"),
        pytest.param(
            "covered_seconds", STAYING, (OURS, BEHIND), DrainVerdict.WAIT, id="standby-behind"
        ),
        pytest.param(
            "covered_seconds",
            STAYING,
            (OURS, STANDBY),
            DrainVerdict.GIVE_UP_COVERED,
            id="covered-and-is",
        ),
        pytest.param("total_seconds", STAYING, (OURS,), DrainVerdict.GIVE_UP_LATE, id="in-total"),
    ],
)
def test_drain_bound_of_zero_ends_its_own_state_only(
    zero: str,
    members: tuple[Member, ...],
    replicas: tuple[Assignment, ...],
    verdict: DrainVerdict,
) -> None:
    """A bound of 0 means not to wait in that state. `shardctl dev` passes it for "alone": with another member staying,
    the shards must still be handed over, and nobody may read that no member stays.
    """
    drain = Drain(replace(BOUNDS, **{zero: 0.0}), began_monotonic_seconds=0.0)

    assert look(drain, 0.2, members, *replicas) is verdict
