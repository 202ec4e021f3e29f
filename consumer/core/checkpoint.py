"""Checkpoints: put together at the end of a transaction, taken apart at the start of a primary.

Source: gazette/core consumer/protocol (the message and its meaning).
"""

from __future__ import annotations

from collections.abc import Mapping

from consumer.protocol.shard_pb2 import Checkpoint


def build_checkpoint(
    sources: Mapping[str, Checkpoint.Source], ack_intents: Mapping[str, bytes]
) -> Checkpoint:
    """Return the checkpoint of a transaction.

    Args:
        sources: Offset and producers of each consumed journal, as the sequencer gives them.
        ack_intents: Framed acknowledgements of what the transaction published, by journal.
    """
    checkpoint = Checkpoint()
    for journal, source in sources.items():
        checkpoint.sources[journal].CopyFrom(source)
    for journal, intent in ack_intents.items():
        checkpoint.ack_intents[journal] = intent
    return checkpoint


def read_through_of(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the offsets that a checkpoint has read through, bytes by journal."""
    return {journal: source.read_through for journal, source in checkpoint.sources.items()}


def start_offset(checkpoint: Checkpoint, journal: str, min_offset: int) -> int:
    """Return where to read a source from, bytes: behind what was sequenced, and not below its lower bound."""
    # Not `checkpoint.sources[journal]`: looking up an absent key of a protobuf map inserts it.
    seen = checkpoint.sources[journal].read_through if journal in checkpoint.sources else 0
    return max(seen, min_offset)
