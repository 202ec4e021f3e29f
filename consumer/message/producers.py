"""How far each producer of each journal was sequenced, and its passage to and from checkpoints.

Source: gazette/core message/sequencer.go (partialSequence, ProducerStates).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from consumer.message.ageing import clock_cut
from consumer.message.ring import Span
from consumer.message.uuid import PRODUCER_BYTES
from consumer.protocol import shard_pb2

NOTHING_PENDING: Final = -1


class Producer:
    """One producer's progress in one journal. Compared by identity."""

    __slots__ = ("begin", "heard_seconds", "max_clock", "min_clock", "span")

    def __init__(
        self, clock: int, begin: int = NOTHING_PENDING, *, heard_seconds: float = 0.0
    ) -> None:
        self.min_clock = clock
        """Clock of the last message consumed or rolled back; earlier ones are duplicates."""
        self.max_clock = clock
        """Greatest clock seen."""
        self.begin = begin
        """Offset of the first pending message, bytes; -1 if none is pending."""
        self.span: Span | None = None
        """Pending messages that are in memory; None if none are."""
        self.heard_seconds = heard_seconds
        """When it was last heard, or restored, in its journal's reading time (`consumer.message.ageing`)."""


ProducersByJournal: TypeAlias = dict[str, dict[int, Producer]]


def restored(sources: Mapping[str, shard_pb2.Checkpoint.Source]) -> ProducersByJournal:
    """Return producers as a checkpoint knew them."""
    return {
        journal: {
            int.from_bytes(entry.id, "big"): Producer(entry.state.last_ack, entry.state.begin)
            for entry in source.producers
        }
        for journal, source in sources.items()
    }


def source_of(offset: int, producers: Mapping[int, Producer]) -> shard_pb2.Checkpoint.Source:
    """Return one journal's part of a checkpoint; producers by ascending id, so that equal states are equal bytes."""
    source = shard_pb2.Checkpoint.Source(read_through=offset)
    for producer_id, producer in sorted(producers.items()):
        source.producers.add(
            id=producer_id.to_bytes(PRODUCER_BYTES, "big"),
            state=shard_pb2.Checkpoint.ProducerState(
                last_ack=producer.min_clock, begin=producer.begin
            ),
        )
    return source


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
