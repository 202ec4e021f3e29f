"""Checkpoints: built at the end of a transaction, stored in parts, read at the start of a primary.

A checkpoint names the producers that were heard recently. The state of silent ones is packed into *segments*, each
named by its digest:

    version (1 byte) | number of producers (4) | producers: id (6), last acknowledged clock (8) | forgotten ids (6 each)

In version 2, the number (4) of those among the producers whose messages are pending, and id (6) and offset of the first
pending message (8) of each, come before the forgotten ids.

A checkpoint names its segments, oldest first; the store keeps them separately. A newer segment overrides an older one:
it first removes the producers that were forgotten, then adds its own.

Source: gazette/core consumer/protocol (the message and its meaning; segments are ours).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from types import MappingProxyType
from typing import Final

from broadsheet.journals.message.uuid import PRODUCER_BYTES
from broadsheet.runtime.formats import Format
from broadsheet.wire.identity_pb2 import JournalEpoch
from broadsheet.wire.shard_pb2 import Checkpoint

OUTPUT_KEYS: Final = "kafka:"
"""Begins the keys of intents that hold records for another system: no journal's name has a colon."""
CHECKPOINT: Final = Format("the checkpoint", "let a member of that release serve the shard")
"""Its `min_reader` also says which members may read the state that was committed with it, whatever the store."""
SEGMENT_ID_BYTES: Final = 16
_VERSION: Final = 1
_VERSION_OF_PENDING: Final = 2
_HEADER: Final = Struct(">BI")
_COUNT: Final = Struct(">I")
_CLOCK_BYTES: Final = 8
_ENTRY_BYTES: Final = PRODUCER_BYTES + _CLOCK_BYTES
_NOTHING_PENDING: Final = -1


def build_checkpoint(
    sources: Mapping[str, Checkpoint.Source],
    ack_intents: Mapping[str, bytes],
    prior_acknowledgement: Mapping[str, bytes] = MappingProxyType({}),
) -> Checkpoint:
    """Return the checkpoint of a transaction.

    A transaction that published nothing keeps one acknowledgement of before: the next primary learns from it up to
    where our producer has committed (`broadsheet.journals.message.rollback`), and may repeat it without effect.

    Args:
        sources: Offset and producers of each consumed journal, as the sequencer gives them.
        ack_intents: Framed acknowledgements of what the transaction published, by journal, and what it sends into
            other systems (`OUTPUT_KEYS`).
        prior_acknowledgement: The last one of the transactions before; empty if there is none.
    """
    checkpoint = Checkpoint()
    for journal, source in sources.items():
        checkpoint.sources[journal].CopyFrom(source)
    for journal, intent in ack_intents.items():
        checkpoint.ack_intents[journal] = intent
    # Records for other systems tell nothing of what our producer has acknowledged in journals.
    if all(key.startswith(OUTPUT_KEYS) for key in ack_intents):
        for journal, intent in prior_acknowledgement.items():
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


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """The decoded content of one segment."""

    clocks: Mapping[int, int]
    """Last acknowledged clock by producer id."""
    begins: Mapping[int, int]
    """Offset of the first pending message, bytes, of those producers that have any."""
    forgotten: Collection[int]
    """Ids of producers that older segments name, but that are no longer known."""


