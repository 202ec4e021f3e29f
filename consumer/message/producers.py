"""How far each producer of each journal was sequenced.

Source: gazette/core message/sequencer.go (partialSequence, ProducerStates).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from consumer.message.ageing import clock_cut
from consumer.message.ring import Span
from consumer.message.sequence_rules import NOTHING_PENDING, ProducerClocks

if TYPE_CHECKING:
    from consumer.message.journal_producers import ProducerSegment


class Producer(ProducerClocks):
    """One producer's progress in one journal. Compared by identity."""

    __slots__ = ("heard_seconds", "id", "is_named", "segment", "span")

    def __init__(self, producer_id: int, clock: int, begin: int = NOTHING_PENDING) -> None:
        super().__init__(clock, begin=begin)
        self.id = producer_id
        self.span: Span | None = None
        """Pending messages that are in memory; None if none are."""
        self.segment: ProducerSegment | None = None
        """Where it was filed and not heard since; None if a checkpoint must name it (`JournalProducers`)."""
        self.is_named = False
        """Whether any segment names it, be it with an older state."""
        self.heard_seconds = 0.0
        """When it was last heard, or restored, in its journal's reading time (`consumer.message.ageing`)."""


def stale_ids(
    producers: Mapping[int, Producer],
    *,
    read_seconds: float,
    horizon_seconds: float,
    keep: Producer | None,
) -> list[int]:
    """Return the producers that may be forgotten: silent for longer than the horizon, with nothing pending.

    Args:
        producers: Of one journal, by id.
        read_seconds: The journal's reading time.
        horizon_seconds: 0 keeps all.
        keep: Is being emitted: without its state, what a crash left unconsumed would be lost.
    """
    heard_cut = read_seconds - horizon_seconds
    if horizon_seconds <= 0 or heard_cut <= 0:
        return []
    silent = [
        producer_id
        for producer_id, producer in producers.items()
        if producer.heard_seconds < heard_cut
        and producer.begin == NOTHING_PENDING
        and producer is not keep
    ]
    if not silent:
        return []
    cut = clock_cut(
        (producer.min_clock for producer in producers.values()), horizon_seconds=horizon_seconds
    )
    return [producer_id for producer_id in silent if producers[producer_id].max_clock < cut]
