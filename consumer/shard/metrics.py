"""Prometheus metrics of shards. Labels: `shard` is the shard's fully qualified name.

Source: gazette/core consumer/metrics (names and phases).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from broadsheet.consumer.shard.transaction_events import (
    RecordCheckpoint,
    RecordSequenced,
    RecordTxn,
    TxnTimings,
)
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.serving.tracing import tracing
from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit

_FLAGS = {
    outcome: f"{flag}_TXN"
    for outcome in SequenceOutcome
    for flag in ("OUTSIDE", "CONTINUE", "ACK")
    if outcome.name.startswith(flag)
} | {SequenceOutcome.UNKNOWN_FLAGS: "UNKNOWN", SequenceOutcome.SPAN_DISCARDED: "OUTSIDE_TXN"}
"""The flag of the messages that an outcome can have."""

_PHASES = (
    ("10-not-running", "sync"),
    ("20-consuming", "sync"),
    ("30-stalled", "sync"),
    ("40-preparing", "sync"),
    ("50-committing", "async"),
    ("60-acknowledging", "async"),
)
"""Of a transaction, and whether the next one waits for it."""
_TXN_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a transaction that only commits to one as long as `max_txn_duration` usually allows, and beyond."""
FOLLOWING: Final = "following"
"""Phase of a playback that is at its log's head."""
_SAMPLES_MAX = 64
_SAMPLE_SECONDS_LEAST = 1.0
"""Samples of one source's write head, and the least time between two."""


class SourceLag:
    """The distance of a primary's completed transactions behind a source's write head, in bytes and in time.

    The time is since the oldest byte that is not read yet was first seen in the journal. It needs neither the clocks
    of publishers nor a rate, and a journal without writers is not behind. Content that was there before this
    process looked counts from that first look on.
    """

    def __init__(self, read_through: int) -> None:
        self._read_through = read_through
        self._head = 0
        self._seen: deque[tuple[int, float]] = deque()
        """Write heads beyond what is read, rising, and when each was first seen, monotonic seconds."""

    @property
    def samples(self) -> int:
        """Number of write heads that are remembered."""
        return len(self._seen)

    def on_head(self, head: int, now: float) -> None:
        """Record a write head that a broker told."""
        if head <= self._head:
            return
        self._head = head
        if head <= self._read_through:
            return
        if self._seen and now - self._seen[-1][1] < _SAMPLE_SECONDS_LEAST:
            # Counted as seen up to a second early.
            self._seen[-1] = head, self._seen[-1][1]
            return
        if len(self._seen) == _SAMPLES_MAX:
            # Every second one, the oldest among them: what is between two samples counts from the later one on.
            self._seen = deque(list(self._seen)[::2])
        self._seen.append((head, now))

    def on_read(self, read_through: int) -> None:
        """Record how far completed transactions have read."""
        self._read_through = max(self._read_through, read_through)
        while self._seen and self._seen[0][0] <= self._read_through:
            self._seen.popleft()

    def measured(self, now: float) -> tuple[int, float]:
        """Return the lag in bytes and in seconds."""
        seen = next(iter(tuple(self._seen)), None)
        return max(0, self._head - self._read_through), 0.0 if seen is None else now - seen[1]


