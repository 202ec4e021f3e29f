"""What a user's reader of a topic sees, and when."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection
from typing import Final, Self

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

WAIT_SECONDS: Final = 120.0


class CommittedReader:
    """Reads committed records of a topic from its beginning on, on a thread of its own. A context manager."""

    def __init__(self, servers: str, topic: str, partitions: int, *, field: str = "n") -> None:
        """Describe it.

        Args:
            servers: Addresses of the brokers.
            topic: What it reads.
            partitions: Of the topic.
            field: Of JSON records, with the number of a record.
        """
        self._field = field
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"reader-of-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, part, OFFSET_BEGINNING) for part in range(partitions)]
        )
        self.records = 0
        self.first_sent = math.inf
        """When the first record was made, as it says itself; seconds since 1970."""
        self.seen: dict[int, float] = {}
        """When each number was read first, monotonic seconds."""
        self._grew = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for(self, records: int) -> None:
        """Wait until so many records were read.

        Raises:
            TimeoutError: they do not come.
        """
        with self._grew:
            if not self._grew.wait_for(lambda: self.records >= records, WAIT_SECONDS):
                raise TimeoutError(f"{self.records} of {records} records after {WAIT_SECONDS} s")

    def wait_until_seen(self, numbers: Collection[int]) -> None:
        """Wait until each of these numbers was read.

        Raises:
            TimeoutError: one does not come.
        """
        with self._grew:
            if not self._grew.wait_for(
                lambda: all(each in self.seen for each in numbers), WAIT_SECONDS
            ):
                raise TimeoutError(f"of {len(numbers)} rows some were not read in {WAIT_SECONDS} s")

    def _run(self) -> None:
        consumer = self._consumer
        while not self._stop.is_set():
            # Without a wait for more: a record that is there is read at once.
            found = consumer.consume(1, 0.05)
            found += consumer.consume(5_000, 0.0)
            now = time.monotonic()
            taken = [each for each in found if each.error() is None]
            for each in taken:
                # Of a partition's, the first has the least.
                self.first_sent = min(self.first_sent, each.timestamp()[1] / 1000)
                number = msgspec.json.decode(each.value() or b"").get(self._field)
                if number is not None:
                    self.seen.setdefault(number, now)
            with self._grew:
                self.records += len(taken)
                self._grew.notify_all()
        consumer.close()
