"""Looks at the clocks of messages as a read is planned: those ahead are warned of, or end the read. Driver only."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import structlog

from consumer.message.clock_watch import ClockAhead, ToldProducers, latest_clock
from consumer.message.uuid import unix_seconds_of
from spark_bridge.journal_source.message_table import MessageTable
from spark_bridge.journal_source.options import ReadOptions

_log = structlog.get_logger()


class TableClocks:
    """The clocks of one read, all its journals together."""

    def __init__(
        self, options: ReadOptions, *, wall_seconds: Callable[[], float] = time.time
    ) -> None:
        """Take what is allowed.

        Args:
            options: Say by how much a clock may be ahead, and whether one that is further ends the read.
            wall_seconds: Returns the driver's time, seconds since the Unix epoch.
        """
        self._options = options
        self._wall_seconds = wall_seconds
        self._told = ToldProducers()

    def on_table(self, journal: str, table: MessageTable) -> None:
        """Look at messages of a journal.

        Raises:
            ClockAheadError: a clock is ahead, and such are refused.
        """
        wall_seconds, allowed = self._wall_seconds(), self._options.clock_ahead_seconds
        ahead = table.clocks > np.uint64(latest_clock(wall_seconds, ahead_seconds=allowed))
        if not ahead.any():
            return
        those = table.select(ahead)
        found = (
            ClockAhead(journal, begin, producer, unix_seconds_of(clock) - wall_seconds)
            for begin, producer, clock in zip(
                those.begins.tolist(), those.producers.tolist(), those.clocks.tolist(), strict=True
            )
        )
        if self._options.refuse_clocks_ahead:
            raise next(found).error
        told = self._told.to_tell(found, now_seconds=time.monotonic())
        if told is not None:
            _log.warning("sequencer.clock_ahead", allowed_seconds=allowed, **told.fields)
