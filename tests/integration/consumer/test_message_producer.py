"""Applications that bring their messages themselves: read from each checkpoint on, replayed, waited for, failing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from broadsheet.consumer.application import MessageProducer, Shard
from broadsheet.consumer.errors import ShardStoppedError
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import Flags
from broadsheet.runtime.errors import RpcFailedError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import Checkpoint, ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_shards import (
    SHARD,
    Counting,
    Counts,
    ShardHost,
    counts,
    spec_of,
)
from tests.support.members import Cluster, client_of, shard, upserts, wait_for_primaries
from tests.support.message_batches import FRAME_BYTES, Written, WrittenJournal, ack
from tests.support.tally import JsonTally

pytestmark = pytest.mark.etcd

FEED = "feed/records"
"""No journal: only the application knows it."""


def record(clock: int, *, key: str = "k", flags: int = Flags.OUTSIDE_TXN) -> Written:
    """Return a message of the feed."""
    return Written(1, clock, flags, f'{{"key": "{key}", "n": {clock}}}'.encode())


def pending(clock: int, key: str) -> Written:
    """Return a message that awaits its acknowledgement."""
    return record(clock, key=key, flags=Flags.CONTINUE_TXN)


@dataclass
class Feeding(Counting):
    """Reads a list; its input ends after each lot."""

    feed: WrittenJournal = field(default_factory=lambda: WrittenJournal(FEED))
    lot: int = 1_000_000
    """Messages that one reading brings."""
    broken_at: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Called by the methods of these names; may raise."""
    begins: list[int] = field(default_factory=list)
    """Where each reading began, bytes."""
    replays: list[tuple[int, int]] = field(default_factory=list)
    replayed_as: str = FEED
    """Name of the journal that replayed messages claim to be of."""
    written: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_messages(
        self, shard: Shard, store: JsonFileStore[Counts], checkpoint: Checkpoint
    ) -> AsyncIterator[MessageBatch]:
        """Yield a lot, two messages a batch; wait at the end of the feed."""
        del shard, store
        begin = 0
        if FEED in checkpoint.sources:
            begin = checkpoint.sources[FEED].read_through
        self.begins.append(begin)
        self._meet("open")
        end = begin + self.lot * FRAME_BYTES
        while begin < end:
            if begin >= self.feed.write_head:
                self.written.clear()
                await self.written.wait()
            stop = min(begin + 2 * FRAME_BYTES, end, self.feed.write_head)
            yield self.feed.read(begin, stop)
            begin = stop
            self._meet("read_messages")

    async def replay_range(
        self, shard: Shard, store: JsonFileStore[Counts], *, journal: str, begin: int, end: int
    ) -> AsyncIterator[MessageBatch]:
        """Yield a range, a message a batch."""
        del shard, store
        assert journal == FEED
        self.replays.append((begin, end))
        self._meet("replay_range")
        for offset in range(begin, end, FRAME_BYTES):
            batch = self.feed.read(offset, offset + FRAME_BYTES)
            yield replace(batch, journal=self.replayed_as)

    def read_through(
        self, shard: Shard, store: JsonFileStore[Counts], offsets: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Callers count in records."""
        del shard, store
        self._meet("read_through")
        return {FEED: FRAME_BYTES * offsets.get("records", 0)}

    def write(self, *messages: Written) -> None:
        """Add to the feed."""
        self.feed.batch(*messages)
        self.written.set()

    def _meet(self, name: str) -> None:
        self.broken_at.get(name, lambda: None)()


class FeedingTally(JsonTally):
    """The same for a member."""

    def __init__(self, feeding: Feeding, directory: Path) -> None:
        super().__init__(directory, output="")
        self.read_messages = feeding.read_messages
        self.replay_range = feeding.replay_range
        self.read_through = feeding.read_through


def raiser(text: str) -> Callable[[], None]:
    """Return a function that raises."""

    def fail() -> None:
        raise OSError(text)

    return fail


async def read_records(host: ShardHost, application: Feeding, *, spec_ring: int = 0) -> Counts:
    """Serve the feed until it is read to its end; return what was counted."""
    spec = spec_of(SHARD)
    spec.ring_buffer_size = spec_ring
    await host.assign(spec)
    live = host.start(spec, application)
    with live.acquire() as reference:
        await reference.wait_for_offsets({FEED: application.feed.write_head})
    return await counts(live)


def test_feeding_is_a_message_producer(tmp_path: Path) -> None:
    """What follows would test nothing if the runtime did not recognise it."""
    assert isinstance(Feeding(tmp_path), MessageProducer)
    assert isinstance(FeedingTally(Feeding(tmp_path), tmp_path), MessageProducer)


async def test_sequences_over_many_readings_are_replayed_by_the_application(
    host: ShardHost, tmp_path: Path
) -> None:
    """A ring of two messages, and input that ends after every seven: most acknowledgements come in another reading than
    their first messages, which only the application can read again.
    """
    application = Feeding(tmp_path, lot=7)
    clock = 0
    for sequence in range(4):
        for _ in range(5):
            clock += 1
            application.write(pending(clock, f"k{sequence}"))
        clock += 1
        application.write(ack(clock))

    counted = await read_records(host, application, spec_ring=2)

    assert counted == {f"k{sequence}": 5 for sequence in range(4)}
    # Seven at a time, or less where a transaction's time was up: some reading begins within a sequence.
    assert any(begin % (6 * FRAME_BYTES) for begin in application.begins)
    assert {begin for begin, _ in application.replays} >= {6 * s * FRAME_BYTES for s in range(4)}


async def test_rolled_back_and_doubled_messages_of_a_feed_count_as_read(
    host: ShardHost, tmp_path: Path
) -> None:
    """Sequencing holds for any source of messages: what a restarted upstream repeats or takes back leaves no trace."""
    application = Feeding(tmp_path)
    application.write(pending(1, "a"), ack(2), pending(3, "lost"), ack(2), pending(4, "b"), ack(5))
    application.write(pending(4, "b"), ack(5))

    counted = await read_records(host, application)

    assert counted == {"a": 1, "b": 1}


@pytest.mark.parametrize("lot", [0, 2])
async def test_input_that_commits_nothing_is_not_asked_for_without_pause(
    host: ShardHost, tmp_path: Path, lot: int
) -> None:
    """A reading that ends at once, or in the middle of a span, begins at the same checkpoint again: store and
    application would spin.
    """
    application = Feeding(tmp_path, lot=lot)
    application.write(pending(1, "a"), pending(2, "a"), pending(3, "a"), ack(4))
    spec = spec_of(SHARD)
    await host.assign(spec)
    started = time.monotonic()

    host.start(spec, application)
    await eventually(lambda: len(application.begins) >= 6)

    # Five pauses of at least 25, 50, 100, 200 and 400 ms.
    assert time.monotonic() - started >= 0.7
    assert set(application.begins) == {0}


async def test_reading_that_fails_is_named_and_what_came_before_is_kept(
    host: ShardHost, tmp_path: Path
) -> None:
    """Upstream breaks off after four messages: those are committed, and the next attempt begins behind them."""
    application = Feeding(tmp_path)
    application.write(*(record(clock) for clock in range(1, 7)))
    batches: list[None] = []

    def break_off() -> None:
        batches.append(None)
        if len(batches) == 2:
            raise ConnectionResetError("upstream hung up")

    def refuse() -> None:
        if batches:
            raise ConnectionRefusedError("upstream is down")

    application.broken_at |= {"read_messages": break_off, "open": refuse}
    spec = spec_of(SHARD)
    await host.assign(spec)
    live = host.start(spec, application)
    await eventually(
        lambda: host.says(
            SHARD, ReplicaStatus.FAILED, "read_messages of", "upstream is down", "(transient)"
        )
    )
    del application.broken_at["open"]

    async def read_on() -> bool:
        try:
            return await counts(live) == {"k": 6}
        except ShardStoppedError:
            return False  # Between two attempts.

    await eventually(read_on)
    assert set(application.begins) == {0, 4 * FRAME_BYTES}


async def test_replay_that_fails_is_named(host: ShardHost, tmp_path: Path) -> None:
    """The application's error says which of its methods it was."""
    application = Feeding(tmp_path)
    application.write(pending(1, "a"), pending(2, "a"), pending(3, "a"), ack(4))
    application.broken_at["replay_range"] = raiser("gone")
    spec = spec_of(SHARD)
    spec.ring_buffer_size = 1
    await host.assign(spec)

    host.start(spec, application)

    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "replay_range of shard shard-1", "gone")
    )


