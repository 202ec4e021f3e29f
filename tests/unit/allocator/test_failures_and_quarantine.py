"""What the leader remembers from round to round."""

from __future__ import annotations

import sys
from types import FrameType

from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.ops import Compare, Delete, TxnCheckpoint
from broadsheet.allocator.placement.plan import Plan, PlanRefused, plan_for
from broadsheet.allocator.placement.problem import Desired, Problem
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.transition.converge import ConvergeStep, ReplicaCounts
from broadsheet.allocator.transition.quarantine import ItemQuarantine
from tests.support.memory_cluster import MemoryCluster, ValueConsistency


def step(subject: str, revision: int = 1) -> ConvergeStep:
    """A step about `subject` as it was at a revision."""
    key = subject.encode()
    return ConvergeStep(
        TxnCheckpoint((Compare.mod_revision(key, revision),), (Delete(key),), subject=subject),
        ReplicaCounts(removed=1),
    )


def test_quarantine_refused_step_waits_twice_as_long_each_time() -> None:
    """The same step fails the same way: half a second, one, two; other items go on."""
    bad, good = step("bad"), step("good")
    quarantine = ItemQuarantine()
    waits: list[float | None] = []
    now = 100.0
    for _ in range(3):
        assert quarantine.admitted((bad, good), now) == (bad, good)
        quarantine = quarantine.after(
            (bad, good),
            tried=(bad, good),
            refused=(bad.checkpoint,),
            now_monotonic_seconds=now,
        )
        assert quarantine.admitted((bad, good), now) == (good,)
        wait = quarantine.next_try_seconds(now)
        waits.append(wait)
        now += wait or 0.0

    assert waits == [0.5, 1.0, 2.0]


def test_quarantine_step_that_changed_goes_at_once() -> None:
    """The key space showed something new: other comparisons may hold."""
    quarantine = ItemQuarantine().after(
        (step("i"),), tried=(step("i"),), refused=(step("i").checkpoint,), now_monotonic_seconds=0.0
    )

    assert quarantine.admitted((step("i", revision=2),), 0.0) == (step("i", revision=2),)


def test_quarantine_forgets_what_succeeded_or_is_wanted_no_more() -> None:
    """Neither leaves a timer behind that would wake the leader for nothing."""
    refused = ItemQuarantine().after(
        (step("i"),), tried=(step("i"),), refused=(step("i").checkpoint,), now_monotonic_seconds=0.0
    )

    succeeded = refused.after((step("i"),), tried=(step("i"),), refused=(), now_monotonic_seconds=9)
    unwanted = refused.after((), tried=(), refused=(), now_monotonic_seconds=0.1)
    waiting = refused.after((step("i"),), tried=(), refused=(), now_monotonic_seconds=0.1)

    assert succeeded.next_try_seconds(9.0) is None
    assert unwanted.next_try_seconds(0.1) is None
    assert waiting.next_try_seconds(0.1) == 0.4


def _failed(assignment: Assignment) -> bool:
    return assignment.kv.value == b"failed"


def _observe(failed: FailedSince, cluster: MemoryCluster, now: float) -> None:
    state = cluster.state()
    item = ItemId("i")
    failed.observe(item, state.items[item], state.assignments[item], now)


def _failed_since() -> FailedSince:
    return FailedSince(_failed, ValueConsistency(), after_seconds=60.0)


def _failing_cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    for suffix in ("one", "two"):
        cluster.put_member("a", suffix, 4)
    cluster.put_item("i", 2)
    cluster.put_assignment("i", "a", "one", 0)
    cluster.put_assignment("i", "a", "two", 1, b"failed")
    return cluster


def test_failures_standby_failed_for_long_is_avoided_not_before() -> None:
    """Restarts in place get their time; then the replica is better placed elsewhere. A timer tells when."""
    cluster, failed = _failing_cluster(), _failed_since()
    _observe(failed, cluster, 10.0)
    _observe(failed, cluster, 60.0)

    assert failed.next_seconds(60.0) == 10.0
    assert not failed.expire(69.9)
    assert failed.avoided == frozenset()
    assert failed.expire(70.0)
    assert failed.avoided == {(ItemId("i"), MemberId("a", "two"))}
    assert failed.next_seconds(70.0) is None
    assert not failed.expire(80.0)


def test_failures_recovered_or_recreated_replica_starts_anew() -> None:
    """A replica that recovers, or whose key was made again, has not been failing since before."""
    cluster, failed = _failing_cluster(), _failed_since()
    _observe(failed, cluster, 10.0)
    cluster.mark_consistent()
    _observe(failed, cluster, 20.0)
    assert failed.next_seconds(20.0) is None

    cluster.etcd.delete(cluster.keys.assignment(ItemId("i"), MemberId("a", "two"), 1))
    cluster.put_assignment("i", "a", "two", 1, b"failed")
    _observe(failed, cluster, 30.0)

    assert failed.next_seconds(30.0) == 60.0


