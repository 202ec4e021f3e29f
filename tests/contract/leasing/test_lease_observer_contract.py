"""Which leases may be taken, on every backend.

Origins are in awslabs/amazon-kinesis-client, `leases.dynamodb.DynamoDBLeaseTakerIntegrationTest`. Rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broadsheet.leases import rules
from broadsheet.leases.expiry import LeaseObserver
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from tests.support.lease_stores import LeaseSubject
from tests.support.stepping_clock import SteppingClock

LEASE_SECONDS = 10.0


@pytest.fixture
def clock() -> SteppingClock:
    """The observer's."""
    return SteppingClock(1_000.0)


@pytest.fixture
def observer(subject: LeaseSubject, clock: SteppingClock) -> LeaseObserver:
    """One in w2's process."""
    return LeaseObserver(subject.rival, lease_seconds=LEASE_SECONDS, clock=clock)


async def _held(manager: LeaseManager) -> Versioned:
    await manager.create_lease(LeaseRecord(key="a"))
    seen = await manager.get_lease("a")
    assert seen is not None
    held = await manager.take(seen, "w1")
    assert held is not None
    return held


def _keys(found: Sequence[Versioned]) -> list[str]:
    return [each.record.key for each in found]


async def test_simple_lease_take(manager: LeaseManager, observer: LeaseObserver) -> None:
    """`testSimpleLeaseTake`: what nobody ever owned is free at the first sight; what is finished never."""
    await manager.create_lease(LeaseRecord(key="a"))
    await manager.create_lease(LeaseRecord(key="b", checkpoint=Position("SHARD_END")))

    assert _keys(await observer.free_leases()) == ["a"]


async def test_not_take_new_owned_lease(
    subject: LeaseSubject, manager: LeaseManager, observer: LeaseObserver, clock: SteppingClock
) -> None:
    """`testNotTakeNewOwnedLease`: what is owned at first sight is free only after a lease's length, if ever."""
    await _held(manager)

    assert await observer.free_leases() == ()
    clock.now_seconds += LEASE_SECONDS
    assert await observer.free_leases() == ()
    clock.now_seconds += 0.1
    # etcd knows that the holder lives, however still it is.
    expected = [] if subject.store.tells_who_lives else ["a"]
    assert _keys(await observer.free_leases()) == expected


async def test_not_take_updated_lease(
    manager: LeaseManager, observer: LeaseObserver, clock: SteppingClock
) -> None:
    """`testNotTakeUpdatedLease`: a holder that moves in time keeps it."""
    held = await _held(manager)
    for _ in range(3):
        assert await observer.free_leases() == ()
        clock.now_seconds += LEASE_SECONDS - 1
        moved = await manager.renew(held)
        assert moved is not None
        held = moved

    assert await observer.free_leases() == ()


async def test_take_released_lease(manager: LeaseManager, observer: LeaseObserver) -> None:
    """`testTakeOwnLease`, and any other: what was let go is free at once, and taken it is not."""
    held = await _held(manager)
    assert await observer.free_leases() == ()

    evicted = await manager.evict(held)
    free = await observer.free_leases()
    assert free == (evicted,)

    assert await manager.take(free[0], "w1")
    assert await observer.free_leases() == ()


async def test_new_lease_of_a_deleted_ones_name_is_new(
    manager: LeaseManager, observer: LeaseObserver, clock: SteppingClock
) -> None:
    """What is gone is forgotten: its successor's holder is not judged by its age."""
    await _held(manager)
    assert await observer.free_leases() == ()
    await manager.delete("a")
    clock.now_seconds += LEASE_SECONDS * 2
    assert await observer.free_leases() == ()

    await _held(manager)

    assert await observer.free_leases() == ()


async def test_heir_of_a_silent_holder_fences_it(
    manager: LeaseManager, rival: LeaseManager, observer: LeaseObserver, clock: SteppingClock
) -> None:
    """It was not dead, only slow: whoever takes the lease, its next commit is refused."""
    held = await _held(manager)
    await observer.free_leases()
    clock.now_seconds += LEASE_SECONDS + 1
    free = await observer.free_leases() or (held,)  # On etcd it lives, and is robbed.

    taken = await rival.take(free[0], "w2")

    assert taken is not None
    assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None
