"""Shards with state whose records go straight into another system, here a Kafka in memory."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broadsheet.consumer.application import Shard
from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.errors import StoreUnavailableError
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.publisher import Publisher
from tests.support.live_shards import (
    OUTPUT,
    SHARD,
    SOURCE,
    Counting,
    Counts,
    ShardHost,
    read_through,
    spec_of,
)
from tests.support.members import Producer
from tests.support.virtual_kafka import VirtualKafka

pytestmark = pytest.mark.etcd

PLACES = ("begun", "half", "all", "marked", "committed")
KEYS = [f"k{number % 5}" for number in range(40)]
_ATTEMPTS = ShardConfig(
    restart_delay_seconds=0.01, restart_delay_seconds_max=0.05, intent_bytes_max=400
)


@dataclass
class Totals(Counting):
    """Counts by key in a JSON file, and sends each new count into a topic."""

    to: KafkaOutput | None = None
    record_outputs: list[KafkaOutput] = field(default_factory=list)

    def consume_message(
        self, shard: Shard, store: JsonFileStore[Counts], envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count and send."""
        super().consume_message(shard, store, envelope, publisher)
        key = envelope.message["key"]
        publisher.publish_record(self.to, {"key": key, "count": store.state[key]})


def totals(kafka: VirtualKafka, directory: Path, *, output: str = "") -> Totals:
    """Return the application, which may echo into a journal, too."""
    cluster = KafkaCluster({"bootstrap.servers": "memory"}, clients=kafka.clients)
    to = KafkaOutput("totals", cluster, key="key")
    return Totals(directory, output=output, to=to, record_outputs=[to])


def sent(kafka: VirtualKafka) -> dict[str, list[int]]:
    """Return the counts of each key, in the order in which they were committed."""
    counts = defaultdict(list)
    for record in kafka.committed:
        message = json.loads(record.value or b"")
        counts[message["key"]].append(message["count"])
    return counts


@pytest.mark.parametrize("output", ["", OUTPUT], ids=["alone", "beside-a-journal"])
async def test_shard_that_is_cut_off_at_each_step_of_sending_sends_each_record_once(
    host: ShardHost, journals: JournalClient, tmp_path: Path, output: str
) -> None:
    """The attempt ends at every step of a transaction of Kafka, twice; the next one sends what is missing, no more."""
    kafka = VirtualKafka({"totals": 3})
    cuts = [place for place in PLACES for _ in range(2)]

    def cut(place: str) -> None:
        if cuts and place == cuts[0]:
            del cuts[0]
            raise StoreUnavailableError(SHARD, f"cut off at {place}")

    kafka.die = cut
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    producer = Producer(journals)
    end = await producer.publish(SOURCE, KEYS)
    live = host.start(spec, totals(kafka, tmp_path, output=output), config=_ATTEMPTS)

    rounds = 1
    await read_through(live, source=end)
    while cuts:
        end = await producer.publish(SOURCE, KEYS)
        rounds += 1
        await read_through(live, source=end)

    assert sent(kafka) == {f"k{key}": list(range(1, 8 * rounds + 1)) for key in range(5)}


async def test_transaction_takes_no_more_messages_once_its_records_are_many(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """The commit holds the records, so input that is ready at once is divided among transactions by their bytes."""
    kafka = VirtualKafka({"totals": 1})
    records: list[int] = []

    def count(place: str) -> None:
        if place == "marked":
            (txn,) = kafka.opened.values()
            records.append(len(txn.records))

    kafka.die = count
    spec = spec_of(SHARD, SOURCE, max_seconds=10.0)
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, KEYS)

    live = host.start(spec, totals(kafka, tmp_path), config=_ATTEMPTS)
    await read_through(live, source=end)

    assert sum(records) == len(KEYS)
    assert max(records) <= 10, records