async def test_replay_that_brings_something_else_is_refused(
    host: ShardHost, tmp_path: Path
) -> None:
    """Messages of another range would be taken for those that were acknowledged."""
    application = Feeding(tmp_path)
    application.write(pending(1, "a"), pending(2, "a"), pending(3, "a"), ack(4))
    application.replayed_as = "feed/other"
    spec = spec_of(SHARD)
    spec.ring_buffer_size = 1
    await host.assign(spec)

    host.start(spec, application)

    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "feed/other", "data loss"))


async def test_stat_waits_for_what_the_application_says(cluster: Cluster, tmp_path: Path) -> None:
    """A client asks in records, which are no journal's: the application knows what that means. Its errors are told."""
    feeding = Feeding(tmp_path)
    application = FeedingTally(feeding, tmp_path)
    async with (
        cluster.member("a", application=application) as service,
        client_of(service) as client,
    ):
        await client.apply(upserts(shard("shard-1")))
        await wait_for_primaries(client, "shard-1")
        feeding.write(record(1), record(2))
        assert (await client.stat("shard-1", read_through={"records": 2})).read_through == {
            FEED: 2 * FRAME_BYTES
        }
        async with TaskGroup() as group:
            waiting = group.start_soon(
                client.stat("shard-1", read_through={"records": 3}), name="stat"
            )
            with pytest.raises(TimeoutError):
                await client.stat("shard-1", read_through={"records": 3}, timeout_seconds=0.1)
            assert not waiting.done()
            feeding.write(record(3))
            assert (await waiting).read_through == {FEED: 3 * FRAME_BYTES}

        feeding.broken_at["read_through"] = raiser("no such record")
        with pytest.raises(RpcFailedError):
            await client.stat("shard-1", read_through={"records": 1})
