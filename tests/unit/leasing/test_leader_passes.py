"""A leader's passes, elections and resignations, on a clock that stands still.

Origins, where a test names one, are in awslabs/amazon-kinesis-client, package `coordinator.assignment`; rewritten.
"""

from __future__ import annotations

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError, InvalidStateError
from broadsheet.leases.position import SHARD_END, Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.store import ForeignLeader
from broadsheet.leases.worker.leader.lock import LEADER_KEY, worker_key
from tests.support.leading import LeadWorker, LeadWorld

PASS = 20.0
D = 10.0
ASKING = 40.0
BEGUN = Position("TRIM_HORIZON")


def _lease(key: str, owner: str | None = None) -> LeaseRecord:
    return LeaseRecord(key=key, owner=owner, epoch=1 if owner else 0, checkpoint=BEGUN)


async def _fleet(world: LeadWorld, *names: str) -> list[LeadWorker]:
    """Return workers that are there; the first leads after its first pass."""
    workers = [world.worker(name) for name in names]
    for worker in workers:
        await worker.presence.beat()
    return workers


def _leads(worker: LeadWorker) -> bool:
    return worker.leadership.leads


async def _pass_later(
    world: LeadWorld, leader: LeadWorker, *living: LeadWorker, seconds: float = PASS
) -> None:
    """Let time go by in which some workers live, and their leases move; then make a pass."""
    world.clock.now_seconds += seconds
    await leader.leadership.keep()
    for worker in living:
        await worker.presence.beat()
        for key in world.leases.readable():
            if world.record(key).holder == worker.name:
                world.put(rules.renew(world.record(key)))
    await leader.leadership.step()


async def test_only_who_leads_assigns() -> None:
    """LeaseAssignmentManagerTest.performAssignment_withLeaderSwitchOver_assertAssignmentOnlyAfterBeingLeader."""
    world = LeadWorld()
    w1, w2 = await _fleet(world, "w1", "w2")
    await w1.lock.contend()
    world.put(_lease("a"))
    world.put(_lease("b", "dead"))

    await w2.leadership.step()
    assert not _leads(w2)
    assert world.record("a").owner is None
    await w1.lock.step_down()
    await _pass_later(world, w2, w1, w2)
    assert _leads(w2)
    assert world.record("a").owner in {"w1", "w2"}
    assert world.record("b").owner == "dead"  # Seen first by this leader: it may live.
    await _pass_later(world, w2, w1, w2)
    assert world.record("b").owner in {"w1", "w2"}
    assert world.record("b").epoch == 2


async def test_leases_in_hand_off_are_forced_after_their_time_and_not_before() -> None:
    """LeaseAssignmentManagerTest.performAssignment_testAssignmentHandlingForDifferentPendingCheckpointStatesLeases.

    One that moves is left to its holder until graceful_seconds and a lease's length are over; one that its holder let
    go is left to its next owner; a finished one is nobody's concern.
    """
    world = LeadWorld()
    w1, w2 = await _fleet(world, "w1", "w2")
    world.put(rules.begin_hand_off(_lease("slow", "w1"), "w2"))
    world.put(_lease("done", "w2"))
    world.put(LeaseRecord(key="end", checkpoint=Position(SHARD_END)))

    for _ in range(3):
        await _pass_later(world, w1, w1, w2)
        assert world.record("slow").handoff_from == "w1"
    await _pass_later(world, w1, w1, w2)

    assert world.record("slow").holder == "w2"
    assert world.record("slow").epoch == 2
    assert world.record("done").epoch == 1
    assert world.record("end").owner is None
    assert w1.shown("leases_assigned_total", how="forced") == 1


async def test_expired_lease_in_hand_off_is_assigned_before_its_time_is_over() -> None:
    """LeaseAssignmentManagerTest.performAssignment_expiredLeasesButPendingCheckpointNotExpiredLease_validateItIsAssigned."""
    world = LeadWorld()
    (w1,) = await _fleet(world, "w1")
    world.put(rules.begin_hand_off(_lease("a", "dead"), "dead too"))

    await w1.leadership.step()
    await _pass_later(world, w1, w1, seconds=D + 0.1)

    assert world.record("a").holder == "w1"
    assert world.record("a").handoff_from is None


async def test_leader_steps_down_after_three_failed_passes_and_another_goes_on() -> None:
    """LeaseAssignmentManagerTest.performAssignment_continuousFailure_assertLeadershipRelease."""
    world = LeadWorld()
    w1, w2 = await _fleet(world, "w1", "w2")
    await w1.leadership.step()
    w1.leases.is_silent = True
    world.put(_lease("a"))

    for failed in range(3):
        assert _leads(w1), failed
        with pytest.raises(DependencyError):
            await w1.leadership.step()
    assert not _leads(w1)
    assert not await w1.leadership.step()
    assert not _leads(w1)  # It stands back.
    await w2.leadership.step()

    assert _leads(w2)
    assert world.record("a").owner in {"w1", "w2"}
    assert (w1.shown("lease_leader"), w2.shown("lease_leader")) == (0, 1)


