"""How far each producer of each journal was sequenced.

Source: gazette/core message/sequencer.go (partialSequence, ProducerStates).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
