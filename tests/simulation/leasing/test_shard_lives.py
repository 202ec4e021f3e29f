"""The life of one shard under a worker: parents, failures, ends, and the ways to let go; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.worker.settings import StealWay, WorkerSettings
from broadsheet.testing.allocator.kernel.virtual_loop import run_virtual
from tests.support.memory_records import MemoryRecordStore
from tests.support.scripted_processor import Script
from tests.support.worker_world import WorkerWorld, in_world

SETTINGS = WorkerSettings(take_seconds=5.0, graceful_seconds=5.0, sync_seconds=20.0)


def _settings(way: StealWay) -> WorkerSettings:
    return WorkerSettings(take_seconds=5.0, graceful_seconds=5.0, sync_seconds=20.0, steal=way)


def _called(script: Script, *calls: str) -> Callable[[], bool]:
    return lambda: set(calls) <= set(script.calls)


def test_split_is_followed_and_its_parent_deleted() -> None:
    """KCL ShutdownTaskTest: children are there before the end is; LeaseCleanupManagerTest: the parent goes."""

    async def play(world: WorkerWorld) -> None:
        script = Script()
        world.stream.add("p")
        world.stream.put("p", b"1")
        world.join("w0", script)
        await world.until(_called(script, "process p"), seconds=20)
        world.stream.replace(("p",), ("a", "b"))
        for child in ("a", "b"):
            world.stream.put(child, child.encode())

        await world.until(_called(script, "process a", "process b"), seconds=60)
        assert script.calls.index("ended p") < script.calls.index("initialize a")
        await world.until(lambda: world.records.readable() == ["a", "b"], seconds=60)
        assert script.calls.count("ended p") == 1
        assert "lost p" not in script.calls

    run_virtual(in_world(0, play, SETTINGS))


def test_merged_child_waits_for_both_parents() -> None:
    """KCL BlockOnParentShardTaskTest; a parent that was never checkpointed blocks as well, unlike in vmware-go-kcl."""

    async def play(world: WorkerWorld) -> None:
        script = Script(checkpoints=False)
        world.stream.add("p", "q")
        world.stream.put("q", b"1")
        world.join("w0", script)
        await world.until(_called(script, "process q"), seconds=20)
        world.stream.add("c", parents=("p", "q"))
        world.stream.put("c", b"2")
        world.stream.close("p")
        await world.until(lambda: "c" in world.workers["w0"].held, seconds=60)
        await asyncio.sleep(60)
        assert "initialize c" not in script.calls
        assert world.record("c").holder == "w0"

        world.stream.close("q")
        await world.until(_called(script, "process c"), seconds=60)

    run_virtual(in_world(0, play, SETTINGS))


def test_end_of_a_shard_is_called_until_it_is_checkpointed() -> None:
    """KCL ShutdownTaskTest: a processor that forgets would keep the children waiting for ever."""

    async def play(world: WorkerWorld) -> None:
        script = Script(ends_ignored=2)
        world.stream.add("a")
        world.stream.close("a")
        world.join("w0", script)
        await world.until(lambda: script.calls.count("ended a") == 3, seconds=30)
        await world.until(lambda: world.record("a").holder is None, seconds=5)
        assert world.record("a").is_finished

    run_virtual(in_world(0, play, SETTINGS))


def test_batch_of_a_processor_that_failed_comes_again() -> None:
    """KCL skips the batch; ours begins again at the last commit, after a while in which others may have the shard."""

    async def play(world: WorkerWorld) -> None:
        failures = iter([True])

        def fail_once() -> None:
            if next(failures, False):
                raise ValueError("cannot process it")

        script = Script(on_records=fail_once)
        world.stream.add("a")
        world.stream.put("a", b"1")
        world.join("w0", script)
        await world.until(lambda: script.data == [b"1"], seconds=60)

        assert script.calls == [
            *("initialize a", "process a", "lost a"),
            *("initialize a", "process a"),
        ]
        assert [each.epoch for each in script.initialized] == [1, 2]

    run_virtual(in_world(0, play, SETTINGS))


def test_source_that_fails_is_read_on_without_a_gap_or_a_repetition() -> None:
    """A read is begun again where it was; the processor does not notice."""

    async def play(world: WorkerWorld) -> None:
        script = Script()
        world.stream.failures = [DependencyError("no answer")] * 2
        world.stream.add("a")
        world.stream.put("a", b"1", b"2")
        world.join("w0", script)
        await world.until(lambda: script.data == [b"1", b"2"], seconds=60)
        assert script.calls.count("initialize a") == 1

    run_virtual(in_world(0, play, SETTINGS))


def test_successor_sees_what_was_pending() -> None:
    """KCL InitializeTask: the committed checkpoint to read from, the pending one and its note."""

    async def play(world: WorkerWorld) -> None:
        script = Script()
        world.stream.add("a")
        manager = LeaseManager(MemoryRecordStore(world.records))
        await manager.create_store_if_not_exists()
        begun = LeaseRecord(key="a", checkpoint=Position("3"))
        await manager.create_lease(rules.prepare(begun, Position("5"), b"note"))
        world.join("w0", script)
        await world.until(_called(script, "initialize a"), seconds=30)

        given = script.initialized[0]
        assert given.sequence_number == "3"
        assert given.pending_checkpoint == Position("5")
        assert given.pending_checkpoint_state == b"note"

    run_virtual(in_world(0, play, SETTINGS))


@pytest.mark.parametrize("way", [StealWay.CLAIM, StealWay.HAND_OFF])
def test_asked_holder_checkpoints_before_it_lets_go(way: StealWay) -> None:
    """KCL LeaseGracefulShutdownHandlerTest: called once, then released, then told; nothing is processed twice."""

    async def play(world: WorkerWorld) -> None:
        victim, thief = Script(checkpoints=False), Script()
        world.stream.add("a", "b")
        for key in ("a", "b"):
            world.stream.put(key, key.encode())
        world.join("w0", victim)
        await world.until(_called(victim, "process a", "process b"), seconds=30)
        world.join("w1", thief)
        await world.until(lambda: bool(thief.initialized), seconds=30)

        (moved,) = world.workers["w1"].held
        assert victim.calls[-2:] == [f"requested {moved}", f"lost {moved}"]
        assert thief.initialized[0].sequence_number not in (None, "TRIM_HORIZON")
        await asyncio.sleep(30)
        assert thief.data == []
        assert world.is_balanced()

    run_virtual(in_world(0, play, _settings(way)))


@pytest.mark.parametrize("way", [StealWay.CLAIM, StealWay.HAND_OFF])
def test_holder_that_does_not_let_go_loses_the_lease_in_time(way: StealWay) -> None:
    """KCL LeaseGracefulShutdownHandlerTest, timeout: a processor that hangs cannot keep what others wait for."""

    async def play(world: WorkerWorld) -> None:
        victim, thief = Script(takes_to_stop_seconds=10_000.0), Script()
        world.stream.add("a", "b")
        world.join("w0", victim)
        await world.until(_called(victim, "initialize a", "initialize b"), seconds=30)
        world.join("w1", thief)

        taken_after = await world.until(lambda: bool(thief.initialized), seconds=60)

        # A look, a renewal, the time to finish, a look.
        assert taken_after <= 5 + 3.4 + 5 + 5
        assert any(call.startswith("lost") for call in victim.calls)

    run_virtual(in_world(0, play, _settings(way)))


@pytest.mark.parametrize("way", [StealWay.CLAIM, StealWay.HAND_OFF])
def test_claim_of_a_worker_that_died_holds_nobody_up_for_long(way: StealWay) -> None:
    """The holder lets go for it; after the time to finish and a lease's length anybody may take it."""

    async def play(world: WorkerWorld) -> None:
        script = Script()
        world.stream.add("a", "b")
        world.join("w0", script)
        await world.until(_called(script, "initialize a", "initialize b"), seconds=30)
        world.join("w1", Script())
        asked = [("a", "w1"), ("b", "w1")]
        await world.until(
            lambda: any(
                "w1" in (world.record(key).claim, world.record(key).owner) for key, _ in asked
            ),
            seconds=30,
        )
        world.die("w1")

        await world.until(
            lambda: (
                script.calls.count("initialize a") == 2 or script.calls.count("initialize b") == 2
            ),
            seconds=60,
        )

    run_virtual(in_world(0, play, _settings(way)))