class SourceLags(Collector):
    """The lags of the primaries of one process, computed when metrics are collected."""

    def __init__(self) -> None:
        self._lags: dict[str, dict[str, SourceLag]] = {}
        """By shard and journal."""

    def start(self, shard: str, journal: str, offset: int) -> None:
        """Begin with a source that is read through to an offset."""
        self._lags.setdefault(shard, {})[journal] = SourceLag(offset)

    def on_head(self, shard: str, journal: str, head: int) -> None:
        """Record a write head."""
        if (lag := self._lags.get(shard, {}).get(journal)) is not None:
            lag.on_head(head, time.monotonic())

    def on_read(self, shard: str, read_through: Mapping[str, int]) -> None:
        """Record how far transactions have read."""
        lags = self._lags.get(shard, {})
        for journal, offset in read_through.items():
            if (lag := lags.get(journal)) is not None:
                lag.on_read(offset)

    def unread_bytes(self, shard: str) -> int:
        """Return the bytes of all sources that a primary has not read; 0 of a shard without a primary here."""
        now = time.monotonic()
        return sum(lag.measured(now)[0] for lag in self._lags.get(shard, {}).values())

    def forget(self, shard: str) -> None:
        """Drop the sources of a shard that is served no more: its next primary tells."""
        self._lags.pop(shard, None)

    def collect(self) -> Iterator[Metric]:
        """Return the present lags."""
        labels = ("shard", "journal")
        behind_bytes = GaugeMetricFamily(
            "broadsheet_shard_source_lag_bytes",
            "Bytes of a source that a primary's completed transactions have not read.",
            labels=labels,
        )
        behind_seconds = GaugeMetricFamily(
            "broadsheet_shard_source_lag_seconds",
            "Time since the oldest byte that is not read was seen in the journal.",
            labels=labels,
        )
        now = time.monotonic()
        # Copies, because Prometheus collects on a separate thread.
        for shard, lags in tuple(self._lags.items()):
            for journal, lag in tuple(lags.items()):
                measured = lag.measured(now)
                behind_bytes.add_metric((shard, journal), measured[0])
                behind_seconds.add_metric((shard, journal), measured[1])
        yield from (behind_bytes, behind_seconds)


class OperationProgress(Collector):
    """Rest of the longer operations of one process's replicas, computed when metrics are collected."""

    def __init__(self) -> None:
        self._operations: Callable[[], Iterable[tuple[str, Progress]]] = tuple

    def observe(self, operations: Callable[[], Iterable[tuple[str, Progress]]]) -> None:
        """Tell of these from now on, each with its shard's full name; called on the thread that collects."""
        self._operations = operations

    def collect(self) -> Iterator[Metric]:
        """Return what is left at present. A standby that has caught up has nothing to tell."""
        left = GaugeMetricFamily(
            "broadsheet_shard_operation_left",
            "What is left of the present phase of a playback, split or merge; NaN: unknown.",
            labels=("shard", "operation", "phase", "unit"),
        )
        eta = GaugeMetricFamily(
            "broadsheet_shard_operation_eta_seconds",
            "Time that this takes at the present rate; NaN: unknown.",
            labels=("shard", "operation", "phase"),
        )
        for shard, each in self._operations():
            kind = ProgressKind.Name(each.kind).removeprefix("PROGRESS_KIND_").lower()
            if (each.kind, each.phase) == (ProgressKind.PROGRESS_KIND_PLAYBACK, FOLLOWING):
                continue
            unit = ProgressUnit.Name(each.unit).removeprefix("PROGRESS_UNIT_").lower()
            left.add_metric((shard, kind, each.phase, unit), _or_nan(each.to_do))
            eta.add_metric((shard, kind, each.phase), _or_nan(each.eta_s))
        yield from (left, eta)


def _or_nan(value: float) -> float:
    return value if value >= 0 else math.nan


class ReadAheadBytes(Collector):
    """Content that the primaries of one process have read and not consumed, computed when metrics are collected."""

    def __init__(self) -> None:
        self._by_shard: Callable[[], Mapping[str, int]] = dict

    def observe(self, by_shard: Callable[[], Mapping[str, int]]) -> None:
        """Tell of these bytes from now on; called on the thread that collects."""
        self._by_shard = by_shard

    def collect(self) -> Iterator[Metric]:
        """Return the present bytes."""
        held = GaugeMetricFamily(
            "broadsheet_shard_read_ahead_bytes",
            "Bytes of journal that a primary has read and not consumed yet.",
            labels=("shard",),
        )
        for shard, in_use in self._by_shard().items():
            held.add_metric((shard,), in_use)
        yield held


@dataclass(slots=True)
class _Totals:
    """Sums over the transactions of one shard in this process."""

    transactions: int = 0
    messages: int = 0
    bytes: int = 0
    phase_seconds: list[float] = field(default_factory=lambda: [0.0] * len(_PHASES))
    """Of each of `_PHASES`."""
    checkpoint_bytes: int = 0
    recent_producers: int = 0
    """As of the last checkpoint, like `filed_producers`."""
    filed_producers: int = 0
    read_heads: dict[str, int] = field(default_factory=dict)
    """By journal."""


