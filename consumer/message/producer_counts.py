"""How many producers a shard has to do with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerCounts:
    """How many producers a shard's sources have, in all."""

    known: int
    filed: int
    """Of those, the ones that have been silent, and that checkpoints do not name (`JournalProducers`)."""
    evicted: int
    """Forgotten since the sequencer began, because there were too many."""
