"""The relay into a real Kafka."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.elastic.plan import BENCH, Plan
from bench.elastic.relays import Relays
from bench.keyed.cluster import percentile
from bench.report import Params, emit
from bench.vs_structured_streaming.kafka import KafkaBroker
from broadsheet.consumer.relay import Sink, SinkKind

ROWS_PER_SECOND: Final = 50
PARTITIONS: Final = 4
_WARM_UP_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 120.0


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
        created.result(_WAIT_SECONDS)
    return Sink(kind=SinkKind.KAFKA, to=topic, key="k", settings={"bootstrap.servers": servers})


def _throughput(plan: Plan, relays: Relays, servers: str) -> None:
    sink = _sink(servers, "waiting")
    seconds = relays.carry_waiting(sink, plan.rows, min_seconds=0.0)
    with _Reader(servers, sink.to, field="n") as reader:
        reader.wait_for(plan.rows)
    if reader.records != plan.rows:
        raise RuntimeError(f"kafka: {reader.records} records of {plan.rows} rows")
    params: Params = {"rows": plan.rows, "partitions": PARTITIONS, "keyed": True, "load": plan.load}
    emit(BENCH, "kafka_sink_rows_per_s", plan.rows / seconds, "1/s", **params)


async def _latency(plan: Plan, relays: Relays, servers: str) -> None:
    sink = _sink(servers, "trickle")
    with _Reader(servers, sink.to, field="n") as reader:
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


class _Reader:
    """Reads committed records of a topic from its beginning on, on a thread of its own. A context manager."""

    def __init__(self, servers: str, topic: str, *, field: str) -> None:
        self._topic, self._field = topic, field
        self._config = {
            "bootstrap.servers": servers,
            "group.id": f"reader-{uuid4().hex}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "log_level": 0,
        }
        self.records = 0
        self.seen: dict[int, float] = {}
        """When each number was read first, monotonic seconds."""
        self._grew = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for(self, records: int) -> None:
        """Wait until so many records were read."""
        with self._grew:
            if not self._grew.wait_for(lambda: self.records >= records, _WAIT_SECONDS):
                raise TimeoutError(f"{self.records} of {records} records after {_WAIT_SECONDS} s")

    def _run(self) -> None:
        consumer = Consumer(self._config)
        consumer.subscribe([self._topic])
        while not self._stop.is_set():
            # Without a wait for more: a record that is there is read at once.
            found = consumer.consume(1, 0.05)
            found += consumer.consume(5_000, 0.0)
            now = time.monotonic()
            taken = [each.value() or b"" for each in found if each.error() is None]
            for value in taken:
                number = msgspec.json.decode(value).get(self._field)
                if number is not None:
                    self.seen.setdefault(number, now)
            with self._grew:
                self.records += len(taken)
                self._grew.notify_all()
        consumer.close()
