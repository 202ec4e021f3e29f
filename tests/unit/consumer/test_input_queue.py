"""What readers put ahead of transactions: in turn, bounded, fair among sources and among the shards of a member."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from broadsheet.consumer.shard.input_queue import (
    InputBound,
    InputBounds,
    InputQueue,
    ReadAhead,
    Share,
)
from broadsheet.consumer.shard.metrics import ShardMetrics
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.framing import Payloads
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.message_batches import FRAME_BYTES, WrittenJournal, single

JSON = JsonType()


async def test_input_queue_makes_readers_wait_in_turn() -> None:
    """Full means waiting, bounded in messages; whoever waited first goes first."""
    journal = WrittenJournal()
    ready: list[None] = []
    queue = InputQueue(
        InputBounds(messages_max=2, bytes_max=1000), on_ready=lambda: ready.append(None)
    )
    await queue.put(journal.batch(single(1), single(2)))
    order: list[int] = []

    async def put(clock: int) -> None:
        await queue.put(journal.batch(single(clock)))
        order.append(clock)

    async with asyncio.TaskGroup() as group:
        for clock in (3, 4, 5):
            group.create_task(put(clock))
        await asyncio.sleep(0)
        assert order == []
        for _ in range(4):
            await eventually(lambda: queue.take_or_none() is not None)

    assert order == [3, 4, 5]
    assert len(ready) == 4


async def test_input_queue_bounds_bytes_but_lets_a_large_batch_in_alone() -> None:
    """A batch beyond the bound must pass, or its reader would wait for ever."""
    journal = WrittenJournal()
    queue = InputQueue(InputBounds(messages_max=100, bytes_max=15), on_ready=lambda: None)

    await queue.put(journal.batch(single(1), single(2), single(3)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await queue.put(journal.batch(single(4)))

    assert len(queue.take_or_none() or ()) == 3
    queue.close()
    assert queue.exhausted


async def test_input_queue_joins_what_waits_of_one_journal() -> None:
    """Three batches of one journal, one of another, and one more: neighbours of one journal come as one, in order; what
    a source needs to resume stays with its batch.
    """
    one, other, source = WrittenJournal("in/a"), WrittenJournal("in/b"), WrittenJournal("feed")
    queue = InputQueue(InputBounds(messages_max=100, bytes_max=1000), on_ready=lambda: None)
    kept = replace(_read(source, 1), resumes={"feed": b"here"})
    batches = [_read(one, 1), _read(one, 2), _read(one, 3), _read(other, 1), _read(one, 4)]
    for batch in (*batches, kept, _read(source, 2)):
        await queue.put(batch)

    taken = [queue.take_or_none() for _ in range(6)]

    assert taken[-1] is None
    found = [(batch.journal, batch.clocks.tolist(), batch.resumes) for batch in taken if batch]
    assert found == [
        ("in/a", [1, 2, 3], {}),
        ("in/b", [1], {}),
        ("in/a", [4], {}),
        ("feed", [1], {"feed": b"here"}),
        ("feed", [2], {}),
    ]
    assert taken[0] is not None
    assert list(taken[0].payloads) == [b"1", b"2", b"3"]


def _read(journal: WrittenJournal, clock: int) -> MessageBatch:
    """Return a message as a reader of journals gives it."""
    batch = journal.batch(single(clock, payload=b"%d" % clock))
    return replace(batch, payloads=Payloads.of(batch.payloads), message_type=JSON)


def _of_size(journal: WrittenJournal, messages: int) -> MessageBatch:
    return journal.batch(*(single(clock) for clock in range(1, messages + 1)))


def _queue(messages: int, share: Share | None = None) -> InputQueue:
    """Return a queue for so many messages' bytes."""
    bounds = InputBounds(messages_max=10_000, bytes_max=messages * FRAME_BYTES, share=share)
    return InputQueue(bounds, on_ready=lambda: None)


