"""Avro messages through a publisher, a shard and `shardctl journals read`: nothing there knows this content type."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from broadsheet.cli.main import main
from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.avro import AVRO, SCHEMA_LABEL, AvroMessage, AvroType, schema_label
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, label_set
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.live_shards import SHARD, Counting, ShardHost, spec_of

pytestmark = pytest.mark.etcd

INPUT, OUTPUT = "avro/input", "avro/output"
SCHEMA = {
    "type": "record",
    "name": "Count",
    "fields": [{"name": "key", "type": "string"}, {"name": "n", "type": "long"}],
}


class CountingRows(Counting):
    """Counts the rows of Avro messages by key, and publishes each count as Avro."""

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Avro, with the schema that each message holds."""
        del journal_spec
        return AvroType()

    def consume_message(
        self,
        shard: Shard,
        store: JsonFileStore[dict[str, int]],
        envelope: Envelope,
        publisher: Publisher,
    ) -> None:
        """Count each row."""
        del shard
        for row in envelope.message.rows:
            store.state[row["key"]] = store.state.get(row["key"], 0) + row["n"]
        counts = [
            {"key": row["key"], "n": store.state[row["key"]]} for row in envelope.message.rows
        ]
        if counts:
            target = MappedJournal(OUTPUT, AVRO)
            publisher.publish_uncommitted(target, AvroMessage(counts), AvroType(SCHEMA))


async def test_avro_messages_go_through_a_shard_and_are_shown_by_shardctl(
    host: ShardHost, journals: JournalClient, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Published with the schema of the journal's label, consumed, published again; the tool needs to know no class."""
    labels = label_set((CONTENT_TYPE, AVRO), (SCHEMA_LABEL, schema_label(SCHEMA)))
    await journals.apply(
        [ApplyRequest.Change(upsert=journal_spec(name, labels=labels)) for name in (INPUT, OUTPUT)]
    )
    spec = spec_of(SHARD, INPUT)
    await host.assign(spec)
    clock = MessageClock()
    clock.update(time.time())
    publisher = Publisher(clock, new_producer_id())
    for rows in ([("a", 1), ("b", 2)], [("a", 3)]):
        message = AvroMessage([{"key": key, "n": n} for key, n in rows])
        publisher.publish_committed(MappedJournal(INPUT, AVRO), message, AvroType(SCHEMA))
    (append,) = publisher.take_appends()
    end = (await journals.append(INPUT, append.content)).commit.end

    shard = host.start(spec, CountingRows(tmp_path))
    await eventually(lambda: shard.progress()[0].get(INPUT) == end)
    with shard.acquire() as reference:
        await reference.wait_ready()
        await reference.wait_for_offsets({INPUT: end})

    words = ["journals", "read", OUTPUT, "--messages", "--broker", broker.address]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert result.exit_code == 0, result.output
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"key": "a", "n": 1},
        {"key": "b", "n": 2},
        {"key": "a", "n": 4},
    ]
