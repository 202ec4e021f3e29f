"""Counters of one attempt: for metrics, for requests that wait, and for the stall detector."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from broadsheet.consumer.application import Shard
from broadsheet.consumer.message.sequence_rules import SequenceOutcome
from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.metrics import ShardMetrics
from broadsheet.consumer.shard.progress import ACKNOWLEDGED, Progress

_log = structlog.get_logger()
_WORTH_KNOWING = {
    SequenceOutcome.UNKNOWN_FLAGS: "sequencer.unknown_flags",
    SequenceOutcome.SPAN_DISCARDED: "sequencer.span_discarded",
    SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS: "sequencer.producer_lost_progress",
}
"""What an operator should know of messages that were read, and the event that tells it: one a batch at most."""


class AttemptCounters:
    """Counters of one attempt; implements `broadsheet.consumer.shard.transaction_loop.TxnObserver`."""

    def __init__(self, shard: Shard, progress: Progress, metrics: ShardMetrics) -> None:
        self._shard = shard
        self._progress = progress
        self._metrics = metrics
        self.sequenced_to: dict[str, int] = {}
        """Offsets read and sequenced, bytes by journal."""
        self.consumed_bytes = 0
        """Of journals, by completed transactions."""
        self.transactions = 0
        """Completed."""
        self.first_committed = asyncio.Event()
        """Set once a transaction of this attempt is complete."""

    def on_achieved(
        self, achieved: tx.PublishProgress | tx.RecordTxn | tx.RecordCheckpoint
    ) -> None:
        """Record the progress of transactions."""
        metrics, fqn = self._metrics, self._shard.fqn
        if isinstance(achieved, tx.RecordCheckpoint):
            metrics.record_checkpoint(fqn, achieved)
            if achieved.evicted:
                _log.warning(
                    "sequencer.producers_evicted",
                    shard=self._shard.id,
                    evicted=achieved.evicted,
                    known=achieved.producers.known,
                    action="look for who makes new producers, or raise producers_bytes_max: "
                    "what an evicted one repeats counts a second time",
                )
            return
        if isinstance(achieved, tx.RecordTxn):
            metrics.record_txn(fqn, achieved)
            self.consumed_bytes += achieved.message_bytes
            self.transactions += 1
            self.first_committed.set()
            return
        self._progress.update(achieved.read_through, achieved.publish_at)
        self._progress.told(ACKNOWLEDGED)
        metrics.record_read_through(fqn, achieved.read_through)

    def on_sequenced(self, record: tx.RecordSequenced) -> None:
        """Count the messages that were read, and log what an operator should know."""
        self._metrics.record_sequenced(record)
        self.sequenced_to[record.journal] = record.end
        for outcome, text in _WORTH_KNOWING.items():
            messages = record.outcomes.get(outcome, 0)
            if messages:
                _log.warning(
                    text,
                    shard=self._shard.id,
                    journal=record.journal,
                    messages=messages,
                    begin=record.begin,
                    end=record.end,
                )

    def on_replayed(self, journal: str, messages: int) -> None:
        """Count messages that were read again."""
        self._metrics.record_replayed(journal, messages)


# Resources of the process that one shard has used so far.


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Sums over one attempt to serve; the next begins at zero."""

    consumed_bytes: int = 0
    """Journal bytes of completed transactions."""
    cpu_seconds: float = 0.0
    """CPU time of the worker thread, up to the last call that it finished."""
