"""Until when a holder may act, and what ends its acquisition: by its own clock, by others, by lost answers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError, ShutdownError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.record_processor.held_lease import HeldLease
from broadsheet.leases.store import RecordStore
from tests.support.lost_answers import LostAnswers
from tests.support.memory_records import MemoryRecords, MemoryRecordStore
from tests.support.stepping_clock import SteppingClock

LEASE_SECONDS = 10.0


class Silent:
    """Lets nothing be read for a while; what is written goes on its way."""

    deadline_monotonic_seconds: float
    """Set for a store that ends leases itself."""

    def __init__(self, store: LostAnswers) -> None:
        self._store = store
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> Versioned | None:
        """Fail, or pass it on."""
        if self.broken:
            raise DependencyError("no answer")
        return await self._store.get(key)


class World:
    """One lease, two workers' ways to it, and the holder's clock."""

    def __init__(self) -> None:
        self.clock = SteppingClock()
        records = MemoryRecords()
        self.store = LostAnswers(MemoryRecordStore(records))
        self.silent = Silent(self.store)
        self.manager = LeaseManager(cast("RecordStore", self.silent), clock=self.clock)
        self.rival = LeaseManager(MemoryRecordStore(records))

    async def take(self, worker: str = "w1") -> HeldLease:
        """Hold the lease, which is created at first."""
        await self.manager.create_store_if_not_exists()
        await self.manager.create_lease(LeaseRecord(key="a", checkpoint=Position("TRIM_HORIZON")))
        asked = self.clock.now_seconds
        taken = await self.manager.take(await self.current(), worker)
        assert taken is not None
        return HeldLease(
            self.manager,
            taken,
            lease_seconds=LEASE_SECONDS,
            acquired_monotonic_seconds=asked,
        )

    async def current(self) -> Versioned:
        """The lease as it is."""
        found = await self.rival.get_lease("a")
        assert found is not None
        return found


@pytest.fixture
def world() -> World:
    """Nothing is there yet."""
    return World()


async def test_commit_and_prepare_move_the_counter_by_one_each(world: World) -> None:
    """KCL DynamoDBLeaseCoordinatorIntegrationTest.testUpdateCheckpoint: fields and counter, exactly."""
    held = await world.take()
    before = held.record.counter

    await held.update(lambda record: rules.commit(record, Position("1")))
    await held.update(lambda record: rules.prepare(record, Position("2"), b"note"))
    pending = (await world.current()).record
    await held.update(lambda record: rules.commit(record, Position("2")))

    assert (pending.checkpoint, pending.pending, pending.pending_state) == (
        Position("1"),
        Position("2"),
        b"note",
    )
    done = (await world.current()).record
    assert (done.checkpoint, done.pending, done.pending_state) == (Position("2"), None, None)
    assert done.counter == before + 3


async def test_renewed_lease_is_held_on(world: World) -> None:
    """KCL DynamoDBLeaseRenewerIntegrationTest.testSimpleRenew: each renewal lasts from when it was sent."""
    held = await world.take()
    world.clock.now_seconds = 9.0
    assert await held.renew()

    world.clock.now_seconds = 18.9
    assert held.is_held
    world.clock.now_seconds = 19.0
    assert not held.is_held


async def test_expired_lease_is_not_held_even_if_nobody_took_it(world: World) -> None:
    """KCL testLeaseTimeout: neither a checkpoint nor a renewal brings it back, for good."""
    held = await world.take()
    world.clock.now_seconds = LEASE_SECONDS
    before = await world.current()

    with pytest.raises(ShutdownError):
        await held.update(lambda record: rules.commit(record, Position("1")))
    world.clock.now_seconds = 0.0
    assert not await held.renew()

    assert await world.current() == before


async def test_zombie_commit_after_a_take_over_changes_nothing(world: World) -> None:
    """KCL testUpdateLostLease; its own clock stood still, so only the store can tell: and it is told at once."""
    held = await world.take()
    taken = await world.rival.take(await world.current(), "w2")

    with pytest.raises(ShutdownError):
        await held.update(lambda record: rules.commit(record, Position("1")))

    assert held.ended
    assert await world.current() == taken


async def test_lease_that_was_lost_and_taken_again_is_another(world: World) -> None:
    """KCL testUpdateRegainedLease, testUpdateCheckpointBadConcurrencyToken: the old processor stays stopped."""
    old = await world.take()
    await world.rival.take(await world.current(), "w2")
    new = await world.take()

    with pytest.raises(ShutdownError):
        await old.update(lambda record: rules.commit(record, Position("1")))
    await new.update(lambda record: rules.commit(record, Position("2")))

    assert (await world.current()).record.checkpoint == Position("2")


async def test_renewal_learns_of_a_claim_and_of_a_hand_off(world: World) -> None:
    """KCL renewLease_testGracefulShutdown: the holder renews on, and knows who waits; its commits go through."""
    held = await world.take()
    await world.rival.assign(await world.current(), "w2", graceful=True)

    assert await held.renew()
    assert (held.record.owner, held.record.handoff_from) == ("w2", "w1")
    await held.update(lambda record: rules.commit(record, Position("1")))
    await held.give_up()

    passed = (await world.current()).record
    assert (passed.holder, passed.epoch, passed.checkpoint) == ("w2", 2, Position("1"))
    with pytest.raises(ShutdownError):
        await held.update(lambda record: rules.commit(record, Position("2")))


async def test_hand_off_that_begins_while_the_holder_gives_up_is_honoured(world: World) -> None:
    """It has not heard of it; releasing what it last saw would leave the lease to expire."""
    held = await world.take()
    await world.rival.assign(await world.current(), "w2", graceful=True)

    await held.give_up()

    assert (await world.current()).record.holder == "w2"


@pytest.mark.parametrize("loss", ["request", "answer"])
async def test_lost_answer_does_not_lose_the_lease(world: World, loss: str) -> None:
    """KCL drops a lease whose update was retried below it; whatever became of ours, the next write goes on from it."""
    held = await world.take()
    world.store.losses = [loss]
    world.silent.broken = True
    with pytest.raises(DependencyError):
        await held.update(lambda record: rules.commit(record, Position("1")))

    world.silent.broken = False
    await held.update(lambda record: rules.commit(record, Position("2")))

    assert await held.renew()
    assert (await world.current()).record.checkpoint == Position("2")
    assert (await world.current()).record.epoch == 1


async def test_failed_renewal_leaves_the_lease_until_its_deadline(world: World) -> None:
    """KCL testLeaseRenewerDoesNotUpdateInMemoryLeaseIfDDBFailsUpdate: an outage shorter than a lease costs nothing."""
    held = await world.take()
    before = held.record
    world.silent.broken = True
    world.store.losses = ["request"]
    world.clock.now_seconds = 9.0
    with pytest.raises(DependencyError):
        await held.renew()

    assert held.record == before
    assert held.is_held
    world.silent.broken = False
    assert await held.renew()
    assert held.deadline_monotonic_seconds == 19.0


async def test_look_at_all_leases_renews_only_what_is_not_newer(world: World) -> None:
    """Where renewing writes nothing, a listing that was under way during a commit must not undo what is known of it."""
    held = await world.take()
    listed = await world.current()
    world.clock.now_seconds = 1.0
    asked = world.clock.now_seconds
    world.clock.now_seconds = 2.0
    await held.update(lambda record: rules.commit(record, Position("1")))

    assert held.learn(listed, asked_monotonic_seconds=asked)
    await held.update(lambda record: rules.commit(record, Position("2")))
    world.clock.now_seconds = 5.0
    assert held.learn(await world.current(), asked_monotonic_seconds=4.0)
    assert held.deadline_monotonic_seconds == 14.0

    await world.rival.take(await world.current(), "w2")
    world.clock.now_seconds = 6.0
    assert not held.learn(await world.current(), asked_monotonic_seconds=5.5)


async def test_store_that_ends_leases_may_end_them_sooner(world: World) -> None:
    """A read that succeeds does not prolong an etcd lease; what its client says of that counts as well."""
    world.silent.deadline_monotonic_seconds = 4.0
    held = await world.take()

    world.clock.now_seconds = 4.0

    assert not held.is_held


async def test_pending_checkpoint_survives_changes_of_owner(world: World) -> None:
    """Two owners later it is still there, with its note; any commit ends it."""
    first = await world.take("w1")
    await first.update(lambda record: rules.prepare(record, Position("7"), b"note"))
    await world.take("w2")
    third = await world.take("w3")

    assert (third.record.pending, third.record.pending_state) == (Position("7"), b"note")
    assert third.record.owner_switches == 2
    await third.update(lambda record: rules.commit(record, Position("3")))
    assert (await world.current()).record.pending is None
