"""Retention of silent producers: judged by the reader's own progress, never by a single producer's clock.

A producer must stay known for as long as copies of its messages may still arrive: an append whose answer was lost is
retried, and a successor repeats the last acknowledgement. Two measures must agree that this time is over:

    reading time       the reader's own clock, counted while the journal brings messages; a pause counts for a minute
    clocks of others   at least two other producers have clocks past the producer's last, by the same horizon

Reading time alone would err for a reader that lags, because an hour of journal may take it a day. Clocks alone would
err for a producer whose wall clock is ahead, because every other producer would look old. For the same reason the
second greatest clock counts, not the greatest.

A producer with a pending span is never forgotten, because its messages would be lost if it acknowledged them later.

Source: gazette/core message/sequencer.go (Checkpoint: a horizon by the journal's greatest clock, which this replaces).

Pure: time comes in as values.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from broadsheet.consumer.message.sequence_rules import NOTHING_PENDING, ProducerClocks
from broadsheet.consumer.message.uuid import CLOCK_UNITS_PER_SECOND

PRUNE_HORIZON_SECONDS: Final = 24 * 3600.0
"""Gazette's. Longer than any client repeats an append."""
PAUSE_SECONDS_MAX: Final = 60.0
"""The part of a pause that counts as reading time: a reader or writer that paused for a day resumes where it stopped,
and still retries the appends from before the pause."""


class ReadingTime:
    """The time for which one journal has been read, seconds."""

    __slots__ = ("_looked_at", "seconds")

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._looked_at: float | None = None

    def advance(self, now_seconds: float) -> None:
        """Record that the journal delivers messages now.

        Args:
            now_seconds: By a clock of this process that never steps.
        """
        if self._looked_at is not None:
            self.seconds += min(max(0.0, now_seconds - self._looked_at), PAUSE_SECONDS_MAX)
        self._looked_at = now_seconds


def clock_cut(clocks: Iterable[int], *, horizon_seconds: float) -> int:
    """Return the clock before which a producer counts as old; 0 or less if no producer does.

    Args:
        clocks: The last committed clock of each producer of a journal.
        horizon_seconds: The distance of the result from the second greatest of them.
    """
    newest = heapq.nlargest(2, clocks)
    if len(newest) < 2:
        return 0
    return newest[-1] - int(horizon_seconds * CLOCK_UNITS_PER_SECOND)


def stale_ids(
    producers: Mapping[int, ProducerClocks],
    silent: Iterable[int],
    *,
    horizon_seconds: float,
    keep: ProducerClocks | None,
) -> list[int]:
    """Return the ids of the silent producers that may be forgotten.

    Args:
        producers: Of one journal, by id.
        silent: Ids of those that have been silent for the horizon of reading time.
        horizon_seconds: The distance by which the clocks of others must be ahead, too.
        keep: A producer that is being emitted, or waits for room: without its state, what a crash left unconsumed would
            be lost.
    """
    idle = [
        producer_id
        for producer_id in silent
        if producers[producer_id].begin == NOTHING_PENDING and producers[producer_id] is not keep
    ]
    if not idle:
        return []  # The usual case; reading every clock would be slow.
    cut = clock_cut(
        (producer.min_clock for producer in producers.values()), horizon_seconds=horizon_seconds
    )
    return [producer_id for producer_id in idle if producers[producer_id].max_clock < cut]
