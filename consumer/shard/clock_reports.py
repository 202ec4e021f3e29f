"""Tells which producers of a shard's sources have clocks ahead of this process's: a warning each, and a count."""

from __future__ import annotations

import structlog

from allocator.runtime.clock import Clock
from consumer.message.batch import MessageBatch
from consumer.message.clock_watch import ToldProducers, clock_ahead, first_ahead, latest_clock
from consumer.shard.metrics import ShardMetrics

_log = structlog.get_logger()


class ClockReports:
    """Those of one shard, over all its attempts."""

    def __init__(
        self, fqn: str, *, ahead_seconds: float, clock: Clock, metrics: ShardMetrics
    ) -> None:
        """Take what to compare with, and where to count.

        Args:
            fqn: The shard's full name.
            ahead_seconds: By how much a clock may be ahead.
            clock: This process's.
            metrics: Counts the messages.
        """
        self._fqn = fqn
        self._ahead_seconds = ahead_seconds
        self._clock = clock
        self._metrics = metrics
        self._told = ToldProducers()

    def on_read(self, batch: MessageBatch) -> None:
        """Look at messages that were read."""
        wall_seconds = self._clock.wall_seconds()
        latest = latest_clock(wall_seconds, ahead_seconds=self._ahead_seconds)
        first = first_ahead(batch, latest)
        if first is None:
            return
        indices = [i for i in range(first, len(batch)) if batch.clocks[i] > latest]
        self._metrics.record_clocks_ahead(self._fqn, len(indices))
        found = (clock_ahead(batch, i, wall_seconds=wall_seconds) for i in indices)
        told = self._told.to_tell(found, now_seconds=self._clock.monotonic_seconds())
        if told is not None:
            _log.warning(
                "sequencer.clock_ahead", allowed_seconds=self._ahead_seconds, **told.fields
            )
