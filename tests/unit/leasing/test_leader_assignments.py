"""Which worker a leader gives each lease: rules of its passes, without a store.

Origins are in awslabs/amazon-kinesis-client, package `coordinator.assignment`; rewritten.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from random import Random

import pytest

from broadsheet.leases.worker.assignments import (
    AssignmentLimits,
    GivenHow,
    LeaseAssignment,
    plan_assignments,
)
from broadsheet.leases.worker.lease_view import LeaseView


def held(worker: str, *keys: str) -> list[LeaseView]:
    """Leases that live."""
    return [LeaseView(key=key, bound_for=worker, held_by=worker) for key in keys]


def free(*keys: str, last_holder: str | None = None) -> list[LeaseView]:
    """Leases that nobody holds."""
    return [
        LeaseView(key=key, bound_for=None, held_by=None, last_holder=last_holder) for key in keys
    ]


def promised(key: str, *, to: str, by: str | None, is_overdue: bool = False) -> LeaseView:
    """A lease in hand-off; with nobody by whom, its holder died."""
    return LeaseView(key=key, bound_for=to, held_by=by, next_owner=to, is_overdue=is_overdue)


def names(prefix: str, count: int) -> list[str]:
    """Some keys."""
    return [f"{prefix}{number}" for number in range(count)]


def plan(
    leases: list[LeaseView],
    *workers: str,
    leases_max: int = sys.maxsize,
    moves_max: int = sys.maxsize,
    rebalances: bool = True,
    seed: int = 0,
) -> tuple[LeaseAssignment, ...]:
    """Decide a pass."""
    return plan_assignments(
        leases,
        workers=workers,
        limits=AssignmentLimits(leases_max=leases_max, moves_max=moves_max),
        rebalances=rebalances,
        dice=Random(seed).random,
    )


def given(plan: Collection[LeaseAssignment], how: GivenHow) -> Counter[str]:
    """Return how many leases each worker gets so."""
    return Counter(each.worker for each in plan if each.how is how)


def test_nothing_is_assigned_if_there_is_nothing() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.assignExpiredOrUnassignedLeases_emptyList_noAssignments."""
    assert plan([], "w1") == ()
    assert plan(free("a")) == ()


def test_lone_worker_gets_all() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.assignExpiredOrUnassignedLeases_singleWorker_assignsAllLeases."""
    assert given(plan(free("a", "b"), "w1"), GivenHow.FREE) == {"w1": 2}


def test_free_leases_are_spread_evenly() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.assignExpiredOrUnassignedLeases_multipleWorkers_distributesEvenly."""
    assert sorted(given(plan(free("a", "b", "c"), "w1", "w2"), GivenHow.FREE).values()) == [1, 2]


def test_free_leases_go_to_the_workers_with_fewest() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.sequentialAssignmentAndBalancing_worksWithUpdatedWorkerToLeasesMap.

    What was just assigned counts, so nothing has to move after it.
    """
    leases = [*held("w1", "a", "b"), *free("c", "d", "e")]

    made = plan(leases, "w1", "w2")

    assert given(made, GivenHow.FREE) == {"w2": 2, "w1": 1} or given(made, GivenHow.FREE) == {
        "w2": 3
    }
    assert given(made, GivenHow.HAND_OFF) == {}


def test_balanced_leases_stay() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.balanceWorkerVariance_evenDistribution_noRebalancing.

    One more or less is balanced.
    """
    assert plan([*held("w1", "a"), *held("w2", "b")], "w1", "w2") == ()
    assert plan([*held("w1", "a", "c"), *held("w2", "b")], "w1", "w2") == ()


def test_worker_with_most_is_asked_for_the_one_with_fewest() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.balanceWorkerVariance_unbalanced_rebalances."""
    (moved,) = plan(held("w1", "a", "b"), "w1", "w2")

    assert (moved.worker, moved.how) == ("w2", GivenHow.HAND_OFF)


def test_living_workers_are_asked_in_rebalancing_passes_only() -> None:
    """What is free is given in every pass."""
    made = plan([*held("w1", "a", "b", "c"), *free("d")], "w1", "w2", rebalances=False)

    assert [(each.key, each.worker, each.how) for each in made] == [("d", "w2", GivenHow.FREE)]


def test_lease_in_hand_off_is_not_moved_and_counts_for_its_next_owner() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.balanceWorkerVariance_hasPendingHandoffLeases_avoidsStealing…."""
    leases = [*held("w1", "a"), promised("b", to="w2", by="w1")]

    assert plan(leases, "w1", "w2") == ()
    assert plan([promised("b", to="w2", by="w1")], "w1", "w2", "w3") == ()


