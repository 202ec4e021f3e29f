"""When a process counts as cut off from its brokers, who may take its shards, and how often."""

from __future__ import annotations

import pytest

from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.member.availability import Reach, Reachability, TakeOverPace, take_over_of
from broadsheet.wire.shard_pb2 import ReplicaStatus

BOUND = 3.0
CUT, WELL, THIRD = (MemberId("zone-a", name) for name in ("cut", "well", "third"))


def _unanswered(machine: Reachability, *times: float, cause: str = "no answer") -> None:
    """Questions each given up after a second."""
    for time in times:
        machine.on_failure(cause, asked=time - 1.0, now=time)


@pytest.mark.parametrize(
    ("given_up_at", "reach"),
    [
        ((1.0,), Reach.DOUBTFUL),
        ((1.0, 2.0, 2.9), Reach.DOUBTFUL),
        ((1.0, 2.0, 3.0), Reach.UNAVAILABLE),
        # A process that stood still for a minute finds one question overdue, and cannot tell why.
        ((60.0,), Reach.DOUBTFUL),
        ((60.0, 61.0), Reach.DOUBTFUL),
        ((60.0, 61.0, 62.0), Reach.UNAVAILABLE),
    ],
)
def test_brokers_are_out_of_reach_after_the_bound_and_some_questions(
    given_up_at: tuple[float, ...], reach: Reach
) -> None:
    """Neither time alone nor one lost answer is proof; both together are."""
    machine = Reachability(unavailable_seconds=BOUND)

    _unanswered(machine, *given_up_at)

    assert machine.reach is reach


def test_cause_is_that_of_the_moment_in_which_reach_was_lost_and_an_answer_ends_it() -> None:
    """What is written to etcd must not change with every question; and any answer means that there is somebody."""
    machine = Reachability(unavailable_seconds=BOUND)
    _unanswered(machine, 1.0, 2.0, 3.0, cause="silent")
    _unanswered(machine, 4.0, cause="refused")

    assert (machine.reach, machine.cause) == (Reach.UNAVAILABLE, "silent")

    machine.on_answer()

    assert (machine.reach, machine.cause) == (Reach.REACHABLE, "")
    _unanswered(machine, 5.0, 6.0)
    assert machine.reach is Reach.DOUBTFUL, "it counts again"


def test_silent_connection_is_given_up_rarely() -> None:
    """Each renewal fails what is under way, so a broker that is merely slow must not see one every second."""
    machine = Reachability(unavailable_seconds=BOUND)
    renewed = []
    for second in range(1, 60):
        _unanswered(machine, float(second))
        if machine.takes_renewal(now=float(second)):
            renewed.append(second)

    assert renewed == [3, 6, 12, 24, 48]


def test_reach_is_calm_once_all_questions_were_answered_for_a_while() -> None:
    """A broker that was dead for everybody comes back to each process at another moment."""
    machine = Reachability(unavailable_seconds=BOUND)
    assert machine.is_calm(now=0.0)

    _unanswered(machine, 1.0)
    machine.on_answer()

    assert not machine.is_calm(now=2.9)
    assert machine.is_calm(now=3.0)


def _replica(member_id: MemberId, slot: int, code: int, *, unavailable: str = "") -> Assignment:
    key = f"/root/assign/s#{member_id.zone}#{member_id.suffix}#{slot}".encode()
    status = ReplicaStatus(code=code, unavailable=unavailable)  # type: ignore[arg-type]  # An enum's value.
    return Assignment(
        item_id=ItemId("s"),
        member_id=member_id,
        slot=slot,
        value=status,
        kv=KeyValue(key=key, value=b"", create_revision=1, mod_revision=1, version=1, lease=7),
    )


@pytest.mark.parametrize(
    ("replicas", "taken"),
    [
        pytest.param(
            [
                _replica(CUT, 0, ReplicaStatus.PRIMARY, unavailable="x"),
                _replica(WELL, 1, ReplicaStatus.STANDBY),
            ],
            True,
            id="ready-standby",
        ),
        pytest.param(
            [
                _replica(CUT, 0, ReplicaStatus.PRIMARY),
                _replica(WELL, 1, ReplicaStatus.STANDBY),
            ],
            False,
            id="available-primary",
        ),
        pytest.param(
            [
                _replica(CUT, 0, ReplicaStatus.PRIMARY, unavailable="x"),
                _replica(WELL, 1, ReplicaStatus.BACKFILL),
            ],
            False,
            id="standby-that-catches-up",
        ),
        pytest.param(
            [
                _replica(CUT, 0, ReplicaStatus.PRIMARY, unavailable="x"),
                _replica(THIRD, 1, ReplicaStatus.STANDBY),
            ],
            False,
            id="standby-of-another",
        ),
        pytest.param([_replica(WELL, 1, ReplicaStatus.STANDBY)], False, id="no-primary"),
        pytest.param(
            [_replica(WELL, 0, ReplicaStatus.PRIMARY, unavailable="x")], False, id="itself"
        ),
    ],
)
def test_only_a_ready_standby_takes_the_shard_of_an_unavailable_primary(
    replicas: list[Assignment], taken: bool
) -> None:
    """One that would have to catch up from brokers is no gain, and nobody takes what serves."""
    assert (take_over_of(replicas, WELL) is not None) is taken


def test_takings_of_one_shard_become_rarer_until_it_is_calm() -> None:
    """A connection that comes and goes every few seconds must not carry the shard to and fro as often."""
    pace: TakeOverPace[str] = TakeOverPace(first_seconds=10, seconds_max=40, calm_seconds=100)
    assert pace.wait_seconds("s", now=0.0) == 0.0
    waits = []
    now = 0.0
    for _ in range(4):
        pace.on_taken("s", now=now)
        waits.append(pace.wait_seconds("s", now=now))
        now += waits[-1]

    assert waits == [10, 20, 40, 40]
    assert pace.wait_seconds("other", now=now) == 0.0
    assert pace.wait_seconds("s", now=now + 100) == 0.0
    pace.on_taken("s", now=now + 100)
    assert pace.wait_seconds("s", now=now + 100) == 10
