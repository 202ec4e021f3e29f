"""A file and a `KafkaConnection` for `sink_lives`: a store elsewhere, whose records go straight into Kafka."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from broadsheet.consumer.application import RecordConnection, Shard
from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.stores.kafka.transactions import KafkaClients
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.sinks.kafka_lives import KEYS, answers as answers, dying_producer
from tests.sinks.sink_lives import settled

KEY = "kafka:default"
PLACES = (
    "before",
    "stored",
    "begun",
    "half",
    "all",
    "marked",
    "committed",
    "after",
    "zombie-stored",
    "zombie-half",
    "zombie-marked",
)


class FileAndTopic:
    """A store of one file, with the way of its shard's records."""

    def __init__(self, config: dict[str, Any], shard: Shard, die: Callable[[str], None]) -> None:
        """Open the connection, as an attempt to serve does."""
        clients = KafkaClients(producer=dying_producer(die))
        cluster = KafkaCluster(
            {"bootstrap.servers": config["servers"], "log_level": 0}, clients=clients
        )
        self.output = KafkaOutput(config["topic"], cluster, key="key")
        self.connection: RecordConnection = cluster.open(shard, bytes_max=1 << 20)
        self._config, self._file, self._die = config, Path(config["file"]), die
        self._epoch = Path(f"{config['file']}.epoch")
        self._held = b""

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Fence the file and Kafka, and send what the file has and Kafka has not."""
        del shard
        self.connection.start()
        self._held = os.urandom(8)
        self._epoch.write_bytes(self._held)
        stored = self._file.read_bytes() if self._file.exists() else b""
        checkpoint = Checkpoint.FromString(stored)
        known = checkpoint.ack_intents.get(KEY, b"")
        intent = self.connection.settle(known, self)
        settled(
            sys.modules[__name__],
            self._config,
            self.connection.acknowledge(intent, None, recovered=True),
        )
        return checkpoint

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Write the file, then send."""
        del shard, wait_for
        intent = self.connection.take_intent()
        checkpoint.ack_intents[KEY] = intent
        new = self._file.with_suffix(f".{self._held.hex()}")
        with new.open("wb") as file:
            file.write(checkpoint.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        # The lives of one shard do not overlap but for zombies, which go on only behind their successor's end.
        if self._epoch.read_bytes() == self._held:
            new.rename(self._file)
        self._die("stored")
        durable: Future[object] = Future()
        durable.set_result(None)
        return self.connection.acknowledge(intent, durable, recovered=False)

    def destroy(self) -> None:
        """Close the connection."""
        self.connection.close()


def open_store(config: dict[str, Any], shard: Shard, die: Callable[[str], None]) -> FileAndTopic:
    """Return the store."""
    return FileAndTopic(config, shard, die)


def publish(store: FileAndTopic, number: int) -> None:
    """Send a number of a key."""
    key = f"k{number % KEYS}"
    value = json.dumps({"key": key, "n": number}).encode()
    store.connection.add(store.output, value, key.encode(), ())
