"""The relay into a real Kafka."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.dataplane.rows import KEYS, MESSAGE_BYTES
from bench.elastic.committed_reader import WAIT_SECONDS, CommittedReader
from bench.elastic.plan import BENCH, Plan
from bench.elastic.relays import Relays
from bench.keyed.cluster import percentile
from bench.report import Params, emit
from bench.vs_structured_streaming.kafka import KafkaBroker
from broadsheet.consumer.relay import Sink, SinkKind
from broadsheet.consumer.relay.application import TXN_BYTES_MAX
from broadsheet.consumer.stores.kafka.settings import TRANSACTION_SECONDS, checked_settings, ours

ROWS_PER_SECOND: Final = 50
PARTITIONS: Final = 4
_WARM_UP_SECONDS: Final = 5.0
_WARM_UP_ROWS: Final = 1_000
_LIMIT_ROWS: Final = TXN_BYTES_MAX // MESSAGE_BYTES
"""Of one transaction, as the relay's are."""


def measure(plan: Plan) -> None:
    """Print the figures; a reader of committed records is checked to have every row once."""
    with (
        tempfile.TemporaryDirectory(prefix="elastic-") as directory,
        KafkaBroker(Path(directory) / "kafka") as broker,
        Relays.running(Path(directory)) as relays,
    ):
        _throughput(plan, relays, broker.servers)
        asyncio.run(_latency(plan, relays, broker.servers))


def _sink(servers: str, topic: str) -> Sink:
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        created.result(WAIT_SECONDS)
    return Sink(kind=SinkKind.KAFKA, to=topic, key="k", settings={"bootstrap.servers": servers})


def _throughput(plan: Plan, relays: Relays, servers: str) -> None:
    # A broker makes its own topics for the first transaction and group, which takes it seconds.
    relays.carry_waiting(_sink(servers, "warm-up"), _WARM_UP_ROWS, min_seconds=0.0)
    sink = _sink(servers, "waiting")
    carried = relays.carry_waiting(sink, plan.rows, min_seconds=0.0)
    with CommittedReader(servers, sink.to, PARTITIONS) as reader:
        reader.wait_for(plan.rows)
    if reader.records != plan.rows:
        raise RuntimeError(f"kafka: {reader.records} records of {plan.rows} rows")
    start, seconds = reader.first_sent - carried.applied, carried.seconds
    limit = _client_rows_per_second(servers, plan.rows)
    params: Params = {"rows": plan.rows, "partitions": PARTITIONS, "keyed": True, "load": plan.load}
    emit(BENCH, "kafka_sink_rows_per_s", plan.rows / seconds, "1/s", **params)
    emit(BENCH, "kafka_sink_rows_per_s_running", plan.rows / (seconds - start), "1/s", **params)
    emit(BENCH, "kafka_sink_start_s", start, "s", **params)
    emit(BENCH, "kafka_sink_rows_per_s_limit", limit, "1/s", **params)


def _client_rows_per_second(servers: str, rows: int) -> float:
    """Return what the client alone does: one process that sends the same value all the time, in such transactions."""
    topic = _sink(servers, "limit").to
    own = ours("limit", TRANSACTION_SECONDS)
    producer = Producer({**checked_settings({"bootstrap.servers": servers}), **own})
    producer.list_topics(topic, timeout=WAIT_SECONDS)
    producer.init_transactions(WAIT_SECONDS)
    value, keys = bytes(MESSAGE_BYTES), [f"key-{number:03d}".encode() for number in range(KEYS)]
    produce, sent = producer.produce, 0
    began = time.monotonic()
    while sent < rows:
        count = min(_LIMIT_ROWS, rows - sent)
        producer.begin_transaction()
        for number in range(count):
            produce(topic, value, keys[number % KEYS], -1)
        producer.commit_transaction(WAIT_SECONDS)
        sent += count
    return rows / (time.monotonic() - began)


async def _latency(plan: Plan, relays: Relays, servers: str) -> None:
    sink = _sink(servers, "trickle")
    with CommittedReader(servers, sink.to, PARTITIONS) as reader:
        async with relays.trickle(sink, ROWS_PER_SECOND, min_seconds=0.0) as due:
            begin = time.monotonic() + _WARM_UP_SECONDS
            await asyncio.sleep(_WARM_UP_SECONDS + plan.seconds)
            end = time.monotonic() - 1.0
            now = time.monotonic()
            latencies = sorted(
                reader.seen.get(number, now) - at for number, at in due.items() if begin <= at < end
            )
    params: Params = {"rows_per_s": ROWS_PER_SECOND, "way": "journal-topic", "load": plan.load}
    for percent in (50, 99):
        value = percentile(latencies, percent) * 1000
        emit(BENCH, f"kafka_latency_p{percent}_ms", value, "ms", **params)