def packed_segment(
    clocks: Iterable[tuple[int, int]],
    forgotten: Iterable[int],
    begins: Iterable[tuple[int, int]] = (),
) -> bytes:
    """Return a segment's content.

    Args:
        clocks: Ids, and the last acknowledged clock of each.
        forgotten: Ids.
        begins: Ids among them whose messages are pending, and the offset of the first of each, bytes.
    """
    entries, pending = _packed_entries(clocks), _packed_entries(begins)
    if not pending:
        header = _HEADER.pack(_VERSION, len(entries) // _ENTRY_BYTES)
        return b"".join((header, entries, packed_ids(forgotten)))
    header = _HEADER.pack(_VERSION_OF_PENDING, len(entries) // _ENTRY_BYTES)
    count = _COUNT.pack(len(pending) // _ENTRY_BYTES)
    return b"".join((header, entries, count, pending, packed_ids(forgotten)))


def _packed_entries(entries: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(
        producer.to_bytes(PRODUCER_BYTES, "big") + value.to_bytes(_CLOCK_BYTES, "big")
        for producer, value in entries
    )


def unpacked_segment(content: bytes) -> SegmentContent:
    """Decode a segment's content, as `packed_segment` encoded it.

    Raises:
        ValueError: the content is not a segment.
    """
    _require_segment_bytes(content, _HEADER.size)
    version, count = _HEADER.unpack_from(content)
    if version not in (_VERSION, _VERSION_OF_PENDING):
        raise ValueError(
            f"a segment of silent producers of version {version}, expected {_VERSION_OF_PENDING} at most: a later "
            "release wrote it; let a member of that release serve the shard"
        )
    clocks, end = _unpacked_entries(content, _HEADER.size, count)
    begins: dict[int, int] = {}
    if version == _VERSION_OF_PENDING:
        _require_segment_bytes(content, end + _COUNT.size)
        (pending,) = _COUNT.unpack_from(content, end)
        begins, end = _unpacked_entries(content, end + _COUNT.size, pending)
        if not begins.keys() <= clocks.keys() or max(begins.values(), default=0) >= 1 << 63:
            raise ValueError("a segment whose pending messages are not those of its producers")
    return SegmentContent(clocks, begins, unpacked_ids(content[end:]))


def _unpacked_entries(content: bytes, begin: int, count: int) -> tuple[dict[int, int], int]:
    """Return entries by id, and the position after them."""
    end = begin + count * _ENTRY_BYTES
    _require_segment_bytes(content, end)
    entries = {
        int.from_bytes(content[at : at + PRODUCER_BYTES], "big"): int.from_bytes(
            content[at + PRODUCER_BYTES : at + _ENTRY_BYTES], "big"
        )
        for at in range(begin, end, _ENTRY_BYTES)
    }
    return entries, end


def _require_segment_bytes(content: bytes, least: int) -> None:
    if len(content) < least:
        raise ValueError(f"a segment of {len(content)} bytes, expected at least {least}")


def packed_ids(ids: Iterable[int]) -> bytes:
    """Return the concatenation of producer ids."""
    return b"".join(producer.to_bytes(PRODUCER_BYTES, "big") for producer in ids)


def unpacked_ids(content: bytes) -> list[int]:
    """Return the ids that `packed_ids` was given.

    Raises:
        ValueError: the last id is incomplete.
    """
    if len(content) % PRODUCER_BYTES:
        raise ValueError(f"producer ids of {len(content)} bytes, expected {PRODUCER_BYTES} each")
    return [
        int.from_bytes(content[at : at + PRODUCER_BYTES], "big")
        for at in range(0, len(content), PRODUCER_BYTES)
    ]


def segment_id(content: bytes) -> bytes:
    """Return the id of a segment of this content."""
    return blake2b(content, digest_size=SEGMENT_ID_BYTES).digest()


def taken_out(checkpoint: Checkpoint) -> tuple[Checkpoint, dict[bytes, bytes]]:
    """Return a checkpoint without its segments' contents, and the new contents by id; a store commits both together."""
    new = {
        segment.id: segment.content
        for source in checkpoint.sources.values()
        for segment in source.segments
        if segment.content
    }
    if not new:
        return checkpoint, new
    kept = Checkpoint()
    kept.CopyFrom(checkpoint)
    for source in kept.sources.values():
        for segment in source.segments:
            segment.ClearField("content")
    return kept, new


@dataclass(frozen=True, slots=True)
class EncodedCheckpoint:
    """The data that a store writes in one commit."""

    checkpoint: bytes
    new_segments: Mapping[bytes, bytes]
    """Contents by id."""
    named: set[bytes]
    """Ids of all segments that the checkpoint refers to."""


def encoded(checkpoint: Checkpoint) -> EncodedCheckpoint:
    """Return the data that a store must write for a checkpoint."""
    kept, new_segments = taken_out(checkpoint)
    return EncodedCheckpoint(
        kept.SerializeToString(deterministic=True), new_segments, segments_named(kept)
    )


def segments_named(checkpoint: Checkpoint) -> set[bytes]:
    """Return the ids of all segments that a checkpoint refers to.

    A store may drop the others once the checkpoint is committed.
    """
    return {segment.id for source in checkpoint.sources.values() for segment in source.segments}


def put_together(checkpoint: Checkpoint, contents: Mapping[bytes, bytes]) -> Checkpoint:
    """Return a stored checkpoint with its segments replaced by their producers.

    In each source, the producers of segments come first, longest silent at the head, then those that the checkpoint
    names itself.

    Args:
        checkpoint: As `taken_out` returned it.
        contents: Contents of segments by id: at least of those that the checkpoint names.

    Raises:
        ValueError: a segment is missing or is not the one the checkpoint refers to, or a producer's id is invalid.
    """
    for journal, source in checkpoint.sources.items():
        _check_ids(journal, source)
    if not any(source.segments or source.forgotten for source in checkpoint.sources.values()):
        return checkpoint
    whole = Checkpoint()
    whole.CopyFrom(checkpoint)
    for journal, source in whole.sources.items():
        _put_together(journal, source, contents)
    return whole


def _check_ids(journal: str, source: Checkpoint.Source) -> None:
    for entry in source.producers:
        if len(entry.id) != PRODUCER_BYTES:
            raise ValueError(
                f"the checkpoint names a producer of {journal} by {len(entry.id)} bytes, "
                f"expected {PRODUCER_BYTES}: it is damaged"
            )


def _put_together(journal: str, source: Checkpoint.Source, contents: Mapping[bytes, bytes]) -> None:
    clocks: dict[int, int] = {}
    begins: dict[int, int] = {}
    for segment in source.segments:
        content = segment.content or contents.get(segment.id)
        if content is None or segment_id(content) != segment.id:
            what = "is missing" if content is None else "is not what it was"
            raise ValueError(
                f"the checkpoint's segment {segment.id.hex()} of silent producers of {journal} {what}; "
                "restore the store as of one moment, the checkpoint and its segments together"
            )
        part = unpacked_segment(content)
        for producer in (*part.forgotten, *part.clocks):
            # Also those that come next, so that they are after those that have been silent for longer.
            clocks.pop(producer, None)
            begins.pop(producer, None)
        clocks.update(part.clocks)
        begins.update(part.begins)
    for producer in unpacked_ids(source.forgotten):
        clocks.pop(producer, None)
    own = list(source.producers)
    for entry in own:
        clocks.pop(int.from_bytes(entry.id, "big"), None)
    source.ClearField("segments")
    source.ClearField("forgotten")
    source.ClearField("producers")
    for producer, clock in clocks.items():
        source.producers.add(
            id=producer.to_bytes(PRODUCER_BYTES, "big"),
            state=Checkpoint.ProducerState(
                last_ack=clock, begin=begins.get(producer, _NOTHING_PENDING)
            ),
        )
    source.producers.extend(own)
