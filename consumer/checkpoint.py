"""Checkpoints: built at the end of a transaction, read at the start of a primary.

Source: gazette/core consumer/protocol (the message and its meaning).
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.message.producer_segment import put_together
from broadsheet.consumer.protocol.identity_pb2 import JournalEpoch
from broadsheet.consumer.protocol.shard_pb2 import Checkpoint


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


class SourceOrigins:
    """Epochs of a checkpoint's source offsets: which life of the journal each offset belongs to."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._epochs = {
            journal: source.epoch
            for journal, source in checkpoint.sources.items()
            if source.HasField("epoch")
        }
        self._resets = {
            journal: source.reset for journal, source in checkpoint.sources.items() if source.reset
        }

    def note(self, journal: str, epoch: JournalEpoch) -> None:
        """Record the epoch in which a source is read."""
        self._epochs[journal] = epoch

    def stamped(self, sources: Mapping[str, Checkpoint.Source]) -> Mapping[str, Checkpoint.Source]:
        """Return the sources of a new checkpoint, with the known epochs added."""
        for journal, source in sources.items():
            if journal in self._epochs:
                source.epoch.CopyFrom(self._epochs[journal])
            if journal in self._resets:
                source.reset = self._resets[journal]
        return sources


def epoch_of(checkpoint: Checkpoint, journal: str) -> JournalEpoch | None:
    """Return the epoch of a source's offset; None if the checkpoint does not know."""
    source = checkpoint.sources.get(journal)
    return source.epoch if source is not None and source.HasField("epoch") else None


def start_offset(checkpoint: Checkpoint, journal: str, min_offset: int) -> int:
    """Return the offset at which to read a source, bytes: after what was sequenced, and not below its lower bound."""
    # Not `checkpoint.sources[journal]`: looking up an absent key of a protobuf map inserts it.
    seen = checkpoint.sources[journal].read_through if journal in checkpoint.sources else 0
    return max(seen, min_offset)


def stored_checkpoint(shard_fqn: str, encoded: bytes | None) -> Checkpoint:
    """Parse a stored checkpoint; an empty one if there is none yet.

    Raises:
        StoreError: the bytes are none; the error names the shard.
    """
    try:
        return Checkpoint.FromString(encoded or b"")
    except DecodeError as error:
        raise StoreError(
            shard_fqn,
            f"its stored checkpoint cannot be read: {error}; restore state and checkpoint together, from a copy",
        ) from error


def whole_checkpoint(
    shard_fqn: str, checkpoint: Checkpoint, segments: Mapping[bytes, bytes]
) -> Checkpoint:
    """Return the complete checkpoint of one that refers to segments.

    Args:
        shard_fqn: The shard.
        checkpoint: As it was stored.
        segments: Contents by id, of all that the store has.

    Raises:
        StoreError: a segment is missing or damaged; the error names the shard, the journal and the segment.
    """
    try:
        return put_together(checkpoint, segments)
    except ValueError as error:
        raise StoreError(shard_fqn, f"cannot restore: {error}") from error
