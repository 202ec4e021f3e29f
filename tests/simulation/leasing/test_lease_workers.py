"""Workers that die, pause, join and leave, on virtual time: what must hold of leases is checked at every step."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from broadsheet.leases.worker.settings import Balancing, StealWay, WorkerSettings
from broadsheet.testing.allocator.kernel.virtual_loop import run_virtual
from tests.support.worker_world import WorkerWorld, in_world

QUICK = WorkerSettings(
    lease_seconds=10.0, take_seconds=10.0, steals_max=10, graceful_seconds=5.0, sync_seconds=20.0
)


def _settings(way: StealWay) -> WorkerSettings:
    return WorkerSettings(
        lease_seconds=10.0,
        take_seconds=10.0,
        steals_max=10,
        steal=way,
        graceful_seconds=5.0,
        sync_seconds=20.0,
    )


@pytest.mark.parametrize("way", list(StealWay))
@pytest.mark.parametrize("seed", range(3))
def test_workers_that_come_and_go_process_everything(seed: int, way: StealWay) -> None:
    """Deaths, pauses, joins and resharding, in any order: each record is processed at least once."""

    async def play(world: WorkerWorld) -> None:
        random = Random(seed)
        world.latency_seconds_max = 0.05
        world.stream.add(*(f"s{number}" for number in range(8)))
        open_shards = [f"s{number}" for number in range(8)]
        world.join("w0")
        world.join("w1")
        for step in range(30):
            _step(world, random, open_shards, step)
            await asyncio.sleep(random.uniform(0.0, 12.0))
        for name in world.workers:
            world.go_on(name)
        await world.until(world.is_balanced, seconds=200)
        await world.until(world.all_processed, seconds=60)

    run_virtual(in_world(seed, play, _settings(way)))


def _step(world: WorkerWorld, random: Random, open_shards: list[str], step: int) -> None:
    """Put records, and let one thing happen."""
    for _ in range(10):
        world.stream.put(random.choice(open_shards), *([b"x"] * random.randint(1, 3)))
    living = sorted(world.workers)
    happens = random.choice(["join", "die", "pause", "go on", "split", "merge", "nothing"])
    if happens == "join" and len(living) < 5:
        world.join(f"w{step + 2}")
    elif happens == "die" and len(living) > 1:
        world.die(random.choice(living))
    elif happens == "pause" and len(living) > 1:
        world.pause(living[0])
    elif happens == "go on":
        for name in living:
            world.go_on(name)
    elif happens == "split":
        _replace(world, open_shards, (open_shards[0],), (f"s{step}a", f"s{step}b"))
    elif happens == "merge" and len(open_shards) > 1:
        _replace(world, open_shards, tuple(open_shards[:2]), (f"s{step}c",))


def _replace(
    world: WorkerWorld, open_shards: list[str], parents: tuple[str, ...], children: tuple[str, ...]
) -> None:
    world.stream.replace(parents, children)
    world.parents.update(dict.fromkeys(children, parents))
    open_shards[:] = [key for key in open_shards if key not in parents] + list(children)


def test_thousand_leases_are_balanced_within_a_minute_of_a_death_and_a_join() -> None:
    """With the defaults: a death is noticed after at most 50 s, and who joins asks for all its share at once."""

    async def play(world: WorkerWorld) -> None:
        world.stream.poll_seconds = 600.0
        world.stream.add(*(f"s{number:04d}" for number in range(1_000)))
        for name in ("w0", "w1", "w2"):
            world.join(name)
        await world.until(world.is_balanced, seconds=120)

        world.die("w1")
        assert await world.until(world.is_balanced, seconds=60) <= 60

        world.join("w3")
        assert await world.until(world.is_balanced, seconds=60) <= 60

    run_virtual(in_world(1, play))


def test_worker_that_stops_leaves_its_leases_free() -> None:
    """Its processors checkpoint, then are told that they lost the lease; others need not wait for its leases to end."""

    async def play(world: WorkerWorld) -> None:
        world.stream.add("a", "b")
        world.join("w0")
        world.stream.put("a", b"1")
        await world.until(world.is_balanced, seconds=60)
        await world.until(world.all_processed, seconds=5)

        await world.leave("w0")

        for key in ("a", "b"):
            found = world.records.current(key)
            assert found is not None
            assert found.record.holder is None
        assert sorted(world.ledger.events) == ["asked a", "asked b", "lost a", "lost b"]

    run_virtual(in_world(3, play, QUICK))


@pytest.mark.parametrize("balancing", list(Balancing))
def test_first_worker_of_a_new_application_begins_at_once(balancing: Balancing) -> None:
    """Its first look shows no leases, for it creates them beside it; the next look would be 90 s later."""

    async def play(world: WorkerWorld) -> None:
        world.stream.add("s0", "s1")
        world.stream.put("s0", b"x")
        world.join("w0")
        await world.until(lambda: bool(world.ledger.times), seconds=2.0)

    settings = WorkerSettings(lease_seconds=45.0, balancing=balancing)
    run_virtual(in_world(0, play, settings))


@pytest.mark.parametrize("balancing", list(Balancing))
def test_children_of_a_finished_shard_begin_at_once(balancing: Balancing) -> None:
    """A reshard must not stop a stream for a look at the leases, and another at the parents."""

    async def play(world: WorkerWorld) -> None:
        world.stream.add("p")
        world.join("w0")
        await world.until(world.is_balanced, seconds=5.0)
        world.stream.replace(("p",), ("a", "b"))
        world.parents.update(a=("p",), b=("p",))
        world.stream.put("a", b"x")
        world.stream.put("b", b"x")
        await world.until(lambda: len(world.ledger.times) == 2, seconds=2.0)

    settings = WorkerSettings(lease_seconds=45.0, balancing=balancing)
    run_virtual(in_world(0, play, settings))


def test_unreadable_row_leaves_the_rest_of_the_fleet_at_work() -> None:
    """One bad row ended each worker of an application: it is left out, and its shard waits for an operator."""

    async def play(world: WorkerWorld) -> None:
        world.stream.add("s0", "s1")
        world.join("w0")
        await world.until(world.is_balanced, seconds=30.0)
        await world.leave("w0")
        world.records.spoiled.add("s0")
        world.join("w1")
        world.stream.put("s0", b"x")
        world.stream.put("s1", b"x")
        await world.until(lambda: len(world.ledger.times) == 1, seconds=60.0)
        await asyncio.sleep(2 * QUICK.sync_seconds)
        assert list(world.workers["w1"].held) == ["s1"]
        world.records.spoiled.clear()
        await world.until(world.all_processed, seconds=60.0)

    run_virtual(in_world(0, play, QUICK))
