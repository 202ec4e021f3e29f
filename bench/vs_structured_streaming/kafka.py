"""One Kafka broker in KRaft mode, and the topics of one measurement: rows go in, sums come out.

The broker has its default settings: what it acknowledged is in memory, and reaches the disk later.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.vs_structured_streaming.maven import KAFKA, java_program
from bench.vs_structured_streaming.results import Results, Sums
from bench.vs_structured_streaming.rows import PARTS, Chunk, Row, part_of
from broadsheet.embedded.child_process import ChildProcess

START_SECONDS_MAX = 180.0
_POLL_SECONDS = 0.05
_ACKNOWLEDGE_SECONDS = 60.0
_TRANSACTION_SECONDS = 600.0
_MESSAGES_AT_ONCE = 10_000
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
log.dirs={logs}
# One copy each, for there is one broker.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
# Groups, and so Kafka Streams, begin at once.
group.initial.rebalance.delay.ms=0
"""


class KafkaBroker:
    """A broker process. A context manager."""

    def __init__(self, directory: Path, properties: Mapping[str, str] | None = None) -> None:
        """Describe it.

        Args:
            directory: Of its data; made if missing.
            properties: More of its settings.
        """
        self._directory = directory
        self._properties = dict(properties or {})
        self._port, self._controller = _free_port(), _free_port()
        self.servers = f"127.0.0.1:{self._port}"

    def __enter__(self) -> KafkaBroker:
        class_path = os.pathsep.join(map(str, KAFKA.class_path()))
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._directory / "server.properties"
        more = "".join(f"{name}={value}\n" for name, value in self._properties.items())
        properties.write_text(
            _PROPERTIES.format(
                port=self._port, controller=self._controller, logs=self._directory / "logs"
            )
            + more
        )
        java = [java_program(), "-Xmx1g", "-cp", class_path]
        cluster = ["-t", str(uuid.uuid4()), "-c", str(properties), "--standalone"]
        subprocess.run(  # noqa: S603 - Kafka's own program
            [*java, "kafka.tools.StorageTool", "format", *cluster], check=True, capture_output=True
        )
        self._log_file = self._directory / "broker.log"
        self._child = ChildProcess(
            [*java, "kafka.Kafka", str(properties)],
            directory=self._directory,
            log_file=self._log_file,
        )
        self._wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate(timeout_seconds=20.0)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._child.exit_code is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(_POLL_SECONDS)
        self._child.kill()
        raise RuntimeError(f"Kafka did not start: {self._log_file.read_text()[-2000:]}")


class KafkaTopics:
    """Topics of rows and of sums, of as many partitions as the rows have parts."""

    def __init__(self, servers: str, name: str) -> None:
        """Make them.

        Args:
            servers: Addresses of the brokers.
            name: Of the measurement.
        """
        self.servers = servers
        self.rows, self.sums = f"rows-{name}", f"sums-{name}"
        admin = AdminClient({"bootstrap.servers": servers})
        topics = [NewTopic(topic, PARTS, 1) for topic in (self.rows, self.sums)]
        for created in admin.create_topics(topics).values():
            created.result(_ACKNOWLEDGE_SECONDS)


class KafkaFeed:
    """Publishes rows, each as soon as it comes."""

    def __init__(self, topics: KafkaTopics) -> None:
        """Connect.

        Args:
            topics: Where the rows go.
        """
        self._topics = topics
        self._producer = Producer(
            {"bootstrap.servers": topics.servers, "linger.ms": 0, "acks": "all", "log_level": 0}
        )

    def send(self, row: Row) -> None:
        """Publish one row; do not wait until it is acknowledged."""
        self._producer.produce(
            self._topics.rows,
            msgspec.json.encode(row.as_message()),
            key=row.key.encode(),
            partition=part_of(row.key),
        )
        self._producer.poll(0)

    def publish(self, chunks: Sequence[Chunk]) -> float:
        """Publish chunks of rows in one transaction; return when it began to commit, monotonic seconds.

        Readers of committed messages see none of them before, and all of them then.
        """
        producer = Producer(
            {
                "bootstrap.servers": self._topics.servers,
                "transactional.id": self._topics.rows,
                "transaction.timeout.ms": int(_TRANSACTION_SECONDS * 1000),
                "linger.ms": 20,
                "queue.buffering.max.messages": 2 * _MESSAGES_AT_ONCE,
            }
        )
        producer.init_transactions(_ACKNOWLEDGE_SECONDS)
        producer.begin_transaction()
        key_of = msgspec.json.Decoder(_Keyed).decode
        for chunk in chunks:
            for number, line in enumerate(chunk.content.splitlines()):
                key = key_of(line).k.encode()
                producer.produce(self._topics.rows, line, key=key, partition=chunk.part)
                if number % _MESSAGES_AT_ONCE == _MESSAGES_AT_ONCE - 1:
                    producer.flush(_ACKNOWLEDGE_SECONDS)
            producer.flush(_ACKNOWLEDGE_SECONDS)
        began = time.monotonic()
        producer.commit_transaction(_ACKNOWLEDGE_SECONDS)
        return began


class _Keyed(msgspec.Struct):
    k: str


class _Result(msgspec.Struct):
    k: str
    n: int
    total: int
    pid: int = 0


class KafkaSumsReader:
    """Reads the committed sums of a measurement as they come. A context manager."""

    def __init__(self, topics: KafkaTopics, results: Results) -> None:
        """Describe what to read, and where it goes."""
        self._topics = topics
        self._results = results
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> KafkaSumsReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self._results.fail(error)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._topics.servers,
                "group.id": f"reader-of-{self._topics.sums}",
                "isolation.level": "read_committed",
                "log_level": 0,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,  # A fetch is answered as soon as there is a byte.
            }
        )
        consumer.assign([TopicPartition(self._topics.sums, part, 0) for part in range(PARTS)])
        decode = msgspec.json.Decoder(_Result).decode
        try:
            while not self._stop.is_set():
                message = consumer.poll(_POLL_SECONDS)
                if message is None:
                    continue
                if message.error() is not None:
                    raise RuntimeError(str(message.error()))
                self._results.add([_sums(decode(message.value() or b""))])
        finally:
            consumer.close()


def _sums(found: _Result) -> Sums:
    return Sums(found.k, found.n, found.total, found.pid, time.monotonic())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def why_left_out() -> str | None:
    """Return why no Kafka can be run here; None if one can."""
    try:
        KAFKA.class_path()
    except Exception as error:
        return str(error)
    return None
