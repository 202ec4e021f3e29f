"""How a worker hands off what the leader gave to another, on virtual time: once, in time, and only what is its own.

Origins are in awslabs/amazon-kinesis-client, class `lifecycle.LeaseGracefulShutdownHandlerTest`; rewritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broadsheet.leases import rules
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.worker.settings import Balancing, WorkerSettings
from broadsheet.testing.allocator.kernel.virtual_loop import run_virtual
from tests.support.memory_records import MemoryRecordStore
from tests.support.scripted_processor import Script
from tests.support.worker_world import WorkerWorld, in_world

D = 10.0
GRACEFUL = 30.0
LED = WorkerSettings(balancing=Balancing.LEADER, sync_seconds=20.0, parent_poll_seconds=1000.0)


async def _holder_of(world: WorkerWorld, script: Script, *shards: str) -> None:
    """Let a lone worker, w0, process shards; it leads, too."""
    world.stream.add(*shards)
    world.join("w0", script)
    await world.until(
        lambda: {f"initialize {key}" for key in shards} <= set(script.calls), seconds=60
    )


async def _hand_off(world: WorkerWorld, key: str, to: str) -> None:
    """Begin it, as the leader does."""
    manager = LeaseManager(MemoryRecordStore(world.records))
    seen = await manager.get_lease(key)
    assert seen is not None
    assert await manager.assign(seen, to, graceful=True) is not None


def _was_passed_on(world: WorkerWorld, key: str, to: str) -> Callable[[], bool]:
    return lambda: world.record(key).holder == to and world.record(key).handoff_from is None


def test_processor_is_asked_once_however_often_its_worker_sees_the_hand_off() -> None:
    """`testIgnoreDuplicatEnqueues`: renewals go on while it finishes; other leases are asked for on their own."""

    async def play(world: WorkerWorld) -> None:
        script = Script(takes_to_stop_seconds=20.0)
        await _holder_of(world, script, "a", "b")
        await _hand_off(world, "a", "w9")
        await asyncio.sleep(5.0)
        await _hand_off(world, "b", "w9")
        await world.until(_was_passed_on(world, "b", "w9"), seconds=30)

        assert script.calls.count("requested a") == script.calls.count("requested b") == 1

    run_virtual(in_world(0, play, LED))


def test_next_owner_begins_where_the_processor_ended_when_it_was_asked() -> None:
    """It discovers a lease that names it as the owner, and waits until the holder passed it on."""

    async def play(world: WorkerWorld) -> None:
        asked, heir = Script(checkpoints=False, takes_to_stop_seconds=15.0), Script()
        for key in ("a", "b"):
            world.stream.add(key)
            world.stream.put(key, key.encode())
        world.join("w0", asked)
        await world.until(lambda: len(asked.data) == 2, seconds=60)
        world.join("w1", heir)
        await world.until(lambda: bool(heir.initialized), seconds=3 * 24 + D / 3 + 15 + D)

        (moved,) = world.workers["w1"].held
        assert asked.calls[-2:] == [f"requested {moved}", f"lost {moved}"]
        assert heir.initialized[0].position == world.stream.positions(moved)[-1]
        await asyncio.sleep(30.0)
        assert heir.data == []

    run_virtual(in_world(0, play, LED))


def test_lease_is_passed_on_as_soon_as_the_processor_has_finished() -> None:
    """`testMonitorTransfersLeaseWhenConsumerShutsDownBeforeTimeout`: nobody waits for the rest of its time.

    Until it has, the lease is its own: `testMonitorGracefulShutdownLeases`.
    """

    async def play(world: WorkerWorld) -> None:
        script = Script(takes_to_stop_seconds=10.0)
        await _holder_of(world, script, "a")
        await _hand_off(world, "a", "w9")
        await world.until(lambda: "requested a" in script.calls, seconds=5)
        await asyncio.sleep(8.0)
        assert world.record("a").holder == "w0"

        await world.until(_was_passed_on(world, "a", "w9"), seconds=4)
        assert script.calls[-1] == "lost a"

    run_virtual(in_world(0, play, LED))


def test_lease_is_passed_on_when_the_processor_does_not_finish_in_time() -> None:
    """`testAssignLeaseIsCalledBecauseTimeoutReached`: by its own worker, after graceful_seconds and not before."""

    async def play(world: WorkerWorld) -> None:
        script = Script(takes_to_stop_seconds=10_000.0)
        await _holder_of(world, script, "a")
        await _hand_off(world, "a", "w9")
        await world.until(lambda: "requested a" in script.calls, seconds=5)
        await asyncio.sleep(GRACEFUL - 2)
        assert world.record("a").holder == "w0"
        assert world.record("a").epoch == 2  # Given, and taken.

        await world.until(_was_passed_on(world, "a", "w9"), seconds=4)

    run_virtual(in_world(0, play, LED))


def test_lease_whose_processor_never_began_is_passed_on() -> None:
    """`testEnqueueShutdownTransfersLeaseWhenConsumerWasNeverStarted`: it waits for a parent; there is nobody to ask.

    Nor is there when it was not found: `testEnqueueShutdownTransfersLeaseWhenShardConsumerNotFound`.
    """

    async def play(world: WorkerWorld) -> None:
        script = Script(checkpoints=False)
        world.stream.add("p")
        world.stream.add("c", parents=("p",))
        manager = LeaseManager(MemoryRecordStore(world.records))
        await manager.create_store_if_not_exists()
        begin = Position("TRIM_HORIZON")
        await manager.create_lease(LeaseRecord(key="c", checkpoint=begin, parents=frozenset({"p"})))
        await manager.create_lease(LeaseRecord(key="p", checkpoint=begin))
        world.join("w0", script)
        await world.until(lambda: "c" in world.workers["w0"].held, seconds=60)

        await _hand_off(world, "c", "w9")

        await world.until(_was_passed_on(world, "c", "w9"), seconds=5)
        assert not [call for call in script.calls if call.endswith(" c")]

    run_virtual(in_world(0, play, LED))


def test_lease_of_a_worker_that_forgot_it_is_passed_on_by_the_leader() -> None:
    """`testTransferLeaseWhenLeaseCoordinatorNoLongerHoldsItInMemory`: the row still says that w1 hands off."""

    async def play(world: WorkerWorld) -> None:
        leader, forgetful = Script(), Script()
        world.join("w0", leader)
        await world.until(lambda: world.leaders() == ["w0"], seconds=30)
        promised = rules.begin_hand_off(
            LeaseRecord(key="a", owner="w1", epoch=1, checkpoint=Position("TRIM_HORIZON")), "w0"
        )
        world.records.put(promised)
        world.stream.add("a")
        world.join("w1", forgetful)

        await world.until(lambda: "a" in world.workers["w0"].held, seconds=2 * 24 + D + D)
        assert forgetful.calls == []

    run_virtual(in_world(0, play, LED))


def test_lease_that_nobody_asks_for_is_left_alone() -> None:
    """`testIgnoreNonPendingShutdownLease`."""

    async def play(world: WorkerWorld) -> None:
        script = Script()
        await _holder_of(world, script, "a")
        await asyncio.sleep(100.0)
        assert script.calls == ["initialize a"]
        assert world.record("a").epoch == 2

    run_virtual(in_world(0, play, LED))


def test_hand_off_of_another_worker_is_not_touched() -> None:
    """`testAssignLeaseIsNotCalledIfCheckpointOwnerIsNotTheSameWorker`: what w0 had is lost to it."""

    async def play(world: WorkerWorld) -> None:
        script = Script()
        await _holder_of(world, script, "a")
        taken = rules.take(world.record("a"), "w1")
        world.records.put(rules.begin_hand_off(taken, "w9"))
        await world.until(lambda: "lost a" in script.calls, seconds=5)

        assert "requested a" not in script.calls
        assert world.record("a").handoff_from == "w1"

    run_virtual(in_world(0, play, LED))


def test_worker_is_stopped_once_however_often_it_is_told() -> None:
    """`testSubsequentShutdowns`: it leaves the fleet, and passes what is in hand-off to its next owner."""

    async def play(world: WorkerWorld) -> None:
        script = Script(takes_to_stop_seconds=2.0)
        await _holder_of(world, script, "a", "b")
        await _hand_off(world, "a", "w9")
        worker = world.workers["w0"]
        worker.stop()
        worker.stop()
        await world.leave("w0")

        assert script.calls.count("requested a") == script.calls.count("requested b") == 1
        assert world.record("a").holder == "w9"
        assert world.record("b").holder is None
        assert world.fleet.readable() == ["leader"]
        leader = world.fleet.current("leader")
        assert leader is not None
        assert leader.record.holder is None

    run_virtual(in_world(0, play, LED))
