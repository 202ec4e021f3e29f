"""What sources count, while streams and topics answer, refuse and fail."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from broadsheet.consumer.errors import SourceDataLossError
from broadsheet.consumer.sources.kafka.places import AtOffsets
from broadsheet.consumer.sources.kafka.source import KafkaSource
from broadsheet.consumer.sources.kinesis.pages import Pace
from broadsheet.consumer.sources.kinesis.source import KinesisSource
from broadsheet.consumer.sources.metrics import SourceMetrics
from broadsheet.journals.content.json import JsonType
from broadsheet.leases.position import TRIM_HORIZON, Position
from broadsheet.leases.worker.kinesis_source import KinesisRecordSource
from tests.support.kafka_cluster import TestTopic
from tests.support.kinesis_streams import TestStream
from tests.support.source_reads import read_from, reading

FAST = Pace(read_interval_seconds=0.01, idle_interval_seconds=0.02)
MESSAGE_BYTES = len(b'{"key": "k", "n": 1}')


class Read:
    """What the registry shows."""

    def __init__(self, registry: CollectorRegistry, source: str) -> None:
        self._registry = registry
        self._source = source

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return a sample of the source; None if there is none."""
        return self._registry.get_sample_value(
            f"broadsheet_source_{name}", {"source": self._source, **labels}
        )


async def test_stream_counts_records_refusals_and_new_iterators(kinesis_endpoint: str) -> None:
    """Each page once, each refusal by its kind; an expired iterator is another beginning. How far a shard is behind is
    shown as long as it is read.
    """
    stream = await TestStream(kinesis_endpoint).create(1)
    metrics = SourceMetrics()
    shown = Read(metrics.registry, stream.name_of(0))
    source = KinesisRecordSource(
        stream.name, open_client=stream.open_client, pace=FAST, metrics=metrics
    )
    (shard,) = await source.list_shards()
    await stream.put("k", [1, 2, 3])

    async with aclosing(source.read_records(shard.key, Position(TRIM_HORIZON))) as batches:
        assert len((await anext(batches)).records) == 3
        assert shown("behind_latest_seconds") == 0
        await stream.refuse("ProvisionedThroughputExceededException", times=2)
        await anext(batches)
        await stream.refuse("ExpiredIteratorException", times=1)
        await stream.put("k", [4])
        while not (await anext(batches)).records:
            pass
        assert shown("behind_latest_seconds") == 0

    assert shown("records_total") == 4
    assert shown("bytes_total") == 4 * MESSAGE_BYTES
    assert shown("errors_total", kind="throttled") == 2
    assert shown("errors_total", kind="expired") == 1
    assert shown("readings_total") == 2
    assert (shown("ask_seconds_count") or 0) >= 3  # Those that were answered.
    assert shown("behind_latest_seconds") is None


async def test_fan_out_counts_each_page_and_subscription_once(kinesis_endpoint: str) -> None:
    """Subscriptions bring three records each here, and end."""
    stream = await TestStream(kinesis_endpoint).create(1)
    await stream.put("k", range(1, 8))
    metrics = SourceMetrics()
    shown = Read(metrics.registry, stream.name_of(0))
    source = KinesisSource(
        stream.name,
        JsonType(),
        open_client=stream.open_client,
        consumer_arn=stream.consumer_arn,
        metrics=metrics,
    )

    await read_from(source, 7)

    assert shown("records_total") == 7
    assert (shown("readings_total") or 0) >= 3


async def test_topic_counts_messages_and_shows_how_many_lie_ahead(kafka_servers: str) -> None:
    """The end of a transaction is no message, and nothing that lies ahead."""
    topic = TestTopic(kafka_servers)
    await topic.put_transaction("k", [1, 2, 3])
    metrics = SourceMetrics()
    shown = Read(metrics.registry, topic.name_of(0))
    source = _kafka(topic, metrics)

    async with aclosing(reading(source)) as batches:
        async for batch in batches:
            if len(batch) and batch.ends[-1] == 4:  # The end of the transaction is at 3.
                break
        assert shown("lag_messages") == 0
        assert shown("readings_total") == 1

    assert shown("records_total") == 3
    assert shown("bytes_total") == 3 * MESSAGE_BYTES
    assert shown("lag_messages") is None


async def test_topic_counts_data_loss(kafka_servers: str) -> None:
    """An offset that is not there is raised, and counted under its partition."""
    topic = TestTopic(kafka_servers)
    await topic.put("k", [1])
    metrics = SourceMetrics()
    source = _kafka(topic, metrics, start=AtOffsets({(topic.name, 0): 1_000}))

    with pytest.raises(SourceDataLossError):
        await read_from(source, 1)

    assert Read(metrics.registry, topic.name_of(0))("errors_total", kind="data loss") == 1


def _kafka(topic: TestTopic, metrics: SourceMetrics, **options: Any) -> KafkaSource:
    return KafkaSource(topic.name, JsonType(), topic.config, metrics=metrics, **options)
