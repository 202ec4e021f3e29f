"""A topic that is carried into another, by our relay and by Kafka Streams in turn, beside one broker."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.elastic.carriers import (
    PARTITIONS,
    Carrier,
    RelayCarrier,
    Running,
    StreamsCarrier,
    Topics,
)
from bench.elastic.committed_reader import WAIT_SECONDS, CommittedReader
from bench.elastic.plan import BENCH, Plan
from bench.keyed.cluster import percentile
from bench.report import Params, emit
from bench.vs_structured_streaming.kafka import KafkaBroker

ROWS_PER_SECOND: Final = 50
KILL_ROWS_PER_SECOND: Final = 100
ROUNDS: Final = 3
_WARM_UP_SECONDS: Final = 5.0
_SETTLE_SECONDS: Final = 3.0
_TAIL_SECONDS: Final = 1.0
"""Rows of the last second may still be under way."""
# A consumer may not ask for a shorter session, nor a broker end transactions in less time, without these.
_BROKER: Final = {
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
_SOONEST: Final = {
    "consumer.session.timeout.ms": "1000",
    "consumer.heartbeat.interval.ms": "200",
    "producer.transaction.timeout.ms": "1000",
}


def measure(plan: Plan) -> None:
    """Print the figures, in rounds that alternate between the systems; each row is checked to be there once."""
    with (
        tempfile.TemporaryDirectory(prefix="elastic-") as name,
        KafkaBroker(Path(name) / "kafka", _BROKER) as broker,
    ):
        directory = Path(name)
        ours, theirs = RelayCarrier(), StreamsCarrier(directory / "classes")
        soonest = StreamsCarrier(directory / "classes", _SOONEST, "soonest")
        runs = _Runs(broker.servers, directory)
        _measure_latency(plan, runs, (ours, theirs))
        for carrier, kills in ((ours, plan.trials), (soonest, plan.trials), (theirs, 1)):
            _measure_failover(plan, runs, carrier, kills)


def _measure_latency(plan: Plan, runs: _Runs, carriers: tuple[Carrier, ...]) -> None:
    found: dict[str, list[list[float]]] = {each.system: [] for each in carriers}
    for _ in range(ROUNDS):
        for carrier in carriers:
            with runs.started(carrier, ROWS_PER_SECOND) as run:
                begin = time.monotonic() + _WARM_UP_SECONDS
                run.sleep(_WARM_UP_SECONDS + plan.seconds)
                end = time.monotonic() - _TAIL_SECONDS
                found[carrier.system].append(run.latencies(begin, end))
    for system, rounds in found.items():
        params: Params = {"rows_per_s": ROWS_PER_SECOND, "way": "topic-topic", "system": system}
        for percent in (50, 99):
            each = [percentile(latencies, percent) * 1000 for latencies in rounds]
            figure = f"kafka_latency_p{percent}_ms"
            emit(
                BENCH,
                figure,
                statistics.median(each),
                "ms",
                **params,
                rounds=ROUNDS,
                load=plan.load,
            )


def _measure_failover(plan: Plan, runs: _Runs, carrier: Carrier, kills: int) -> None:
    waits = []
    for _ in range(kills):
        # A cluster of its own for each trial: shards whose primaries die in quick succession are held back.
        with runs.started(carrier, KILL_ROWS_PER_SECOND) as run:
            run.sleep(_WARM_UP_SECONDS)
            begin = time.monotonic()
            run.running.kill_one()
            # Those that the survivor has go on: the rows until now tell whether one was held up.
            run.sleep(_SETTLE_SECONDS)
            end = time.monotonic()
            run.wait_for_rows_until(end)
            waits.append(run.latencies(begin, end)[-1])
    params: Params = {"system": carrier.system, "settings": carrier.settings, "kills": kills}
    params |= {"rows_per_s": KILL_ROWS_PER_SECOND, "load": plan.load}
    emit(BENCH, "kafka_failover_s", statistics.median(waits), "s", **params)
    emit(BENCH, "kafka_failover_max_s", max(waits), "s", **params)


class _Runs(NamedTuple):
    servers: str
    directory: Path

    @contextmanager
    def started(self, carrier: Carrier, rows_per_second: float) -> Iterator[_Run]:
        """Have new topics carried, with rows that come in, while the block runs; then check them."""
        name = f"{carrier.system}-{time.monotonic_ns()}"
        topics = Topics(self.servers, f"in-{name}", f"out-{name}")
        admin = AdminClient({"bootstrap.servers": self.servers})
        new = [NewTopic(topic, PARTITIONS, 1) for topic in topics[1:]]
        for created in admin.create_topics(new).values():
            created.result(WAIT_SECONDS)
        home = self.directory / name
        home.mkdir()
        with (
            CommittedReader(self.servers, topics.target, PARTITIONS) as reader,
            carrier.running(topics, home) as running,
            _Trickle(self.servers, topics.source, rows_per_second) as trickle,
        ):
            yield _Run(running, reader, trickle)
            sent = trickle.stop()
            reader.wait_for(sent)
        if reader.records != sent or reader.seen.keys() != set(range(sent)):
            raise RuntimeError(f"{carrier.system}: {reader.records} records of {sent} rows")


class _Run(NamedTuple):
    running: Running
    reader: CommittedReader
    trickle: _Trickle

    def sleep(self, seconds: float) -> None:
        """Let rows come."""
        time.sleep(seconds)

    def latencies(self, begin: float, end: float) -> list[float]:
        """Return, ascending, how long rows that were due in a time took until they were read; seconds."""
        now, seen = time.monotonic(), self.reader.seen
        due = [(number, at) for number, at in self.trickle.due.copy().items() if begin <= at < end]
        return sorted(seen.get(number, now) - at for number, at in due)

    def wait_for_rows_until(self, end: float) -> None:
        """Wait until each row that was due before is read: rows of other partitions overtake those that wait."""
        due = self.trickle.due.copy()
        self.reader.wait_until_seen([number for number, at in due.items() if at < end])


class _Trickle:
    """Publishes rows at even distances, on a thread of its own. A context manager."""

    def __init__(self, servers: str, topic: str, rows_per_second: float) -> None:
        self._topic, self._pause = topic, 1.0 / rows_per_second
        self._producer = Producer(
            {"bootstrap.servers": servers, "linger.ms": 0, "acks": "all", "log_level": 0}
        )
        self.due: dict[int, float] = {}
        """When each number was due, monotonic seconds."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Send no more; return how many rows were sent."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(WAIT_SECONDS)
        return len(self.due)

    def _run(self) -> None:
        produce: Callable[..., None] = self._producer.produce
        began, number = time.monotonic(), 0
        while not self._stop.wait(max(0.0, began + number * self._pause - time.monotonic())):
            self.due[number] = began + number * self._pause
            value = b'{"n":%d,"k":"key-%d"}' % (number, number % 1000)
            produce(self._topic, value, b"key-%d" % (number % 1000), number % PARTITIONS)
            self._producer.poll(0)
            number += 1
