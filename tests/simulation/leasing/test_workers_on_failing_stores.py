"""A worker whose store fails now and then, on virtual time: what it tries again, and what it keeps.

Origins are in awslabs/amazon-kinesis-client, package `leases.dynamodb` unless a test says otherwise; rewritten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from broadsheet.leases.errors import DependencyError, ThrottlingError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.worker.settings import WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.virtual_loop import VirtualClock, run_virtual, running_loop
from tests.support.eventually import eventually
from tests.support.failing_records import FailingRecords
from tests.support.memory_records import MemoryRecords, MemoryRecordStore
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import Script, ScriptedProcessor

SETTINGS = WorkerSettings(take_seconds=5.0, sync_seconds=1_000.0, renew_seconds=3.0)


class World:
    """A worker with a stream of two shards."""

    def __init__(self) -> None:
        self.records = MemoryRecords()
        self.store = FailingRecords(MemoryRecordStore(self.records))
        self.stream = MemoryStream(poll_seconds=100.0)
        self.stream.add("a", "b")
        self.script = Script(checkpoints=False)
        self.worker = LeaseWorker(
            "w1",
            store=self.store,
            source=self.stream,
            new_processor=lambda: ScriptedProcessor(self.script),
            settings=SETTINGS,
            clock=VirtualClock(running_loop()),
            random=Random(7),
        )

    def shown(self, name: str, **labels: str) -> float:
        """Return a metric of the worker."""
        labels = {"worker": "w1", **labels}
        return self.worker.metrics.registry.get_sample_value(f"broadsheet_{name}", labels) or 0.0

    def counter(self, key: str) -> int:
        """Return how often a lease was written."""
        found = self.records.current(key)
        assert found is not None
        return found.record.counter


def _play(scene: Callable[[World], Awaitable[None]]) -> None:
    async def play() -> None:
        world = World()
        async with TaskGroup() as group:
            group.start_soon(world.worker.run(), name="w1")
            await scene(world)
            group.stop()

    run_virtual(play())


async def _holds(world: World, *keys: str) -> None:
    await eventually(lambda: [*world.worker.held] == [*keys], timeout_seconds=60)


def test_throttled_renewals_are_tried_twice_and_the_leases_kept() -> None:
    """`RENEWAL_RETRIES` there, which never come to it: throttling is hidden from what would try again."""

    async def scene(world: World) -> None:
        await _holds(world, "a", "b")
        before = {key: world.counter(key) for key in ("a", "b")}
        # Both leases at once, then one of the two once more.
        failures = [ThrottlingError("busy")] * 3
        world.store.failures["replace"] = [*failures]
        await eventually(lambda: len(world.store.failures["replace"]) < len(failures))
        throttled_seconds = running_loop().time()
        await eventually(lambda: world.counter("a") + world.counter("b") > sum(before.values()))

        assert running_loop().time() - throttled_seconds < 1.0
        assert world.shown("lease_renewals_total", outcome="throttled") == 3
        kept = [key for key in ("a", "b") if world.counter(key) == before[key]]
        await eventually(lambda: all(world.counter(key) > before[key] for key in kept))
        assert [*world.worker.held] == ["a", "b"]
        assert not [call for call in world.script.calls if call.startswith("lost")]

    _play(scene)


def test_outage_shorter_than_a_lease_costs_nothing_and_a_longer_one_all() -> None:
    """`testLeaseRenewerDoesNotUpdateInMemoryLeaseIfDDBFailsUpdate`, `testLeaseTimeout`: then they are taken again."""

    async def scene(world: World) -> None:
        await _holds(world, "a", "b")
        world.store.failures["replace"] = [DependencyError("no answer")] * 4
        await eventually(lambda: not world.store.failures["replace"], timeout_seconds=10)
        renewed = {key: world.counter(key) for key in ("a", "b")}
        await eventually(lambda: all(world.counter(key) > renewed[key] for key in renewed))
        assert [*world.worker.held] == ["a", "b"]

        for operation in ("replace", "scan", "get"):
            world.store.failures[operation] = [DependencyError("no answer")] * 1_000
        await eventually(lambda: not world.worker.held, timeout_seconds=SETTINGS.lease_seconds + 1)
        assert sorted(world.script.calls[-2:]) == ["lost a", "lost b"]

        world.store.failures.clear()
        await _holds(world, "a", "b")

    _play(scene)


def test_unreadable_lease_does_not_keep_a_worker_from_starting() -> None:
    """`initialize_badLeaseInTableExists…`: it takes the others, its own of before first, and leaves that one alone."""

    async def scene(world: World) -> None:
        world.records.found = {}
        world.records.put(LeaseRecord(key="a", owner="w1", epoch=3, checkpoint=Position("5")))
        world.records.put(LeaseRecord(key="b", checkpoint=Position("TRIM_HORIZON")))
        world.records.put(LeaseRecord(key="bad", owner="w1", epoch=1))
        world.records.spoiled.add("bad")

        await _holds(world, "a", "b")

        assert world.script.calls[0] == "initialize a"
        spoilt = world.records.current("bad")
        assert spoilt is not None
        assert spoilt.record.epoch == 1

    _play(scene)


def test_lease_that_cannot_be_released_is_dropped() -> None:
    """`lifecycle.ShutdownTaskTest`, a hand-off whose transfer fails: it is over here, and ends by itself."""

    async def scene(world: World) -> None:
        await _holds(world, "a", "b")
        world.store.failures["replace"] = [DependencyError("no answer")] * 1_000

        world.worker.stop()
        await _holds(world)

        assert sorted(world.script.calls[-2:]) == ["lost a", "lost b"]
        for key in ("a", "b"):
            found = world.records.current(key)
            assert found is not None
            assert found.record.holder == "w1"

    _play(scene)
