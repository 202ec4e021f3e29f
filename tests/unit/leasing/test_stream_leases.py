"""The leases that a worker makes for the shards of a stream: what may fail on the way, and what must not.

Origins are in awslabs/amazon-kinesis-client, `lifecycle.ShutdownTaskTest` and `leases.LeaseCleanupManagerTest`; written
again.
"""

from __future__ import annotations

import pytest

from broadsheet.leases.errors import BlockedOnParentError, UnreadableLeaseError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.metrics import LeaseMetrics
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.worker.metrics import WorkerMetrics
from broadsheet.leases.worker.stream_sync import StreamSync
from broadsheet.runtime.clock import SystemClock
from tests.support.leases_at_hand import lease_now, taken_lease
from tests.support.memory_records import MemoryRecords, MemoryRecordStore
from tests.support.memory_stream import MemoryStream


class World:
    """A stream and its leases."""

    def __init__(self) -> None:
        store = MemoryRecordStore(MemoryRecords(found={}))
        self.stream = MemoryStream()
        self.records = store.records
        self.manager = LeaseManager(store)
        self.metrics = LeaseMetrics()
        self.created = 0
        self.sync = StreamSync(
            self.stream,
            start=Position("TRIM_HORIZON"),
            manager=self.manager,
            metrics=WorkerMetrics(self.metrics, "w", SystemClock()),
            on_created=self._count,
        )

    def _count(self) -> None:
        self.created += 1

    async def lease(self, key: str, checkpoint: str, *parents: str) -> None:
        """Create a lease."""
        await self.manager.create_lease(
            LeaseRecord(key=key, checkpoint=Position(checkpoint), parents=frozenset(parents))
        )

    async def keys(self) -> list[str]:
        """Return what has a lease."""
        return [found.record.key for found in await self.manager.list_leases()]


@pytest.fixture
def world() -> World:
    """There is nothing."""
    return World()


async def test_children_of_a_split(world: World) -> None:
    """`…createsChildLeases`: from their oldest records, with their parent; the parent's holder is not disturbed."""
    world.stream.add("p")
    world.stream.replace(("p",), ("a", "b"))
    await world.lease("p", "5")
    held = await taken_lease(world.manager, key="p")

    await world.sync.create_children("p")
    await world.sync.create_children("p")  # Again, after a failure in between.

    for key in ("a", "b"):
        record = (await lease_now(world.manager, key)).record
        assert (record.checkpoint, record.parents) == (Position("TRIM_HORIZON"), frozenset("p"))
    assert (await lease_now(world.manager, "p")).record.children == frozenset("ab")
    assert await world.manager.renew(held)


async def test_merge_whose_other_parent_has_no_lease(world: World) -> None:
    """`…MergeChildWithOneParentLease`: somebody makes it or cleans up: wait; nothing is made, nothing noted."""
    world.stream.add("p", "q")
    world.stream.replace(("p", "q"), ("c",))
    await world.lease("p", "5")

    with pytest.raises(BlockedOnParentError):
        await world.sync.create_children("p")

    assert await world.keys() == ["p"]
    assert not (await lease_now(world.manager, "p")).record.children


@pytest.mark.parametrize("other", ["5", "SHARD_END"])
async def test_merge_whose_other_parent_has_a_lease(world: World, other: str) -> None:
    """`…MergeChildWithBothParentLeases`: whoever ends first makes the child's lease."""
    world.stream.add("p", "q")
    world.stream.replace(("p", "q"), ("c",))
    await world.lease("p", "5")
    await world.lease("q", other)

    await world.sync.create_children("p")

    assert await world.keys() == ["c", "p", "q"]
    assert (await lease_now(world.manager, "c")).record.parents == frozenset("pq")


async def test_lease_of_a_shard_that_is_gone_stays_for_one_more_look(world: World) -> None:
    """`testGarbageCollection…`: a listing may lack a shard once; a lease that somebody holds stays."""
    world.stream.add("a", "b", "c")
    for key in ("a", "b", "c"):
        await world.lease(key, "5")
    await taken_lease(world.manager, key="b")
    world.stream.forget("a")
    world.stream.forget("b")

    await world.sync.delete_done()
    assert await world.keys() == ["a", "b", "c"]

    await world.sync.delete_done()
    assert await world.keys() == ["b", "c"]


async def test_grandparents_go_before_parents(world: World) -> None:
    """`…WhenParentsStillPresent`: rows go in the order in which shards ended, one generation a look."""
    world.stream.add("g")
    world.stream.replace(("g",), ("p",))
    world.stream.replace(("p",), ("c",))
    await world.lease("g", "SHARD_END")
    await world.lease("p", "SHARD_END", "g")
    await world.lease("c", "5", "p")
    await world.manager.note_children("g", children=frozenset("p"))
    await world.manager.note_children("p", children=frozenset("c"))

    await world.sync.delete_done()
    assert await world.keys() == ["c", "p"]
    await world.sync.delete_done()
    assert await world.keys() == ["c"]


async def test_unreadable_row_is_there(world: World) -> None:
    """It is neither created again, nor are its parents, whose records would come twice; and it is counted."""
    world.stream.add("p")
    world.stream.replace(("p",), ("a", "b"))
    await world.lease("a", "5")
    world.records.spoiled.add("a")
    world.stream.add("c")

    await world.sync.create_missing()

    assert await world.keys() == ["c"]
    assert world.created == 1
    assert (
        world.metrics.registry.get_sample_value("broadsheet_leases_unreadable", {"worker": "w"})
        == 1
    )


async def test_parent_of_an_unreadable_child_does_not_end(world: World) -> None:
    """Once it has, nobody would create the child again that an operator deletes."""
    world.stream.add("p")
    world.stream.replace(("p",), ("a", "b"))
    await world.lease("p", "5")
    await world.lease("a", "TRIM_HORIZON", "p")
    world.records.spoiled.add("a")

    with pytest.raises(UnreadableLeaseError, match="lease a"):
        await world.sync.create_children("p")
    world.records.remove("a")
    await world.sync.create_children("p")

    assert await world.keys() == ["a", "b", "p"]


async def test_finished_child_of_an_unreadable_parent_is_kept(world: World) -> None:
    """Whether the parent was processed cannot be known, so what followed it is not cleaned up."""
    world.stream.add("p")
    world.stream.replace(("p",), ("a",))
    world.stream.replace(("a",), ("b",))
    await world.lease("p", "5")
    await world.lease("a", "SHARD_END", "p")
    await world.lease("b", "7", "a")
    await world.manager.note_children("a", children=frozenset("b"))
    world.records.spoiled.add("p")

    await world.sync.delete_done()

    assert await world.keys() == ["a", "b"]
