"""Which leases a worker takes and whose it asks for: the taker's cases of the Kinesis Client Library, and ours."""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

import pytest

from broadsheet.leases.worker.fair_share import ShareLimits, Shares, plan_shares
from broadsheet.leases.worker.lease_view import LeaseView

D = 10.0


def held(worker: str, *keys: str) -> list[LeaseView]:
    """Leases that live."""
    return [LeaseView(key=key, bound_for=worker, held_by=worker) for key in keys]


def free(*keys: str, for_seconds: float = 0.0) -> list[LeaseView]:
    """Leases that nobody holds."""
    return [
        LeaseView(key=key, bound_for=None, held_by=None, free_seconds=for_seconds) for key in keys
    ]


def plan(
    leases: list[LeaseView],
    *,
    me: str = "me",
    leases_max: int = sys.maxsize,
    steals_max: int = 1,
    seed: int = 0,
) -> Shares:
    """Decide a round with the limits of the Kinesis Client Library."""
    limits = ShareLimits(leases_max=leases_max, steals_max=steals_max, overdue_seconds=3 * D)
    return plan_shares(leases, me=me, limits=limits, dice=Random(seed).random)


def names(prefix: str, count: int) -> list[str]:
    """Some keys."""
    return [f"{prefix}{number}" for number in range(count)]


def test_free_lease_is_taken() -> None:
    """KCL DynamoDBLeaseTakerIntegrationTest.testSimpleLeaseTake."""
    shares = plan(free("a"))

    assert (shares.to_take, shares.take_max, shares.target) == (("a",), 1, 1)


def test_living_lease_is_not_taken() -> None:
    """KCL testNotTakeUpdatedLease, testNotTakeNewOwnedLease: one each is a fair share for as many workers."""
    assert plan(held("other", "a")) == Shares(target=1, to_take=(), take_max=0, to_steal=())


def test_share_is_taken_and_no_more() -> None:
    """KCL testNonGreedyTake: of four leases for two workers, two."""
    shares = plan([*held("other", "d"), *free("a", "b", "c")])

    assert shares.target == 2
    assert shares.take_max == 2
    assert sorted(shares.to_take) == ["a", "b", "c"]


def test_overdue_leases_are_taken_beyond_the_share() -> None:
    """KCL testVeryOldLeaseTaker: whoever should have taken them has not for three lengths of a lease."""
    shares = plan([*held("other", "d"), *free("a", "b", "c", for_seconds=3 * D + 1)])

    assert shares.take_max == 3


def test_overdue_leases_are_not_taken_beyond_the_maximum() -> None:
    """KCL veryOld with maxLeasesForWorker: that is what a worker can carry."""
    leases = [*held("me", "d"), *free("a", "b", "c", for_seconds=3 * D + 1)]

    assert plan(leases, leases_max=2).take_max == 1
    assert plan(leases, leases_max=1).take_max == 0


def test_leases_that_are_free_for_longest_come_first() -> None:
    """Those waited longest; of those that became free together, each worker tries others first."""
    leases = [*free("a", for_seconds=1), *free("b", for_seconds=5), *free("c", for_seconds=1)]

    assert {plan(leases, seed=seed).to_take[0] for seed in range(20)} == {"b"}
    assert {plan(leases, seed=seed).to_take[1] for seed in range(20)} == {"a", "c"}


def test_new_worker_steals_from_the_one_with_most() -> None:
    """KCL testSteal: one a round by their limit; all that it lacks by ours, the victims never below their share."""
    leases = [*held("rich", *names("r", 6)), *held("poor", *names("p", 3))]

    assert plan(leases).to_steal[0].startswith("r")
    assert len(plan(leases).to_steal) == 1
    victims = Counter(key[0] for key in plan(leases, steals_max=100).to_steal)
    assert victims == {"r": 3}


def test_new_worker_steals_from_several() -> None:
    """A worker that joins four others has its share after one round, not four."""
    leases = [lease for name in "abcd" for lease in held(name, *names(name, 250))]

    stolen = plan(leases, steals_max=1_000).to_steal

    assert Counter(key[0] for key in stolen) == dict.fromkeys("abcd", 50)


def test_nothing_is_stolen_for_one_lease_more_or_less() -> None:
    """KCL testNoStealWhenOffByOne."""
    leases = [*held("other", "a", "b"), *held("me", "c")]

    assert plan(leases, steals_max=9).to_steal == ()


def test_worker_that_lacks_two_gets_one_of_those_at_their_share() -> None:
    """KCL computeLeasesToSteal: 4, 4 and 2 have a share of 4; without this it would stay so for ever."""
    leases = [
        *held("a", *names("a", 4)),
        *held("b", *names("b", 4)),
        *held("me", *names("m", 2)),
    ]

    assert len(plan(leases, steals_max=9).to_steal) == 1


def test_nothing_is_stolen_while_leases_are_free() -> None:
    """KCL testNoStealWhenExpiredLeases."""
    leases = [*held("other", *names("o", 5)), *free("x")]

    assert plan(leases, steals_max=9).to_steal == ()


def test_leases_of_the_dead_do_not_count() -> None:
    """KCL computeLeaseCounts, LeaseCountBasedLeaseAssignmentDeciderTest: the dead have no share."""
    shares = plan([*held("other", *names("o", 2)), *free(*names("dead", 4))])

    assert shares.target == 3
    assert shares.take_max == 3


def test_lease_that_was_asked_for_counts_for_who_gets_it() -> None:
    """KCL LeaseCountBasedLeaseAssignmentDeciderTest: one in hand-off is not asked for twice, nor is another."""
    leases = [
        *held("other", *names("o", 3)),
        LeaseView(key="asked", bound_for="me", held_by="other"),
    ]

    shares = plan(leases, steals_max=9)

    assert shares.target == 2
    assert len(shares.to_steal) == 0 or shares.to_steal[0] != "asked"
    third = plan([*leases, *held("me", "mine")], steals_max=9)
    assert third.to_steal == ()


def test_free_lease_that_another_asked_for_is_left_to_it() -> None:
    """Its holder let go for that worker."""
    leases = [LeaseView(key="a", bound_for="other", held_by=None), *free("b")]

    assert plan(leases).to_take == ("b",)


@pytest.mark.parametrize("seed", range(20))
def test_rounds_of_any_workers_end_balanced(seed: int) -> None:
    """From any distribution, rounds in any order end within one lease of each other, and then nothing moves."""
    random = Random(seed)
    workers = names("w", random.randint(1, 6))
    owner = {key: random.choice([None, *workers]) for key in names("k", random.randint(1, 40))}
    steals_max = random.choice([1, 3, 1_000])

    for _ in range(400):
        me = random.choice(workers)
        views = [LeaseView(key=key, bound_for=by, held_by=by) for key, by in owner.items()]
        shares = plan(views, me=me, steals_max=steals_max, seed=random.randint(0, 9))
        for key in (*shares.to_take[: shares.take_max], *shares.to_steal):
            owner[key] = me

    counts = [sum(by == worker for by in owner.values()) for worker in workers]
    assert sum(counts) == len(owner)
    assert max(counts) - min(counts) <= 1
