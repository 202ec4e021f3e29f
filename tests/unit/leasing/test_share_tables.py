"""Whose lease a worker takes or asks for, in the tables of other systems.

Origins are in azure-sdk-for-js sdk/eventhub/event-hubs, `loadBalancingStrategy.spec.ts` (its greedy strategy asks for
all that it lacks, its balanced one for one a round), azure-sdk-for-python `test_eventprocessor.py` and
awslabs/amazon-kinesis-client `leases.dynamodb.DynamoDBLeaseTakerTest`; rewritten. A table is written as the workers
of partitions 0, 1, 2 …; `.` is nobody's, `~` is that of a worker that died or let go.
"""

from __future__ import annotations

import math
from random import Random

import pytest

from broadsheet.leases.worker.fair_share import ShareLimits, Shares, plan_shares
from broadsheet.leases.worker.lease_view import LeaseView

GREEDY, BALANCED = 1_000, 1


def _plan(
    table: str,
    me: str,
    *,
    steals_max: int = GREEDY,
    free_seconds: float = 0.0,
    overdue_seconds: float = math.inf,
    leases_max: int = 1_000,
) -> Shares:
    leases = [
        LeaseView(key=str(number), bound_for=None, held_by=None, free_seconds=free_seconds)
        if worker in ".~"
        else LeaseView(key=str(number), bound_for=worker, held_by=worker)
        for number, worker in enumerate(table)
    ]
    limits = ShareLimits(
        leases_max=leases_max, steals_max=steals_max, overdue_seconds=overdue_seconds
    )
    return plan_shares(leases, me=me, limits=limits, dice=Random(0).random)


def _claimed(shares: Shares) -> int:
    return shares.take_max + len(shares.to_steal)


@pytest.mark.parametrize("steals_max", [BALANCED, GREEDY])
@pytest.mark.parametrize(
    ("table", "me", "claimed"),
    [
        pytest.param("baa", "a", 0, id="odd: has the odd one"),
        pytest.param(".ba", "a", 1, id="odd: takes the odd one"),
        pytest.param(".baa", "a", 0, id="even: has its share"),
        pytest.param("bbaa", "a", 0, id="even: balanced"),
        pytest.param(".b.a", "a", 1, id="general: one each, takes one more"),
        pytest.param(".baa", "b", 1, id="general: takes the last one"),
        pytest.param("baba", "b", 0, id="general: balanced"),
        pytest.param("aaa", "b", 1, id="stealing: odd"),
        pytest.param("aba", "b", 0, id="avoid thrash"),
        pytest.param("aaaabbbccd", "c", 0, id="don't steal when you can just wait"),
        pytest.param("aaaabbbccd", "d", 1, id="and who need not wait does not"),
        pytest.param("ba", "a", 0, id="honors expiration: alive"),
        pytest.param("~a", "a", 1, id="honors expiration: expired"),
    ],
)
def test_load_balancing_strategy(table: str, me: str, claimed: int, steals_max: int) -> None:
    """`odd number of partitions per processor` and so on, which both strategies decide alike."""
    assert _claimed(_plan(table, me, steals_max=steals_max)) == claimed


def test_stealing_an_even_number() -> None:
    """`stealing`: of four, the balanced strategy asks for one and the greedy one for both."""
    assert len(_plan("aaaa", "b", steals_max=BALANCED).to_steal) == 1
    assert len(_plan("aaaa", "b", steals_max=GREEDY).to_steal) == 2


def test_claims_unowned_then_steals() -> None:
    """`claims unowned then steals`: the three that are free, then one of five; here in the next round."""
    first = _plan("~..bbbbb", "a")
    assert (sorted(first.to_take), first.take_max, first.to_steal) == (["0", "1", "2"], 3, ())

    second = _plan("aaabbbbb", "a")

    assert len(second.to_steal) == 1


@pytest.mark.parametrize(
    ("table", "claimed"),
    [
        ("...", 3),
        ("ab.", 1),
        ("a.~", 2),
        ("a.~~", 2),
        ("a...", 2),
        ("..~~", 4),
        ("ab", 0),
        ("am", 0),
    ],
    ids=["empty", "odd one", "expired", "expired and let go", "one", "two dead", "full", "mine"],
)
def test_balance_ownership(table: str, claimed: int) -> None:
    """`test_balance_ownership`, `…_on_init`: never what lives, and no more than a share.

    Theirs takes all that is free as it begins, and one a round after; it counts what it keeps.
    """
    shares = _plan(table, "m")

    assert _claimed(shares) == claimed
    assert all(table[int(key)] in ".~" for key in shares.to_take)


@pytest.mark.parametrize(
    ("overdue_seconds", "taken"),
    [(20.0, 3), (30.0, 3), (31.0, 2), (90.0, 2), (math.inf, 2)],
    ids=["2 lengths", "just so", "just not", "9 lengths", "priority off"],
)
def test_very_old_leases(overdue_seconds: float, taken: int) -> None:
    """`testVeryOldLeaseDurationMultiplier…`, `…DisablePriorityLeaseAssignment`: how old, and not at all."""
    shares = _plan("...o", "m", free_seconds=30.5, overdue_seconds=overdue_seconds)

    assert shares.take_max == taken


@pytest.mark.parametrize(("leases_max", "first", "second"), [(100, 4, 2), (3, 3, 2), (1, 1, 1)])
def test_max_leases_for_worker(leases_max: int, first: int, second: int) -> None:
    """vmware-go-kcl `TestLeaseStealingWithMaxLeasesForWorker`: four shards; a worker alone, then a second one."""
    assert _plan("....", "a", leases_max=leases_max).take_max == first
    rest = "." * (4 - first)

    shares = _plan("a" * first + rest, "b", leases_max=leases_max)

    assert _claimed(shares) == (min(second, len(rest)) if rest else second)
