"""The measurements of any system that reads rows from a topic of Kafka and writes sums into another.

rows/s      rows wait in a transaction of Kafka; timed is from its commit, at which a program that runs sees them all,
            to when a reader has committed sums that hold every row
latency     rows are published one by one when they are due; timed is to the committed sums that hold them
recovery    the longest time that a row published after the SIGKILL of a process waits for sums that hold it
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.disturbances import Disturbances
from bench.vs_structured_streaming.feed import Trickle
from bench.vs_structured_streaming.kafka import KafkaFeed, KafkaSumsReader, KafkaTopics
from bench.vs_structured_streaming.results import (
    LATENCY,
    LOADS,
    RECOVERY,
    RESULT_SECONDS_MAX,
    WARM_UP,
    Latencies,
    Measured,
    Pace,
    Results,
    check_exact,
    latencies_by_pace,
    longest_wait_seconds,
)
from bench.vs_structured_streaming.rows import Chunk, expected_sums, rows_in

SETTLE_SECONDS = 3.0
"""Before a kill, and after it until a row must have been held up by it."""


class Running(Protocol):
    """A program that runs."""

    def kill(self, what: str) -> None:
        """Kill a part of it; what starts it again in production, starts it again here."""
        ...


class System(Protocol):
    """A system that can be started on topics."""

    @property
    def name(self) -> str:
        """The value of the param `system`."""
        ...

    @property
    def kills(self) -> Mapping[str, int]:
        """The processes to kill, and the number of kills."""
        ...

    def running(self, topics: KafkaTopics, directory: Path) -> AbstractContextManager[Running]:
        """Start the program; end it with the block."""
        ...


@dataclass(frozen=True, slots=True)
class KafkaRun:
    """A system, and the broker that it is measured with."""

    system: System
    servers: str
    directory: Path
    _names: Iterator[int] = field(default_factory=itertools.count)

    def measure(self, chunks: Sequence[Chunk]) -> Measured:
        """Measure everything once."""
        rows = rows_in(chunks)
        rates = self.loads([chunks] * (LOADS + 1), expected_sums(rows, loads=LOADS + 1))
        return Measured(
            rows_per_second=rates[1:],
            latencies=self._latencies(),
            recoveries_seconds=self._recoveries(),
        )

    def loads(
        self, loads: Sequence[Sequence[Chunk]], expected: Mapping[str, tuple[int, int]]
    ) -> list[float]:
        """Have one program consume loads, one after the other; return rows a second of each.

        Args:
            loads: Chunks of rows.
            expected: The sums of all of them together.
        """
        with self._started("loads") as (_, feed, results):
            rates, counted = [], 0
            for chunks in loads:
                rows = rows_in(chunks)
                counted += rows
                began = feed.publish(chunks)
                ended = results.wait_until_counted(counted, timeout_seconds=RESULT_SECONDS_MAX)
                rates.append(rows / (ended - began))
            check_exact(results.latest(), expected, self.system.name)
        return rates

    def _latencies(self) -> dict[float, Latencies]:
        with Disturbances(self.directory) as disturbances:
            with self._trickling("latency", (WARM_UP, *LATENCY)) as (_, trickle, results):
                trickle.join()
            return latencies_by_pace(trickle.sent, results.seen, disturbances)

    def _recoveries(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {kill: [] for kill in self.system.kills}
        with self._trickling("recovery", (RECOVERY,)) as (running, trickle, results):
            for kill, times in self.system.kills.items():
                for _ in range(times):
                    time.sleep(SETTLE_SECONDS)
                    before = len(trickle.sent)
                    running.kill(kill)
                    time.sleep(SETTLE_SECONDS)  # Survivors may answer until they notice.
                    after = trickle.sent[:]
                    results.wait_until_seen(after, timeout_seconds=RESULT_SECONDS_MAX)
                    found[kill].append(longest_wait_seconds(after, results.seen, since=before))
        return found

    @contextmanager
    def _trickling(
        self, name: str, paces: Sequence[Pace]
    ) -> Iterator[tuple[Running, Trickle, Results]]:
        """Send rows while the block runs; then check that every one was counted once."""
        with self._started(name) as (running, feed, results):

            def first() -> float:
                return results.wait_until_counted(1, timeout_seconds=RESULT_SECONDS_MAX)

            trickle = Trickle(feed.send, paces, after_first=first)
            trickle.start()
            first()
            yield running, trickle, results
            rows = trickle.stop()
            results.wait_until_counted(rows, timeout_seconds=RESULT_SECONDS_MAX)
            check_exact(results.latest(), expected_sums(rows), self.system.name)

    @contextmanager
    def _started(self, name: str) -> Iterator[tuple[Running, KafkaFeed, Results]]:
        name = f"{self.system.name}-{name}-{next(self._names)}"
        directory = self.directory / name
        directory.mkdir(parents=True)
        topics, results = KafkaTopics(self.servers, name), Results()
        with (
            KafkaSumsReader(topics, results),
            self.system.running(topics, directory) as running,
        ):
            yield running, KafkaFeed(topics), results
