"""A Kafka cluster in memory, behind the calls of confluent-kafka that sinks make: transactions, fences, markers.

A test may have any of a producer's calls die, before or after its effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from broadsheet.consumer.stores.kafka.transactions import KafkaClients


class Kept(NamedTuple):
    """A committed record."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class KilledError(BaseException):
    """The process died here."""


@dataclass
class _Txn:
    records: list[Kept] = field(default_factory=list)
    marker: tuple[str, str, int, int, str] | None = None


@dataclass
class VirtualKafka:
    """Its state, which outlives clients."""

    topics: dict[str, int] = field(default_factory=dict)
    """Partitions by name."""
    committed: list[Kept] = field(default_factory=list)
    markers: dict[tuple[str, str, int], tuple[int, str]] = field(default_factory=dict)
    """Offset and metadata by group, topic and partition."""
    die: Callable[[str], None] = lambda _: None
    """Called with each place; may raise."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of topics and brokers."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Of the newest producer, by transactional id."""
    opened: dict[str, _Txn] = field(default_factory=dict)
    moves: int = 0
    """How often a group is asked for before it has a coordinator."""
    life: int = 0
    """Of the process that makes clients: those of former lives are dead, whatever their threads still do."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def clients(self) -> KafkaClients:
        """Makers of clients of it, which die with the present life."""
        life = self.life
        return KafkaClients(
            producer=lambda config: VirtualProducer(self, config, life),  # type: ignore[arg-type, return-value]  # stands in
            consumer=lambda config: VirtualConsumer(self, config),  # type: ignore[arg-type, return-value]  # stands in
            admin=lambda config: VirtualAdmin(self),  # type: ignore[arg-type, return-value]  # stands in
        )


class VirtualProducer:
    """A transactional producer."""

    def __init__(self, kafka: VirtualKafka, config: Mapping[str, Any], life: int) -> None:
        self._kafka, self._id, self._life = kafka, config["transactional.id"], life
        self._epoch = 0
        self._produced = 0

    def list_topics(self, topic: str = "", timeout: float = 0) -> None:
        """Answer."""

    def init_transactions(self, timeout: float) -> None:
        """Fence, and abort what is open."""
        del timeout
        kafka = self._kafka
        with kafka.lock:
            self._require_life()
            kafka.epochs[self._id] = self._epoch = kafka.epochs.get(self._id, 0) + 1
            kafka.opened.pop(self._id, None)

    def begin_transaction(self) -> None:
        """Begin."""
        with self._holding():
            self._produced = 0
            self._kafka.opened[self._id] = _Txn()
        self._kafka.die("begun")

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Sequence[tuple[str, bytes | None]] = (),
        **others: object,
    ) -> None:
        """Take a record."""
        del others
        with self._holding():
            assert 0 <= partition < self._kafka.topics[topic], f"{topic}/{partition}"
            self._kafka.opened[self._id].records.append(
                Kept(topic, partition, key, value, tuple(headers))
            )
            self._produced += 1
        if self._produced == 2:
            self._kafka.die("half")

    def send_offsets_to_transaction(
        self, offsets: Sequence[TopicPartition], group: Any, timeout: float
    ) -> None:
        """Take the marker."""
        del timeout
        self._kafka.die("all")
        with self._holding():
            (offset,) = offsets
            self._kafka.opened[self._id].marker = (
                group.name,
                offset.topic,
                offset.partition,
                offset.offset,
                offset.metadata or "",
            )
        self._kafka.die("marked")

    def commit_transaction(self, timeout: float) -> None:
        """Commit."""
        del timeout
        kafka = self._kafka
        with self._holding():
            txn = kafka.opened.pop(self._id)
            kafka.committed += txn.records
            if txn.marker is not None:
                group, topic, partition, offset, metadata = txn.marker
                kafka.markers[group, topic, partition] = offset, metadata
        kafka.die("committed")

    def abort_transaction(self, timeout: float) -> None:
        """Abort."""
        del timeout
        with self._holding():
            self._kafka.opened.pop(self._id, None)

    def purge(self, **others: object) -> None:
        """Do nothing."""

    def _require_life(self) -> None:
        if self._kafka.life != self._life:
            raise KilledError

    def _holding(self) -> threading.RLock:
        with self._kafka.lock:
            self._require_life()
            if self._kafka.epochs.get(self._id) != self._epoch:
                raise KafkaException(KafkaError(KafkaError.PRODUCER_FENCED, "fenced", True))
        return self._kafka.lock


class VirtualConsumer:
    """Reads markers."""

    def __init__(self, kafka: VirtualKafka, config: Mapping[str, Any]) -> None:
        self._kafka, self._group = kafka, config["group.id"]

    def committed(
        self, places: Sequence[TopicPartition], timeout: float = 0
    ) -> list[TopicPartition]:
        """Return committed offsets; -1001 where there are none."""
        del timeout
        if self._kafka.moves:
            self._kafka.moves -= 1
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
        found = []
        for place in places:
            key = self._group, place.topic, place.partition
            offset, metadata = self._kafka.markers.get(key, (-1001, ""))
            found.append(TopicPartition(place.topic, place.partition, offset, metadata))
        return found

    def commit(self, offsets: Sequence[TopicPartition], asynchronous: bool) -> None:
        """Commit offsets."""
        del asynchronous
        for place in offsets:
            key = self._group, place.topic, place.partition
            self._kafka.markers[key] = place.offset, place.metadata or ""

    def consumer_group_metadata(self) -> Any:
        """Return what transactions need."""
        return SimpleNamespace(name=self._group)

    def close(self) -> None:
        """Do nothing."""


class VirtualAdmin:
    """Tells topics and settings."""

    def __init__(self, kafka: VirtualKafka) -> None:
        self._kafka = kafka

    def poll(self, timeout: float) -> None:
        """Do nothing."""

    def list_topics(self, timeout: float = 0) -> Any:
        """Return the brokers."""
        del timeout
        return SimpleNamespace(brokers={1: None})

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        """Return the partitions of topics."""
        del request_timeout
        return {name: self._described(name) for name in topics.topic_names}

    def _described(self, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        if name in self._kafka.topics:
            partitions = [
                SimpleNamespace(id=number, leader=SimpleNamespace(id=1), isr=[1], replicas=[1])
                for number in range(self._kafka.topics[name])
            ]
            future.set_result(SimpleNamespace(partitions=partitions, topic_id=None))
        else:
            future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return future

    def create_topics(self, topics: Sequence[Any]) -> dict[str, Any]:
        """Create topics."""
        done: Future[None] = Future()
        done.set_result(None)
        for topic in topics:
            self._kafka.topics[topic.topic] = topic.num_partitions
        return {topic.topic: done for topic in topics}

    def describe_configs(self, resources: Sequence[Any], request_timeout: float) -> dict[Any, Any]:
        """Return settings."""
        del request_timeout
        told: Future[Any] = Future()
        told.set_result(
            {name: SimpleNamespace(value=value) for name, value in self._kafka.settings.items()}
        )
        return dict.fromkeys(resources, told)
