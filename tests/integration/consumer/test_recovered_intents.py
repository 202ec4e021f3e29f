"""What a primary left that died between its commit and its acknowledgements: its successor appends it, once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.shard.rollback.records import RollbackRecords
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import CARRIED_BYTES_MAX, AckIntent, Publisher
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.eventually import eventually
from tests.support.live_shards import (
    MEMBER,
    OUTPUT,
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    read_through,
    spec_of,
)
from tests.support.members import Producer, committed
from tests.support.pending_spans import SequencedJournal, sequenced

pytestmark = pytest.mark.etcd

NO_SOURCES: Mapping[str, Checkpoint.Source] = {}


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("landed", [False, True])
async def test_recovered_acknowledgements_are_written_again(
    host: ShardHost, journals: JournalClient, tmp_path: Path, *, carried: bool, landed: bool
) -> None:
    """A primary that died between its commit and its acknowledgements left the intents, which may carry messages; the
    next one writes them, and nobody sees them twice if they had landed. One whose journal is gone is dropped.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    former = Former(host, journals, carried=carried, clock=MessageClock())
    await former.publish(6, acknowledged=True)
    intent = await former.publish(7, acknowledged=landed)
    await former.die(tmp_path, {OUTPUT: intent.content, "test/gone": b"{}\n"})
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [6, 7][: 1 + landed]

    shard = host.start(spec, Counting(tmp_path, output=OUTPUT))
    end = await Producer(journals).publish(SOURCE, ["a"])
    await read_through(shard, source=end)

    assert [m["n"] for m in await committed(journals, OUTPUT)] == [6, 7, 1]


