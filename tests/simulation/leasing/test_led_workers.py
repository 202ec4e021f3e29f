"""Workers with a leader that dies, pauses or steps down, on virtual time: all leases are held again, never by two."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from broadsheet.leases.worker.settings import Balancing, WorkerSettings
from broadsheet.testing.allocator.kernel.virtual_loop import run_virtual
from tests.support.scripted_processor import Script
from tests.support.worker_world import WorkerWorld, in_world

LED = WorkerSettings(balancing=Balancing.LEADER, sync_seconds=20.0, graceful_seconds=5.0)
ELECTED_SECONDS = 120 + 24
"""A dead leader's row must stand still for its length, and then be looked at."""
ASSIGNED_SECONDS = 24 + 10
"""A pass, and a look for what it assigned."""


def _settled(world: WorkerWorld) -> bool:
    return len(world.leaders()) == 1 and world.is_balanced()


def _names(count: int) -> list[str]:
    return [f"s{number}" for number in range(count)]


async def _led(world: WorkerWorld, *names: str, leases: int) -> str:
    """Let workers join, and return who leads once each lease is held where it was assigned."""
    world.stream.add(*_names(leases))
    for name in names:
        world.join(name)
    await world.until(lambda: _settled(world), seconds=120)
    (leader,) = world.leaders()
    return leader


def test_fleet_elects_one_leader_that_gives_everybody_a_share() -> None:
    """A lone worker gets all; who joins is discovered without a lease, and gets its share by hand-offs."""

    async def play(world: WorkerWorld) -> None:
        world.stream.add(*_names(9))
        world.join("w0")
        await world.until(lambda: _settled(world), seconds=20)
        world.join("w1")
        world.join("w2")

        await world.until(lambda: _settled(world), seconds=3 * 24 + 4 + 10)

        assert world.leaders() == ["w0"]
        assert sorted(world.counts().values()) == [3, 3, 3]
        moved = [event for event in world.ledger.events if event.startswith("lost")]
        assert sorted(moved) == sorted(
            event.replace("asked", "lost")
            for event in world.ledger.events
            if event.startswith("asked")
        )

    run_virtual(in_world(0, play, LED))


def test_leases_of_a_dead_worker_are_processed_again_within_two_passes_and_a_look() -> None:
    """It is seen to stand still in two passes; what is assigned then is looked for every 10 s."""

    async def play(world: WorkerWorld) -> None:
        leader = await _led(world, "w0", "w1", "w2", leases=9)

        world.die(next(name for name in world.workers if name != leader))
        await world.until(lambda: _settled(world), seconds=2 * 24 + 10)

    run_virtual(in_world(5, play, LED))


def test_workers_that_take_for_themselves_live_with_a_leader() -> None:
    """While one way is changed for the other: all leases are held and shared, and then nothing moves to and fro."""

    async def play(world: WorkerWorld) -> None:
        takes = WorkerSettings(sync_seconds=20.0, graceful_seconds=5.0)
        world.stream.add(*_names(12))
        world.join("t0", settings=takes)
        world.join("t1", settings=takes)
        await world.until(world.is_balanced, seconds=120)
        world.join("w0")
        world.join("w1")
        await world.until(lambda: _settled(world), seconds=200)
        await asyncio.sleep(60.0)
        epochs = [world.record(key).epoch for key in _names(12)]
        await asyncio.sleep(200.0)
        assert _settled(world)
        assert epochs == [world.record(key).epoch for key in _names(12)]

        world.die("t0")
        await world.until(lambda: _settled(world), seconds=200)

    run_virtual(in_world(6, play, LED))


def test_leader_that_dies_is_replaced_and_its_leases_are_held_again() -> None:
    """The row of the dead stands still for 120 s; then another is elected, and assigns what the dead one held."""

    async def play(world: WorkerWorld) -> None:
        leader = await _led(world, "w0", "w1", "w2", leases=9)

        world.die(leader)
        await world.until(lambda: bool(world.leaders()), seconds=ELECTED_SECONDS)
        await world.until(lambda: _settled(world), seconds=ASSIGNED_SECONDS)

    run_virtual(in_world(1, play, LED))


def test_leader_that_stops_leaves_no_gap() -> None:
    """It gives the lock back, so another leads at its next look."""

    async def play(world: WorkerWorld) -> None:
        leader = await _led(world, "w0", "w1", leases=4)

        await world.leave(leader)

        await world.until(lambda: _settled(world), seconds=24 + ASSIGNED_SECONDS)

    run_virtual(in_world(2, play, LED))


def test_paused_leader_that_wakes_takes_nothing_from_the_living() -> None:
    """It believes that all others are dead, by its old look; what it writes rests on that, and is refused."""

    async def play(world: WorkerWorld) -> None:
        leader = await _led(world, "w0", "w1", "w2", leases=6)
        world.pause(leader)
        await world.until(lambda: world.leaders() != [leader], seconds=300)
        await asyncio.sleep(100)
        epochs = {key: world.record(key).epoch for key in _names(6)}
        world.go_on(leader)
        await asyncio.sleep(5)

        assert len(world.leaders()) == 1
        assert world.leaders() != [leader]
        assert {key: world.record(key).epoch for key in _names(6)} == epochs
        await world.until(lambda: _settled(world), seconds=120)

    run_virtual(in_world(3, play, LED))


def test_lease_whose_processor_failed_goes_to_another_worker() -> None:
    """Its worker has one lease less then, and would get it again for ever."""

    async def play(world: WorkerWorld) -> None:
        def fail() -> None:
            raise ValueError("cannot process it here")

        broken = Script(on_records=fail)
        world.stream.add("a", "b")
        world.join("w0", broken)
        await world.until(lambda: len(broken.initialized) == 2, seconds=60)
        world.join("w1")
        await world.until(lambda: _settled(world), seconds=120)
        for key in ("a", "b"):
            world.stream.put(key, key.encode())
        await world.until(lambda: sum(map(len, world.ledger.delivered.values())) == 2, seconds=120)

    run_virtual(in_world(4, play, LED))


@pytest.mark.parametrize("seed", range(4))
def test_led_workers_that_come_and_go_process_everything(seed: int) -> None:
    """Deaths, pauses and joins, of the leader as of others, in any order: one leader in the end, all is processed."""

    async def play(world: WorkerWorld) -> None:
        random = Random(seed)
        world.latency_seconds_max = 0.05
        world.stream.add(*_names(8))
        for name in ("w0", "w1"):
            world.join(name)
        for step in range(25):
            for _ in range(5):
                world.stream.put(random.choice(_names(8)), b"x")
            _step(world, random, step)
            await asyncio.sleep(random.uniform(0.0, 30.0))
            assert len(world.leaders()) <= 1
        for name in world.workers:
            world.go_on(name)
        await world.until(lambda: _settled(world), seconds=2 * ELECTED_SECONDS + 120)
        await world.until(world.all_processed, seconds=60)

    run_virtual(in_world(seed, play, LED))


def _step(world: WorkerWorld, random: Random, step: int) -> None:
    living = sorted(world.workers)
    happens = random.choice(["join", "die", "leader dies", "pause", "go on", "nothing"])
    leaders = world.leaders()
    if happens == "join" and len(living) < 5:
        world.join(f"w{step + 2}")
    elif happens == "die" and len(living) > 1:
        world.die(random.choice(living))
    elif happens == "leader dies" and leaders and len(living) > 1:
        world.die(leaders[0])
    elif happens == "pause" and len(living) > 1:
        world.pause(random.choice(living))
    elif happens == "go on":
        for name in living:
            world.go_on(name)