def test_long_batch_does_not_outlive_its_lease_unnoticed() -> None:
    """A paused worker wakes in the middle of a batch: its checkpoint is refused, and it is told that it lost."""

    async def play(world: WorkerWorld) -> None:
        slow, heir = Script(takes_seconds=3.0), Script()
        world.stream.add("a")
        world.stream.put("a", b"1")
        world.join("w0", slow)
        await world.until(_called(slow, "process a"), seconds=30)
        world.pause("w0")
        world.join("w1", heir)
        await world.until(lambda: heir.data == [b"1"], seconds=60)
        world.go_on("w0")
        await world.until(_called(slow, "lost a"), seconds=10)

        assert world.record("a").holder == "w1"
        assert world.record("a").owner_switches == 0
        assert "requested a" not in slow.calls

    run_virtual(in_world(0, play, SETTINGS))


def test_paused_worker_delivers_nothing_when_it_wakes() -> None:
    """What it was woken by comes before any timer that would tell it: each delivery asks the clock itself."""

    async def play(world: WorkerWorld) -> None:
        paused, heir = Script(), Script()
        world.stream.add("a")
        world.join("w0", paused)
        await world.until(_called(paused, "initialize a"), seconds=30)
        world.pause("w0")
        world.stream.put("a", b"1")
        world.join("w1", heir)
        await world.until(lambda: heir.data == [b"1"], seconds=60)
        world.go_on("w0")
        await world.until(_called(paused, "lost a"), seconds=10)

        assert paused.calls == ["initialize a", "lost a"]

    run_virtual(in_world(0, play, SETTINGS))


def test_worker_that_comes_back_under_its_name_takes_its_leases_at_once() -> None:
    """KCL testInitialize: its own rows are adopted at the start; as a new acquisition, for the old may still run."""

    async def play(world: WorkerWorld) -> None:
        world.stream.add("a")
        world.join("w0")
        await world.until(world.is_balanced, seconds=30)
        world.die("w0")
        world.join("w0")
        adopted_after = await world.until(world.is_balanced, seconds=30)

        assert adopted_after <= 2
        assert world.record("a").epoch == 2

    run_virtual(in_world(0, play, SETTINGS))