def test_failures_failed_primary_is_given_up_only_beside_a_ready_standby() -> None:
    """What fails on one member may work on another that is ready; without one, moving the primary helps nothing."""
    cluster, failed = _failing_cluster(), _failed_since()
    cluster.put_assignment("i", "a", "one", 0, b"failed")
    for standby in (b"", b"failed"):
        cluster.put_assignment("i", "a", "two", 1, standby)
        _observe(failed, cluster, 10.0)
        failed.expire(100.0)
        assert (ItemId("i"), MemberId("a", "one")) not in failed.avoided

    cluster.put_assignment("i", "a", "two", 1, b"consistent")
    _observe(failed, cluster, 110.0)

    failed.expire(169.0)
    assert failed.avoided == frozenset()
    assert failed.expire(170.0)
    assert failed.avoided == {(ItemId("i"), MemberId("a", "one"))}


def test_failures_primaries_that_fail_in_a_row_get_ever_more_time() -> None:
    """A fault of the application is one of every member: the shard must not go around among them once a minute. One
    that served for long starts with the first time again.
    """
    cluster, failed = _failing_cluster(), _failed_since()
    now, waits = 0.0, list[float | None]()
    for turn in range(7):
        first, second = ("one", "two") if turn % 2 else ("two", "one")
        group = cluster.state().assignments[ItemId("i")]
        cluster.etcd.delete(*(assignment.kv.key for assignment in group))
        cluster.put_assignment("i", "a", first, 0, b"failed")
        cluster.put_assignment("i", "a", second, 1, b"consistent")
        if turn == 6:
            now += 1_000.0
        _observe(failed, cluster, now)
        waits.append(failed.next_seconds(now))
        now += waits[-1] or 0.0
        assert failed.expire(now)

    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 960.0, 60.0]


def test_failures_look_at_the_clock_costs_nothing_however_many_fail() -> None:
    """Every standby of an application fails: each round of the leader looks at the clock, and must not at all of them.

    Plan: count the functions that are called, before their time is up and after.
    """
    cluster, failed = _failing_cluster(), _failed_since()
    state = cluster.state()
    (item,), (group,) = state.items.values(), state.assignments.values()
    for number in range(1000):
        failed.observe(ItemId(f"i{number}"), item, group, 0.0)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    for now in (1.0, 61.0):
        failed.expire(now)
        sys.setprofile(count)
        try:
            failed.expire(now + 1.0)
            failed.next_seconds(now + 1.0)
        finally:
            sys.setprofile(None)

    assert calls < 20
    assert len(failed.avoided) == 1000


def test_failures_one_that_recovers_is_avoided_no_longer() -> None:
    """It was given up, and works after all; or its item is deleted. Both are told at the next look at the clock."""
    cluster, failed = _failing_cluster(), _failed_since()
    _observe(failed, cluster, 0.0)
    assert failed.expire(60.0)
    cluster.mark_consistent()
    _observe(failed, cluster, 61.0)

    assert failed.expire(61.0)
    assert failed.avoided == frozenset()
    assert not failed.expire(62.0)

    cluster.etcd.put(cluster.keys.assignment(ItemId("i"), MemberId("a", "two"), 1), b"failed")
    _observe(failed, cluster, 62.0)
    assert failed.expire(122.0)
    failed.observe(ItemId("i"), None, (), 123.0)

    assert failed.expire(123.0)
    assert failed.avoided == frozenset()


class _BrokenSolver:
    """Answers every question with nothing."""

    def solve(self, problem: Problem) -> Desired:
        """Return an empty placement."""
        return {}


def test_plan_is_kept_while_the_demand_stands_and_refused_when_defective() -> None:
    """The same demand asks no solver; a new one does, and its answer passes the verifier or is not used."""
    cluster = _failing_cluster()
    state = cluster.state()
    plan = Plan(state.demand(), {})

    assert plan_for(state, plan, _BrokenSolver()) is plan
    refused = plan_for(state, None, _BrokenSolver())

    assert isinstance(refused, PlanRefused)
    assert [str(each) for each in refused.violations] == ["i: has no answer"]


def test_next_failure_is_told_without_the_replicas_that_recovered() -> None:
    """The first of two failed replicas recovers: the question tells the second one's time, however often it is asked.
    A time that has passed for nothing would wake the leader at once, again and again.
    """
    cluster = MemoryCluster()
    cluster.put_member("a", "a1", 8)
    for name in ("first", "second"):
        cluster.put_item(name, 1)
        cluster.put_assignment(name, "a", "a1", 1, b"failed")
    failed = FailedSince(
        lambda assignment: assignment.kv.value == b"failed", ValueConsistency(), after_seconds=60.0
    )

    def look(name: str, now: float) -> None:
        state, item_id = cluster.state(), ItemId(name)
        failed.observe(item_id, state.items[item_id], state.assignments[item_id], now)

    look("first", 0.0)
    look("second", 10.0)
    assert failed.next_seconds(10.0) == 50.0
    cluster.put_assignment("first", "a", "a1", 1)
    look("first", 20.0)
    assert failed.next_seconds(20.0) == failed.next_seconds(20.0) == 50.0
    assert failed.expire(70.0)
    assert failed.avoided == {(ItemId("second"), MemberId("a", "a1"))}
    assert failed.next_seconds(70.0) is None
