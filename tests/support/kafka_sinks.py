"""`KafkaStore` for the conformance suites, and an outside reader of what it committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.kafka.store import KafkaStore
from tests.support.eventually import eventually_sync

_POLL_SECONDS = 0.02
_NEW_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION)
"""Errors that a broker answers of a topic for a moment after it was made."""


class Sent(NamedTuple):
    """A record that a reader saw."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class CommittedReader:
    """Reads committed records of a topic from its beginning on, each of them once."""

    def __init__(self, config: Mapping[str, Any], topic: str, partitions: int = 1) -> None:
        """Begin to read.

        Args:
            config: Of the client.
            topic: The topic, which exists.
            partitions: How many it has.
        """
        reader = {
            "log_level": 0,
            "fetch.wait.max.ms": 20,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **config,
            "group.id": f"reader-{uuid4().hex}",
        }
        self._places = [TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)]
        self._ends = Consumer({**reader, "isolation.level": "read_uncommitted"})
        self._consumer = Consumer({**reader, "isolation.level": "read_committed"})
        self._consumer.assign(self._places)
        self.records: list[Sent] = []
        """All that was read."""

    def catch_up(self, *, timeout_seconds: float = 60.0) -> list[Sent]:
        """Read up to the ends that the partitions have now, and return all records.

        Waits until no transaction is open below them: a commit returns before the partitions have its end.
        """
        ends: dict[int, int] = {}

        def are_told() -> bool:
            try:
                for each in self._places:
                    ends[each.partition] = self._ends.get_watermark_offsets(each, timeout=10)[1]
            except KafkaException as error:
                # Of a topic that was made just now.
                if error.args[0].code() not in _NEW_TOPIC:
                    raise
                return False
            return True

        eventually_sync(are_told, timeout_seconds=timeout_seconds, message="the ends are told")

        def is_read() -> bool:
            for message in self._consumer.consume(1_000, _POLL_SECONDS):
                if message.error() is not None:
                    continue
                partition = message.partition()
                assert partition is not None
                headers: Any = message.headers()  # The stubs allow what only producers take.
                self.records.append(
                    Sent(partition, message.key(), message.value(), tuple(headers or ()))
                )
            return all(
                not ends[each.partition] or each.offset >= ends[each.partition]
                for each in self._consumer.position(self._places)
            )

        eventually_sync(is_read, timeout_seconds=timeout_seconds, message=f"read to {ends}")
        return self.records

    def close(self) -> None:
        """Close the clients."""
        self._ends.close()
        self._consumer.close()


class KafkaSubject:
    """`KafkaStore`, whose state is the last value of each key in a topic of the shard's own."""

    excludes = False
    open_txn_blocks = False

    def __init__(self, config: Mapping[str, Any], create: Callable[[str], None]) -> None:
        """Describe it.

        Args:
            config: Of the client.
            create: Creates a topic of one partition, given its name.
        """
        self._config = {"log_level": 0, **config}
        self._create = create
        self._readers: dict[str, CommittedReader] = {}
        self._shards: dict[int, str] = {}

    def open(self, shard: Shard) -> KafkaStore:
        """Return a holder with producers of its own."""
        if shard.fqn not in self._readers:
            self._create(topic_of(shard.fqn))
            self._readers[shard.fqn] = CommittedReader(self._config, topic_of(shard.fqn))
        store = KafkaStore(shard, self._config)
        self._shards[id(store)] = shard.fqn
        return store

    def put(self, store: Any, key: str, value: int) -> None:
        """Publish a value of a key."""
        topic = topic_of(self._shards[id(store)])
        store.publish(topic, json.dumps(value).encode(), key.encode())

    def committed(self, store: Any) -> dict[str, int]:
        """Return the last values that a reader of committed records sees."""
        return {
            (key or b"").decode(): json.loads(value or b"")
            for _, key, value, _ in self._readers[self._shards[id(store)]].catch_up()
        }

    def leftovers(self, shard: Shard) -> list[str]:
        """Return nothing: a store leaves no files here."""
        del shard
        return []

    def close(self) -> None:
        """Close the readers."""
        for reader in self._readers.values():
            reader.close()


def topic_of(fqn: str) -> str:
    """Return the name of a shard's topic."""
    return fqn.strip("/").replace("/", ".")