class TxnTotals(Collector):
    """Sums of the transactions of one process's shards; plain numbers, because each row that comes alone is one.

    Written on the event loop alone.
    """

    def __init__(self) -> None:
        self._by_shard: dict[str, _Totals] = {}
        self._sequenced: dict[tuple[str, SequenceOutcome], int] = {}
        """Messages by journal and outcome."""

    def of(self, shard: str) -> _Totals:
        """Return the sums of a shard, to be added to."""
        found = self._by_shard.get(shard)
        if found is None:
            found = self._by_shard[shard] = _Totals()
        return found

    def add_sequenced(self, journal: str, outcome: SequenceOutcome, messages: int) -> None:
        """Count messages that were read."""
        key = journal, outcome
        self._sequenced[key] = self._sequenced.get(key, 0) + messages

    def collect(self) -> Iterator[Metric]:
        """Return the present metrics."""
        # Copies, because Prometheus collects on a separate thread.
        shards = tuple(self._by_shard.items())
        for name, text, value_of in _SHARD_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=("shard",))
            for shard, totals in shards:
                counter.add_metric((shard,), value_of(totals))
            yield counter
        phases = CounterMetricFamily(
            "gazette_shard_phase_seconds",
            "Time that completed transactions spent in each phase; async phases overlap the next transaction.",
            labels=("shard", "phase", "type"),
        )
        heads = GaugeMetricFamily(
            "gazette_shard_read_head",
            "Offset that completed transactions have read through, bytes.",
            labels=("shard", "journal"),
        )
        producers = GaugeMetricFamily(
            "broadsheet_shard_producers",
            "Producers that a primary knows, in all its sources; filed ones are silent and not in its checkpoints.",
            labels=("shard", "state"),
        )
        for shard, totals in shards:
            for phase, seconds in zip(_PHASES, tuple(totals.phase_seconds), strict=True):
                phases.add_metric((shard, *phase), seconds)
            for journal, offset in tuple(totals.read_heads.items()):
                heads.add_metric((shard, journal), offset)
            producers.add_metric((shard, "recent"), totals.recent_producers)
            producers.add_metric((shard, "filed"), totals.filed_producers)
        yield from (phases, heads, producers, self._sequenced_family())

    def _sequenced_family(self) -> Metric:
        sequenced = CounterMetricFamily(
            "gazette_sequencer_queued",
            "Messages read and sequenced, by their flag and by what became of them.",
            labels=("journal", "flag", "outcome"),
        )
        for (journal, outcome), messages in tuple(self._sequenced.items()):
            sequenced.add_metric((journal, _FLAGS[outcome], outcome.name), messages)
        return sequenced


_SHARD_COUNTERS: Final[tuple[tuple[str, str, Callable[[_Totals], int]], ...]] = (
    ("gazette_shard_transactions", "Completed transactions.", attrgetter("transactions")),
    (
        "gazette_shard_read_messages",
        "Messages consumed by completed transactions.",
        attrgetter("messages"),
    ),
    (
        "gazette_shard_read_bytes",
        "Bytes of journal consumed by completed transactions.",
        attrgetter("bytes"),
    ),
    (
        "broadsheet_shard_checkpoint_bytes",
        "Bytes of checkpoints given to the store, with the segments of silent producers.",
        attrgetter("checkpoint_bytes"),
    ),
)