async def test_sources_share_a_queue_by_bytes_not_by_batches() -> None:
    """One source reads batches of ten messages, the other single ones, both as fast as they may: the transactions get
    about as much of one as of the other, whichever began. By turns of batches it would be ten times as much.
    """
    queue, taken = _queue(40), {"in/large": 0, "in/small": 0}
    large, small = WrittenJournal("in/large"), WrittenJournal("in/small")

    async def feed(journal: WrittenJournal, messages: int) -> None:
        while True:
            await queue.put(_of_size(journal, messages))

    async with TaskGroup() as group:
        group.start_soon(feed(large, 10), name="large")
        group.start_soon(feed(small, 1), name="small")
        for _ in range(1_000):
            await asyncio.sleep(0)
            batch = queue.take_or_none()
            if batch is not None:
                taken[batch.journal] += len(batch)
        group.stop()

    assert min(taken.values()) > 0.4 * sum(taken.values()), taken


async def test_reader_that_gives_up_lets_the_next_one_in() -> None:
    """A cancelled reader that was first in turn, with a batch too large for the room there is, holds up nobody."""
    queue = _queue(10)
    a, b = WrittenJournal("in/a"), WrittenJournal("in/b")
    await queue.put(_of_size(a, 6))
    async with TaskGroup() as group:
        first = group.start_soon(queue.put(_of_size(b, 6)), name="too large for now")
        await asyncio.sleep(0)
        second = group.start_soon(queue.put(_of_size(a, 2)), name="behind it")
        await asyncio.sleep(0)
        assert not second.done()

        first.cancel()
        await asyncio.wait({second}, timeout=10)
        assert second.done()
        group.stop()

    assert [len(queue.take_or_none() or ()) for _ in range(3)] == [6, 2, 0]


async def test_close_releases_readers_that_wait() -> None:
    """What they bring is dropped: nobody will take it."""
    queue, journal = _queue(2), WrittenJournal()
    await queue.put(_of_size(journal, 2))
    async with TaskGroup() as group:
        waiting = group.start_soon(queue.put(_of_size(journal, 1)), name="waits")
        await asyncio.sleep(0)
        queue.close()
        await asyncio.wait({waiting}, timeout=10)
        assert waiting.done()

    assert len(queue.take_or_none() or ()) == 2
    assert queue.exhausted


async def test_shards_of_a_member_hold_no_more_than_its_bound() -> None:
    """Four shards that nobody empties, with room for ever more each: together they hold what the member may, in equal
    parts, and the member's metric shows it. What a shard held is free when it ends.
    """
    account, metrics = ReadAhead(40 * FRAME_BYTES), ShardMetrics(registry := CollectorRegistry())
    metrics.read_ahead.observe(account.by_shard)
    with ExitStack() as shards:
        queues = [_queue(1_000, shards.enter_context(account.share(f"s{n}"))) for n in range(4)]
        async with TaskGroup() as group:
            for number, queue in enumerate(queues):
                group.start_soon(_fill(queue), name=f"fill {number}")
            await eventually(lambda: account.bytes_in_use == account.bytes_max)
            await asyncio.sleep(0)
            assert set(account.by_shard().values()) == {10 * FRAME_BYTES}
            assert _shown(registry, "s3") == 10 * FRAME_BYTES
            group.stop()
    assert account.bytes_in_use == 0
    assert _shown(registry, "s3") is None


async def test_slow_shard_does_not_slow_its_neighbour() -> None:
    """One shard takes nothing at all. The other reads on, batch after batch, and always has its whole part to read
    ahead.
    """
    account = ReadAhead(20 * FRAME_BYTES)
    with account.share("slow") as slow_share, account.share("quick") as quick_share:
        slow, quick = _queue(1_000, slow_share), _queue(1_000, quick_share)
        async with TaskGroup() as group:
            group.start_soon(_fill(slow), name="fill slow")
            group.start_soon(_fill(quick), name="fill quick")
            for _ in range(50):
                await eventually(lambda: quick_share.bytes_in_use == account.part_bytes)
                assert quick.take_or_none() is not None
            assert slow_share.bytes_in_use == account.part_bytes
            group.stop()


