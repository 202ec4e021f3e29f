"""Prometheus metrics of shards. Labels: `shard` is the shard's fully qualified name.

Source: gazette/core consumer/metrics (names and phases).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from broadsheet.consumer.message.sequence_rules import SequenceOutcome
from broadsheet.consumer.shard.transaction_events import (
    RecordCheckpoint,
    RecordSequenced,
    RecordTxn,
    TxnTimings,
)

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
_SHARDS_MAX = 4096
"""Shards whose counters are at hand; those of others are looked up by their labels."""


class _TxnCounters(NamedTuple):
    """Counters of one shard's transactions."""

    transactions: Counter
    messages: Counter
    bytes: Counter
    phase_seconds: list[Counter]
    """Of each of `_PHASES`."""


class _CheckpointCounters(NamedTuple):
    """Counters of one shard's checkpoints."""

    bytes: Counter
    recent: Gauge
    filed: Gauge


class ShardMetrics:
    """The counters of one process; shards share them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them.

        Args:
            registry: The process's registry; a fresh one in each test.
        """
        self._transactions = Counter(
            "gazette_shard_transactions",
            "Completed transactions.",
            ("shard",),
            registry=registry,
        )
        self._messages = Counter(
            "gazette_shard_read_messages",
            "Messages consumed by completed transactions.",
            ("shard",),
            registry=registry,
        )
        self._bytes = Counter(
            "gazette_shard_read_bytes",
            "Bytes of journal consumed by completed transactions.",
            ("shard",),
            registry=registry,
        )
        self._read_head = Gauge(
            "gazette_shard_read_head",
            "Offset that completed transactions have read through, bytes.",
            ("shard", "journal"),
            registry=registry,
        )
        self._phase_seconds = Counter(
            "gazette_shard_phase_seconds",
            "Time that completed transactions spent in each phase; async phases overlap the next transaction.",
            ("shard", "phase", "type"),
            registry=registry,
        )
        self._sequenced = Counter(
            "gazette_sequencer_queued",
            "Messages read and sequenced, by their flag and by what became of them.",
            ("journal", "flag", "outcome"),
            registry=registry,
        )
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
        self._checkpoint_bytes = Counter(
            "broadsheet_shard_checkpoint_bytes",
            "Bytes of checkpoints given to the store, with the segments of silent producers.",
            ("shard",),
            registry=registry,
        )
        self._producers = Gauge(
            "broadsheet_shard_producers",
            "Producers that a primary knows, in all its sources; filed ones are silent and not in its checkpoints.",
            ("shard", "state"),
            registry=registry,
        )
        self._producers_evicted = Counter(
            "broadsheet_shard_producers_evicted",
            "Producers forgotten before their time, because they were too many.",
            ("shard",),
            registry=registry,
        )
        self._txn_counters = lru_cache(maxsize=_SHARDS_MAX)(self._new_txn_counters)
        self._checkpoint_counters = lru_cache(maxsize=_SHARDS_MAX)(self._new_checkpoint_counters)

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
            labels = (record.journal, _FLAGS[outcome], outcome.name)
            self._sequenced.labels(*labels).inc(messages)

    def record_replayed(self, journal: str, messages: int) -> None:
        """Count messages that were read again."""
        self._replayed.labels(journal).inc(messages)

    def record_checkpoint(self, shard: str, record: RecordCheckpoint) -> None:
        """Count a checkpoint that is being committed."""
        counters = self._checkpoint_counters(shard)
        counters.bytes.inc(record.checkpoint_bytes)
        counters.recent.set(record.producers.known - record.producers.filed)
        counters.filed.set(record.producers.filed)
        if record.evicted:
            self._producers_evicted.labels(shard).inc(record.evicted)

    def _new_checkpoint_counters(self, shard: str) -> _CheckpointCounters:
        return _CheckpointCounters(
            bytes=self._checkpoint_bytes.labels(shard),
            recent=self._producers.labels(shard, "recent"),
            filed=self._producers.labels(shard, "filed"),
        )

    def record_txn(self, shard: str, record: RecordTxn) -> None:
        """Count a completed transaction."""
        counters = self._txn_counters(shard)
        counters.transactions.inc()
        counters.messages.inc(record.messages)
        counters.bytes.inc(record.message_bytes)
        for counter, seconds in zip(
            counters.phase_seconds, _phase_seconds(record.timings), strict=True
        ):
            counter.inc(max(0.0, seconds))

    def _new_txn_counters(self, shard: str) -> _TxnCounters:
        return _TxnCounters(
            transactions=self._transactions.labels(shard),
            messages=self._messages.labels(shard),
            bytes=self._bytes.labels(shard),
            phase_seconds=[self._phase_seconds.labels(shard, *phase) for phase in _PHASES],
        )

    def record_read_through(self, shard: str, read_through: Mapping[str, int]) -> None:
        """Record how far completed transactions have read, bytes by journal."""
        for journal, offset in read_through.items():
            self._read_head.labels(shard, journal).set(offset)

    def record_cold_promotion(self) -> None:
        """Count a standby that was promoted before it was ready."""
        self._cold_promotions.inc()

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