class ShardMetrics:
    """The counters of one process; shards share them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them.

        Args:
            registry: The process's registry; a fresh one in each test.
        """
        self._replayed = Counter(
            "gazette_sequencer_replay",
            "Messages read once more, because memory did not hold them until their acknowledgement.",
            ("journal",),
            registry=registry,
        )
        self._restarts = Counter(
            "broadsheet_shard_attempt_failures",
            "Attempts to serve as primary that ended with an error.",
            ("shard",),
            registry=registry,
        )

        self._cold_promotions = Counter(
            "broadsheet_shard_cold_promotions",
            "Standbys promoted before they had played their recovery log.",
            registry=registry,
        )
        self._stalled = Gauge(
            "broadsheet_shard_stalled",
            "1 while a primary has work and stands still.",
            ("shard",),
            registry=registry,
        )
        self._unavailable = Gauge(
            "broadsheet_shard_unavailable",
            "1 while a primary cannot reach its brokers, or none of them answers its appends.",
            ("shard",),
            registry=registry,
        )
        self._dead_letters = Counter(
            "broadsheet_shard_dead_letters",
            "Messages found to be poison and left out from then on.",
            ("shard",),
            registry=registry,
        )
        self._clocks_ahead = Counter(
            "broadsheet_shard_clocks_ahead",
            "Messages read whose clock was further ahead of this process's than clock_ahead_seconds allows.",
            ("shard",),
            registry=registry,
        )
        self._producers_evicted = Counter(
            "broadsheet_shard_producers_evicted",
            "Producers forgotten before their time, because they were too many.",
            ("shard",),
            registry=registry,
        )
        self._recovered = Counter(
            "gazette_recoverylog_recovered_bytes",
            "Bytes of recovery logs that were played; counted once the log's head is reached, and at the end.",
            registry=registry,
        )
        self._txn_seconds = Histogram(
            "broadsheet_shard_transaction_seconds",
            "Time from a transaction's first message to its last acknowledgement, of all shards of the process.",
            registry=registry,
            buckets=_TXN_BUCKETS_SECONDS,
        )
        self._tracing = tracing()
        self.lags = SourceLags()
        registry.register(self.lags)
        self.read_ahead = ReadAheadBytes()
        registry.register(self.read_ahead)
        self.operations = OperationProgress()
        registry.register(self.operations)
        self._totals = TxnTotals()
        registry.register(self._totals)

    def record_stalled(self, shard: str, stalled: bool) -> None:
        """Record whether a primary is stalled."""
        self._stalled.labels(shard).set(stalled)

    def record_unavailable(self, shard: str, unavailable: bool) -> None:
        """Record whether a primary is unavailable."""
        self._unavailable.labels(shard).set(unavailable)

    def record_dead_letter(self, shard: str) -> None:
        """Count a skipped message."""
        self._dead_letters.labels(shard).inc()

    def record_clocks_ahead(self, shard: str, messages: int) -> None:
        """Count messages whose clock is ahead."""
        self._clocks_ahead.labels(shard).inc(messages)

    def record_sequenced(self, record: RecordSequenced) -> None:
        """Count the messages of one batch by outcome."""
        for outcome, messages in record.outcomes.items():
            self._totals.add_sequenced(record.journal, outcome, messages)

    def record_replayed(self, journal: str, messages: int) -> None:
        """Count messages that were read again."""
        self._replayed.labels(journal).inc(messages)

    def record_checkpoint(self, shard: str, record: RecordCheckpoint) -> None:
        """Count a checkpoint that is being committed."""
        totals = self._totals.of(shard)
        totals.checkpoint_bytes += record.checkpoint_bytes
        totals.recent_producers = record.producers.known - record.producers.filed
        totals.filed_producers = record.producers.filed
        if record.evicted:
            self._producers_evicted.labels(shard).inc(record.evicted)

    def record_txn(self, shard: str, record: RecordTxn) -> None:
        """Count a completed transaction."""
        totals, timings = self._totals.of(shard), record.timings
        totals.transactions += 1
        totals.messages += record.messages
        totals.bytes += record.message_bytes
        spent = totals.phase_seconds
        for phase, seconds in enumerate(_phase_seconds(timings)):
            spent[phase] += max(0.0, seconds)
        seconds = max(0.0, timings.acknowledged - timings.began)
        exemplar = None if self._tracing is None else self._tracing.exemplar()
        self._txn_seconds.observe(seconds, exemplar)

    def record_read_through(self, shard: str, read_through: Mapping[str, int]) -> None:
        """Record how far completed transactions have read, bytes by journal."""
        self._totals.of(shard).read_heads.update(read_through)
        self.lags.on_read(shard, read_through)

    def record_cold_promotion(self) -> None:
        """Count a standby that was promoted before it was ready."""
        self._cold_promotions.inc()

    def record_recovered(self, played_bytes: int) -> None:
        """Count bytes of recovery logs that were played."""
        self._recovered.inc(played_bytes)

    def record_failure(self, shard: str) -> None:
        """Count a failed attempt."""
        self._restarts.labels(shard).inc()


def _phase_seconds(timings: TxnTimings) -> tuple[float, ...]:
    """Return the length of each of `_PHASES`."""
    return (
        timings.began - timings.prior_prepared,
        timings.stalled - timings.began,
        timings.finalizing - timings.stalled,
        timings.prepared - timings.finalizing,
        timings.committed - timings.prepared,
        timings.acknowledged - timings.committed,
    )
