"""What a primary left that died between its commit and its acknowledgements: its successor appends it, once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from allocator.core.keys import AuxiliaryKeys
from allocator.core.model import ItemId
from consumer.journal.client import JournalClient
from consumer.message.clock import MessageClock
from consumer.message.framing import NDJSON
from consumer.message.json_type import JsonType
from consumer.message.mapping import MappedJournal
from consumer.message.publisher import CARRIED_BYTES_MAX, AckIntent, Publisher
from consumer.message.uuid import new_producer_id
from consumer.protocol.shard_pb2 import Checkpoint
from consumer.shard.environment import ShardConfig
from consumer.shard.rollback_records import RollbackRecords
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

pytestmark = pytest.mark.etcd


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


class Former:
    """A primary that is no more, as its journals, its rollbacks and its store tell."""

    def __init__(
        self, host: ShardHost, journals: JournalClient, *, carried: bool, clock: MessageClock
    ) -> None:
        self._host = host
        self._journals = journals
        bytes_max = CARRIED_BYTES_MAX if carried else 0
        self._publisher = Publisher(clock, new_producer_id(), carried_bytes_max=bytes_max)

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
        if acknowledged:
            await self._journals.append(OUTPUT, intent.content)
        return intent

    async def die(self, directory: Path, intents: dict[str, bytes]) -> None:
        """Leave a checkpoint with intents."""
        shard_key = self._host.key_space.keys.item(ItemId(SHARD)).decode()
        store = Counting(directory).new_store(_Named(SHARD, shard_key))  # type: ignore[arg-type]  # It asks for names.
        store.restore_checkpoint(None)  # type: ignore[arg-type]
        checkpoint = Checkpoint(ack_intents=intents)
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