async def test_shard_that_joins_gets_one_batch_at_once_and_its_part_when_others_gave_back() -> None:
    """A shard that was alone holds all that the member may. One that joins is not kept from working by that, and the
    bound holds but for its one batch; as soon as the first one has consumed what is beyond its part, they are equal.
    """
    account = ReadAhead(20 * FRAME_BYTES)
    with account.share("first") as first_share:
        first = _queue(1_000, first_share)
        async with TaskGroup() as group:
            filling = group.start_soon(_fill(first), name="fill first")
            await eventually(lambda: first_share.bytes_in_use == account.bytes_max)
            with account.share("second") as second_share:
                second = _queue(1_000, second_share)
                group.start_soon(_fill(second), name="fill second")
                await eventually(lambda: second_share.bytes_in_use == FRAME_BYTES)
                await asyncio.sleep(0)
                assert account.bytes_in_use == account.bytes_max + FRAME_BYTES
                filling.cancel()

                while first.take_or_none() is not None:
                    pass
                await eventually(lambda: second_share.bytes_in_use == account.part_bytes)
                group.stop()


async def _fill(queue: InputQueue) -> None:
    """Read single messages for a queue, as fast as it takes them; none continues the one before."""
    journals = [WrittenJournal("in/a"), WrittenJournal("in/b")]
    while True:
        for journal in journals:
            await queue.put(_of_size(journal, 1))
            await asyncio.sleep(0)


def _shown(registry: CollectorRegistry, shard: str) -> float | None:
    return registry.get_sample_value("broadsheet_shard_read_ahead_bytes", {"shard": shard})


async def test_bound_ends_each_source_where_it_says_and_lets_all_before_it_through() -> None:
    """Two shards that are merged must have handled the same messages: a batch is divided at the bound, what a reader
    still holds before it comes, too, though the queue is full of what is held back, and the rest comes afterwards.
    """
    one, other = WrittenJournal("in/a"), WrittenJournal("in/b")
    queue = InputQueue(
        InputBounds(messages_max=3, bytes_max=1000), on_ready=lambda: None, read_through={}
    )
    first, second = one.batch(single(1), single(2), single(3)), other.batch(single(1), single(2))
    through = {"in/a": int(first.ends[0]), "in/b": int(second.ends[0])}
    bound = InputBound(through)
    await queue.put(first)
    async with TaskGroup() as group:
        reader = group.start_soon(queue.put(second), name="read in/b")
        await asyncio.sleep(0)
        queue.bound = bound
        assert not _is_at_bound(queue)
        taken = [queue.take_or_none() for _ in range(3)]
        assert [(each.journal, each.clocks.tolist()) for each in taken if each is not None] == [
            ("in/a", [1]),
            ("in/b", [1]),
        ]
        assert _is_at_bound(queue)
        assert dict(queue.taken_through) == through

        queue.bound = None
        rest = queue.take_or_none()
        assert rest is not None
        assert (rest.journal, rest.clocks.tolist()) == ("in/a", [2, 3])
        await reader
        rest = queue.take_or_none()
        assert rest is not None
        assert (rest.journal, rest.clocks.tolist()) == ("in/b", [2])
        group.stop()


async def test_bound_is_reached_where_the_next_message_begins_behind_it() -> None:
    """Content up to the bound may be gone, so that no message ends there."""
    journal = WrittenJournal("in/a")
    batch = journal.batch(single(1), single(2)).span(1, 2)
    queue = InputQueue(InputBounds(messages_max=9, bytes_max=1000), on_ready=lambda: None)
    queue.bound = InputBound({"in/a": int(batch.begins[0])})
    assert not _is_at_bound(queue)
    await queue.put(batch)
    assert _is_at_bound(queue)
    assert queue.take_or_none() is None


async def test_bound_counts_what_a_checkpoint_has_read() -> None:
    """A source that was silent since is where the checkpoint says."""
    queue = InputQueue(
        InputBounds(messages_max=9, bytes_max=1000), on_ready=lambda: None, read_through={"in/a": 7}
    )
    assert dict(queue.taken_through) == {"in/a": 7}
    queue.bound = InputBound({"in/a": 7})
    assert _is_at_bound(queue)
    queue.bound = InputBound({"in/a": 8})
    assert not _is_at_bound(queue)


def _is_at_bound(queue: InputQueue) -> bool:
    return queue.is_at_bound