async def test_failures_that_are_not_in_a_row_are_forgiven() -> None:
    """A pass that succeeds begins the count again."""
    world = LeadWorld()
    (w1,) = await _fleet(world, "w1")
    for _ in range(3):
        w1.leases.is_silent = True
        for _ in range(2):
            with pytest.raises(DependencyError):
                await w1.leadership.step()
        w1.leases.is_silent = False
        await w1.leadership.step()

    assert _leads(w1)


async def test_worker_without_a_lease_is_found_and_one_that_left_is_not() -> None:
    """Only rows tell: neither has a lease. Who is gone for long is forgotten, rows and all."""
    world = LeadWorld()
    w1, w2, w3 = await _fleet(world, "w1", "w2", "w3")
    await w2.presence.leave()
    for key in ("a", "b", "c", "d"):
        world.put(_lease(key))

    await w1.leadership.step()
    assert {world.record(key).owner for key in "abcd"} == {"w1", "w3"}
    assert world.fleet.readable() == [LEADER_KEY, worker_key("w1"), worker_key("w3")]
    for _ in range(8):
        await _pass_later(world, w1, w1)
    assert {world.record(key).owner for key in "abcd"} == {"w1"}
    assert world.fleet.readable() == [LEADER_KEY, worker_key("w1")]
    await w3.presence.beat()
    assert worker_key("w3") in world.fleet.readable()


async def test_living_workers_are_asked_in_every_third_pass() -> None:
    """By a hand-off: the lease stays with its holder until it lets go."""
    world = LeadWorld()
    w1, w2 = await _fleet(world, "w1", "w2")
    for key in ("a", "b"):
        world.put(_lease(key, "w1"))

    for _ in range(2):
        await _pass_later(world, w1, w1, w2)
        assert {world.record(key).owner for key in "ab"} == {"w1"}
    await _pass_later(world, w1, w1, w2)

    (moving,) = [key for key in "ab" if world.record(key).owner == "w2"]
    assert world.record(moving).holder == "w1"
    assert world.record(moving).epoch == 1


async def test_lease_that_moved_since_it_was_seen_is_not_taken_from_its_holder() -> None:
    """The leader paused between its look and its write; meanwhile the worker that it took for dead came back."""
    world = LeadWorld()
    (w1,) = await _fleet(world, "w1")
    world.put(_lease("a", "slow"))
    await w1.leadership.step()
    world.clock.now_seconds += PASS
    await w1.presence.beat()
    w1.leases.after_scan = lambda: world.put(rules.renew(world.record("a")))

    await w1.leadership.step()

    assert world.record("a").holder == "slow"
    w1.leases.after_scan = None
    await _pass_later(world, w1, w1)
    await _pass_later(world, w1, w1)
    assert world.record("a").holder == "w1"


async def test_leader_is_one_at_a_time_and_outlives_no_pause() -> None:
    """A row that does not move for 120 s is taken; its owner has stopped before, by its own clock."""
    world = LeadWorld()
    w1, w2 = await _fleet(world, "w1", "w2")
    assert await w1.lock.contend()
    assert not await w2.lock.contend()
    world.clock.now_seconds += 60
    await w1.lock.renew()
    world.clock.now_seconds += 90
    assert not await w2.lock.contend()  # It moved since w2's first look.
    world.clock.now_seconds += 30.1
    assert not w1.lock.is_held
    assert not await w2.lock.contend()
    world.clock.now_seconds += 90
    assert await w2.lock.contend()
    await w1.lock.renew()
    assert not await w1.lock.contend()


async def test_leader_that_comes_back_under_its_name_leads_at_once() -> None:
    """What its life before still writes about the lock is refused."""
    world = LeadWorld()
    before, after = await _fleet(world, "w1", "w1")
    assert await before.lock.contend()

    assert await after.lock.contend()
    await before.lock.renew()

    assert not before.lock.is_held
    assert after.lock.is_held


async def test_ours_does_not_lead_beside_a_leader_of_another_program() -> None:
    """It steps down when it finds one, and contends again when that has stood still for its length."""
    world = LeadWorld()
    (w1,) = await _fleet(world, "w1")
    await w1.leadership.step()
    assert _leads(w1)

    for version in ("1", "2"):
        w1.leases.leaders = (ForeignLeader(name="java-1", version=version, lease_seconds=120.0),)
        world.put(_lease(f"new {version}"))
        await w1.leadership.step()
        assert not _leads(w1)
        world.clock.now_seconds += 100
        await w1.leadership.step()
        assert not _leads(w1)
    assert world.record("new 2").owner is None

    world.clock.now_seconds += 20.1
    await w1.presence.beat()
    await w1.leadership.step()
    assert _leads(w1)
    assert world.record("new 2").owner == "w1"


async def test_store_of_the_leases_is_no_store_of_a_fleet() -> None:
    """Found out before anything is assigned: in one store, each would take the other's rows for its own."""
    world = LeadWorld()
    world.fleet = world.leases
    (w1,) = await _fleet(world, "w1")
    world.put(_lease("a"))

    with pytest.raises(InvalidStateError, match="holds a: expected leader and worker-"):
        await w1.leadership.step()
    assert world.record("a").owner is None