@pytest.mark.parametrize("landed", [False, True])
async def test_carried_messages_of_long_ago_are_written_again_only_if_they_are_not_there(
    host: ShardHost, journals: JournalClient, tmp_path: Path, *, landed: bool
) -> None:
    """Readers forget a producer that was silent for a day. One that has forgotten ours would take a second copy of its
    messages for new ones; and without the first it would miss them.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    clock = MessageClock()
    clock.update(time.time() - 13 * 3600)
    former = Former(host, journals, carried=True, clock=clock)
    await former.publish(6, acknowledged=True)
    intent = await former.publish(7, acknowledged=landed)
    await former.die(tmp_path, {OUTPUT: intent.content})

    config = ShardConfig(restart_delay_seconds=0.05, rollback_again_seconds=0.2)
    shard = host.start(spec, Counting(tmp_path, output=OUTPUT), config=config)
    end = await Producer(journals).publish(SOURCE, ["a"])
    await read_through(shard, source=end)

    async def all_written() -> bytes:
        content = await read_all(journals, OUTPUT)
        # By the former primary if at all, by the checkpoint's intent, and by the two rounds of rolling back.
        assert content.count(intent.acknowledgement) == landed + 3
        return content

    content = await eventually(all_written)
    assert content.count(b'"n":7') == 1
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [6, 7, 1]


async def test_carried_messages_of_long_ago_are_found_again_by_the_next_successor(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A successor that commits nothing leaves the checkpoint as it is, and what tells how to read it."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    clock = MessageClock()
    clock.update(time.time() - 30 * 3600)
    former = Former(host, journals, carried=True, clock=clock)
    await former.publish(6, acknowledged=True)
    intent = await former.publish(7, acknowledged=True)
    await former.die(tmp_path, {OUTPUT: intent.content})
    config = ShardConfig(restart_delay_seconds=0.05, rollback_again_seconds=0.1)
    idle = host.start(spec, Counting(tmp_path, output=OUTPUT), config=config)

    async def undone_twice() -> bool:
        return (await read_all(journals, OUTPUT)).count(intent.acknowledgement) == 4

    await eventually(undone_twice)
    await idle.stop()
    second = host.start(spec, Counting(tmp_path, output=OUTPUT), config=config)
    await read_through(second, source=await Producer(journals).publish(SOURCE, ["a"]))

    assert (await read_all(journals, OUTPUT)).count(b'"n":7') == 1
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [6, 7, 1]


async def test_checkpoint_of_another_implementation_makes_no_rollback_stale(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A member of ours commits, then one of Gazette's serves the shard, whose checkpoint names its own producer alone;
    then one of ours again. What the first had on file is from before its first message: appended as it is, readers
    would forget what they know of that producer, and take late copies for new. What it left pending is undone.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    clock = MessageClock()
    clock.update(time.time())
    former = Former(host, journals, carried=False, clock=clock)
    await former.publish(6, acknowledged=True)
    committed_at = clock.value
    await former.publish(7, acknowledged=False)
    gazette = Publisher(clock, new_producer_id())
    gazette.publish_uncommitted(MappedJournal(OUTPUT, NDJSON), {"key": "a", "n": 8}, JsonType())
    (its_intent,) = gazette.build_ack_intents()
    await journals.append(OUTPUT, [*gazette.take_appends()[0].content, its_intent.content])
    source = Checkpoint.Source(read_through=0)
    await former.die(tmp_path, {OUTPUT: its_intent.content}, sources={SOURCE: source})

    config = ShardConfig(restart_delay_seconds=0.05, rollback_again_seconds=0.1)
    host.start(spec, Counting(tmp_path), config=config)

    async def undone_twice() -> SequencedJournal:
        found = await sequenced(journals, OUTPUT)
        rollbacks = (SequenceOutcome.ACK_ROLLBACK, SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS)
        assert sum(found.outcomes[each] for each in rollbacks) >= 3
        return found

    found = await eventually(undone_twice)  # And the intent of Gazette's, repeated.
    assert SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS not in found.outcomes
    assert found.pending == []
    assert await clock_on_file(host, former.producer_id) == committed_at
    await journals.append(OUTPUT, former.appended)
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [6, 8]


async def clock_on_file(host: ShardHost, producer: int) -> int | None:
    """Return the clock of what is on file of a producer."""
    records = RollbackRecords(host.etcd, AuxiliaryKeys(host.key_space.keys.root))
    found = {each.producer: each.clock for each in await records.of_shard(SHARD)}
    return found.get(producer)


class Former:
    """A primary that is no more, as its journals, its rollbacks and its store tell."""

    def __init__(
        self, host: ShardHost, journals: JournalClient, *, carried: bool, clock: MessageClock
    ) -> None:
        self._host = host
        self._journals = journals
        bytes_max = CARRIED_BYTES_MAX if carried else 0
        self._publisher = Publisher(clock, new_producer_id(), carried_bytes_max=bytes_max)
        self.appended: list[bytes] = []
        """All that it wrote into the journal."""

    @property
    def producer_id(self) -> int:
        """In each of its messages."""
        return self._publisher.producer_id

    async def publish(self, number: int, *, acknowledged: bool) -> AckIntent:
        """Publish a transaction of one message up to its commit, or beyond; return its intent."""
        publisher, keys = self._publisher, self._host.key_space.keys
        target = MappedJournal(OUTPUT, NDJSON)
        publisher.publish_uncommitted(target, {"key": "a", "n": number}, JsonType())
        rollbacks = publisher.take_rollbacks()
        (intent,) = publisher.build_ack_intents()
        if rollbacks:
            records = RollbackRecords(self._host.etcd, AuxiliaryKeys(keys.root))
            assignment = self._host.key_space.assignments[ItemId(SHARD), MEMBER, 0]
            await records.write(assignment, keep=rollbacks)
        for pending in publisher.take_appends():
            await self._journals.append(OUTPUT, pending.content)
            self.appended += pending.content
        if acknowledged:
            await self._journals.append(OUTPUT, intent.content)
            self.appended.append(intent.content)
        return intent

    async def die(
        self,
        directory: Path,
        intents: dict[str, bytes],
        *,
        sources: Mapping[str, Checkpoint.Source] = NO_SOURCES,
    ) -> None:
        """Leave a checkpoint with intents."""
        shard_key = self._host.key_space.keys.item(ItemId(SHARD)).decode()
        store = Counting(directory).new_store(_Named(SHARD, shard_key))  # type: ignore[arg-type]  # It asks for names.
        store.restore_checkpoint(None)  # type: ignore[arg-type]
        checkpoint = Checkpoint(ack_intents=intents, sources=sources)
        store.start_commit(None, checkpoint, ()).result(10)  # type: ignore[arg-type]


async def read_all(journals: JournalClient, journal: str) -> bytes:
    """Return a journal's content."""
    return b"".join([span.content async for span in journals.reader(journal, block=False)])


class _Named:
    """The names of a shard."""

    def __init__(self, shard_id: str, fqn: str) -> None:
        self.id = shard_id
        self.fqn = fqn
        self.local_state = None
