"""What a holder knows of its leases as they are renewed, lost, handed off and let go.

Origins are in awslabs/amazon-kinesis-client, package `leases.dynamodb`: `DynamoDBLeaseRenewerIntegrationTest`,
`DynamoDBLeaseRenewerTest` and, of hand-offs, `DynamoDBLeaseRefresherTest`; rewritten.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import ShutdownError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.record_processor.held_lease import HeldLease
from tests.support.leases_at_hand import held_lease, lease_now, taken_lease
from tests.support.lost_answers import LostAnswers
from tests.support.memory_records import MemoryRecords, MemoryRecordStore
from tests.support.stepping_clock import SteppingClock

LEASE_SECONDS = 10.0


class World:
    """A store, and who looks at it."""

    def __init__(self) -> None:
        self.clock = SteppingClock()
        self.records = MemoryRecords(found={})
        self.store = LostAnswers(MemoryRecordStore(self.records))
        self.manager = LeaseManager(self.store, clock=self.clock)

    async def hold(self, key: str = "a", *, acquired_seconds: float = 0.0) -> HeldLease:
        """Take a lease that is made for it."""
        return HeldLease(
            self.manager,
            await held_lease(self.manager, key=key),
            lease_seconds=LEASE_SECONDS,
            acquired_monotonic_seconds=acquired_seconds,
        )


@pytest.fixture
def world() -> World:
    """Nothing is held."""
    return World()


async def test_lease_loss(world: World) -> None:
    """`testLeaseLoss`: of two, the one that another took is not renewed, and the other is."""
    lost, kept = await world.hold("a"), await world.hold("b")
    await taken_lease(world.manager, "w2", "a")

    assert (await lost.renew(), await kept.renew()) == (False, True)
    assert (lost.is_held, kept.is_held) == (False, True)


async def test_clear(world: World) -> None:
    """`testClear`: what the worker lets go of at once is not held, whatever the store says; nothing is written."""
    held = await world.hold()
    before = await lease_now(world.manager)

    held.end()

    assert not held.is_held
    assert not await held.renew()
    with pytest.raises(ShutdownError):
        await held.update(lambda record: rules.commit(record, Position("1")))
    assert await lease_now(world.manager) == before


async def test_get_currently_held_lease(world: World) -> None:
    """`testGetCurrentlyHeldLease`, `…Leases`: what was shown once does not change as the lease is renewed."""
    held = await world.hold()
    shown = held.record

    await held.renew()
    await held.update(lambda record: rules.commit(record, Position("1")))

    assert (shown.counter, shown.checkpoint) == (1, Position("TRIM_HORIZON"))
    assert (held.record.counter, held.record.checkpoint) == (3, Position("1"))


async def test_update_old_lease(world: World) -> None:
    """`testUpdateOldLease`: what the same worker wrote elsewhere in this acquisition is news to this holder."""
    held = await world.hold()
    await world.manager.update(
        await lease_now(world.manager), lambda record: rules.commit(record, Position("5"))
    )

    with pytest.raises(ShutdownError):
        await held.update(lambda record: rules.commit(record, Position("9")))

    assert (await lease_now(world.manager)).record.checkpoint == Position("5")


async def test_lease_that_was_taken_too_long_ago_is_not_held(world: World) -> None:
    """`testIgnoreNoRenewalTimestamp`: theirs has no time; here taking takes time, and may be too late."""
    world.clock.now_seconds = 1_000.0
    held = await world.hold(acquired_seconds=1_000.0 - LEASE_SECONDS)

    assert not held.is_held
    assert not await held.renew()


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        ({"owner": "w2", "handoff_from": "w1"}, True),
        ({"owner": "w2", "handoff_from": "w3"}, False),
        ({"owner": "w2", "handoff_from": None}, False),
    ],
    ids=["matches", "mismatch", "transferred"],
)
async def test_renewal_in_a_hand_off(
    world: World, record: dict[str, str | None], kept: bool
) -> None:
    """`testRenewalDropsLeaseWhenCheckpointOwnerMismatch`, `…RenewShutdownRequestedLeasesIfCheckpointOwnerMatches`."""
    held = await world.hold()
    current = (await lease_now(world.manager)).record
    world.records.put(replace(current, **record))  # type: ignore[arg-type]  # fields of one type

    assert await held.renew() is kept
    assert held.is_held is kept


async def test_hand_off_costs_one_more_try(world: World) -> None:
    """`renewLease_testGracefulShutdown_*`: found at one try, renewed at the next, and on until passed on."""
    held = await world.hold()
    current = (await lease_now(world.manager)).record
    world.records.put(replace(rules.begin_hand_off(current, "w2"), counter=current.counter))
    world.store.writes = 0

    assert await held.renew()
    assert world.store.writes == 2
    for _ in range(3):
        assert await held.renew()
    assert world.store.writes == 5
    await world.manager.assign(await lease_now(world.manager), "w2")

    assert not await held.renew()


async def test_lease_without_a_row_costs_one_try(world: World) -> None:
    """`renewLease_testGracefulShutdown_*` (no row): it is lost, and nothing is tried again."""
    held = await world.hold()
    await world.manager.delete("a")
    world.store.writes = 0

    assert not await held.renew()

    assert world.store.writes == 1
    assert await world.manager.get_lease("a") is None


async def test_lease_in_hand_off_outlives_updates_and_is_passed_on(world: World) -> None:
    """`assignLease` (updates after it fail), `…alwaysRemoveCheckpointOwner`: counters 3, 5, 6 as they go."""
    record = LeaseRecord(key="a", owner="w1", epoch=1, counter=3, checkpoint=Position("1"))
    world.records.put(record)
    held = HeldLease(
        world.manager,
        await lease_now(world.manager),
        lease_seconds=LEASE_SECONDS,
        acquired_monotonic_seconds=0.0,
    )
    seen = await world.manager.assign(await lease_now(world.manager), "w2", graceful=True)
    assert seen is not None
    await held.renew()
    await held.update(lambda record: rules.commit(record, Position("2")))
    assert held.record.counter == 5

    assigned = await world.manager.assign(seen, "w2")

    assert assigned is not None
    assert (assigned.record.counter, assigned.record.handoff_from) == (6, None)
    assert not await held.renew()
    with pytest.raises(ShutdownError):
        await held.update(lambda record: rules.commit(record, Position("3")))