def test_nothing_moves_to_a_worker_that_has_all_it_may() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.balanceWorkerVariance_maxLeasesForWorkerLimitReached_stopsRebalancing."""
    leases = [*held("w1", *names("a", 12)), *held("w2", *names("b", 12))]

    assert plan(leases, "w1", "w2", leases_max=10) == ()
    half = [*held("w1", *names("a", 9)), *held("w2", *names("b", 2))]
    assert given(plan(half, "w1", "w2", leases_max=3), GivenHow.HAND_OFF) == {"w2": 1}


def test_no_worker_gets_more_than_it_may() -> None:
    """LeaseCountBasedLeaseAssignmentDeciderTest.assignExpiredOrUnassignedLeases_maxLeasesForWorkerLimitReached_stops….

    LeaseAssignmentManagerTest.performAssignment_moreLeasesThanMaxConfigured_assertSomeUnassignedLeases: the rest stays.
    """
    assert given(plan(free(*names("a", 15)), "w1", leases_max=10), GivenHow.FREE) == {"w1": 10}


def test_dead_workers_are_given_nothing() -> None:
    """LeaseAssignmentManagerTest.performAssignment_inActiveWorkerWithLowUtilizationAvailable_verifyLeaseNotAssigned.

    Nor does the count of what they had: those leases are free. One that only *holds* leases, and does not say that it
    takes what it is given, is asked when it has most, and given nothing.
    """
    leases = [*held("outsider", *names("o", 6)), *free("x")]

    made = plan(leases, "w1")

    assert given(made, GivenHow.FREE) == {"w1": 1}
    assert given(made, GivenHow.HAND_OFF) == {"w1": 2}


def test_hand_off_whose_time_is_over_is_forced() -> None:
    """LeaseAssignmentManagerTest: after the deadline the next owner has it; if that died, somebody else."""
    overdue = promised("a", to="w2", by="w1", is_overdue=True)

    (forced,) = plan([overdue], "w1", "w2")
    assert (forced.worker, forced.how) == ("w2", GivenHow.FORCED)
    busy = held("w1", "b", "c")
    (forced,) = plan([overdue, *busy], "w1", "w3", rebalances=False)
    assert (forced.worker, forced.how) == ("w3", GivenHow.FORCED)


def test_lease_of_a_holder_that_died_in_a_hand_off_goes_to_its_next_owner() -> None:
    """LeaseAssignmentManagerTest.performAssignment_expiredLeasesButPendingCheckpointNotExpiredLease_validateItIsAssigned.

    There is nobody left to wait for. Theirs may give it to any.
    """
    orphan = promised("a", to="w2", by=None)

    (made,) = plan([orphan, *held("w2", "b")], "w1", "w2", rebalances=False)
    assert (made.worker, made.how) == ("w2", GivenHow.FREE)
    (made,) = plan([orphan], "w1")
    assert (made.worker, made.how) == ("w1", GivenHow.FREE)


def test_free_lease_that_an_outsider_claimed_is_left_to_it() -> None:
    """A worker that takes for itself asked, and the holder let go for it."""
    claimed = LeaseView(key="a", bound_for="outsider", held_by=None)

    assert plan([claimed], "w1") == ()


def test_lease_that_a_worker_gave_up_goes_to_another() -> None:
    """It could not process it; alone it gets it again."""
    leases = [*held("w1", "a"), *held("w2", "b", "c"), *free("x", last_holder="w1")]

    (made,) = plan(leases, "w1", "w2", rebalances=False)
    assert made.worker == "w2"
    (made,) = plan(free("x", last_holder="w1"), "w1")
    assert made.worker == "w1"


def test_moves_of_a_pass_are_limited() -> None:
    """`WorkerSettings.steals_max`, as for workers that take."""
    assert len(plan(held("w1", *names("a", 9)), "w1", "w2", "w3", moves_max=2)) == 2


@pytest.mark.parametrize("seed", range(20))
def test_one_rebalancing_pass_balances_anything(seed: int) -> None:
    """All leases are bound for somebody, within one of each other, no lease twice; then nothing more moves."""
    random = Random(seed)
    workers = names("w", random.randint(1, 6))
    leases = [
        lease
        for key in names("k", random.randint(1, 40))
        for lease in (held(random.choice(workers), key) if random.random() < 0.6 else free(key))
    ]

    made = plan(leases, *workers, seed=seed)

    assert len({each.key for each in made}) == len(made)
    worker_by_key = {each.key: each.worker for each in made}
    after = [
        replace(lease, bound_for=worker_by_key.get(lease.key, lease.bound_for)) for lease in leases
    ]
    counts = Counter(dict.fromkeys(workers, 0))
    counts.update(lease.bound_for for lease in after if lease.bound_for is not None)
    assert sum(counts.values()) == len(leases)
    assert max(counts.values()) - min(counts.values()) <= 1
    settled = [
        LeaseView(key=lease.key, bound_for=lease.bound_for, held_by=lease.bound_for)
        for lease in after
    ]
    assert plan(settled, *workers) == ()
