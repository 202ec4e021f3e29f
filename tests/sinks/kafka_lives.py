"""`KafkaStore` for `sink_lives`: dies in the calls of its producer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from confluent_kafka import KafkaException, Producer

from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.kafka.store import KafkaStore
from broadsheet.consumer.stores.kafka.transactions import KafkaClients

PLACES = ("before", "half", "all", "marked", "committed", "after", "zombie-half", "zombie-marked")
KEYS = 7
_TOPICS: WeakKeyDictionary[KafkaStore, str] = WeakKeyDictionary()


def answers(config: dict[str, Any]) -> bool:
    """Report whether Kafka, and what it keeps of transactions, is there."""
    producer = Producer(
        {
            "bootstrap.servers": config["servers"],
            "log_level": 0,
            "transactional.id": f"look-{os.getpid()}",
        }
    )
    try:
        producer.init_transactions(2.0)
    except KafkaException:
        return False
    return True


def dying_producer(die: Callable[[str], None]) -> type[Producer]:
    """Return a class of producers that end their process."""

    class DyingProducer(Producer):
        """A producer that may end its process around each call of a transaction."""

        produced = 0

        def begin_transaction(self) -> None:
            self.produced = 0
            super().begin_transaction()
            die("begun")

        def produce(self, *arguments: Any, **options: Any) -> None:
            super().produce(*arguments, **options)
            self.produced += 1
            if self.produced == 2:
                self.flush(5)
                die("half")

        def send_offsets_to_transaction(self, *arguments: Any, **options: Any) -> None:
            self.flush(5)
            die("all")
            super().send_offsets_to_transaction(*arguments, **options)
            die("marked")

        def commit_transaction(self, *arguments: Any, **options: Any) -> None:
            super().commit_transaction(*arguments, **options)
            die("committed")

    return DyingProducer


def open_store(config: dict[str, Any], shard: Shard, die: Callable[[str], None]) -> KafkaStore:
    """Return a store whose producer dies."""
    store = KafkaStore(
        shard,
        {"bootstrap.servers": config["servers"], "log_level": 0},
        clients=KafkaClients(producer=dying_producer(die)),
    )
    _TOPICS[store] = config["topic"]
    return store


def publish(store: Any, number: int) -> None:
    """Send a number of a key."""
    key = f"k{number % KEYS}"
    store.publish(_TOPICS[store], json.dumps({"key": key, "n": number}).encode(), key.encode())
