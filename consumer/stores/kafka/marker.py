"""The marker: the committed offset by which a shard knows what Kafka has of it.

The group `{root}/{shard}` has one offset, at partition 0 of the checkpoints' topic: the number of the last transaction.
Its metadata is the checkpoint, or the place of the record that holds it:

    1 inline BASE64             compressed with zlib
    1 record PARTITION OFFSET   a record of the checkpoints' topic, with the group as its key
    1 direct                    none: the shard's store is another system, and only its records are sent here

Offset and records are committed by one transaction, so they agree whatever is killed. Kafka forgets offsets of groups
without members after `offsets.retention.minutes`: the first checkpoint of a shard is always a record, which stays in
the compacted topic, so that a shard whose marker was forgotten is not taken for a new one.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Final, TypeAlias

from broadsheet.runtime.errors import ValidationError

METADATA_BYTES_MAX: Final = 3_000
"""Kafka takes up to 4,095 by default (`offset.metadata.max.bytes`)."""
_VERSION: Final = "1"
_INLINE, _RECORD = "inline", "record"
DIRECT_METADATA: Final = f"{_VERSION} direct"
"""Of a shard that keeps its checkpoint elsewhere."""


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The place of a checkpoint's record."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class InlineCheckpoint:
    """An encoded checkpoint in the marker itself."""

    content: bytes


Marked: TypeAlias = InlineCheckpoint | RecordPlace


def sink_name(root: str, shard_id: str) -> str:
    """Return the transactional id and the group of a shard, which are alike."""
    return f"{root}/{shard_id}"


def inline_metadata(checkpoint: bytes) -> str | None:
    """Return the metadata that holds an encoded checkpoint; None: it is too long, and needs a record."""
    text = f"{_VERSION} {_INLINE} {b64encode(zlib.compress(checkpoint)).decode()}"
    return text if len(text) <= METADATA_BYTES_MAX else None


def record_metadata(place: RecordPlace) -> str:
    """Return the metadata that names the record of a checkpoint."""
    return f"{_VERSION} {_RECORD} {place.partition} {place.offset}"


def parse_metadata(metadata: str | None) -> Marked:
    """Return what a marker's metadata says.

    Raises:
        ValidationError: it is not one of ours, or of a newer release.
    """
    try:
        match (metadata or "").split(" "):
            case [version, kind, content] if (version, kind) == (_VERSION, _INLINE):
                return InlineCheckpoint(zlib.decompress(b64decode(content, validate=True)))
            case [version, kind, partition, offset] if (version, kind) == (_VERSION, _RECORD):
                return RecordPlace(int(partition), int(offset))
    except (ValueError, zlib.error) as error:
        raise ValidationError("marker", f"damaged: {error}") from error
    raise ValidationError(
        "marker",
        f"expected {_VERSION} {_INLINE} … or {_VERSION} {_RECORD} …, got {(metadata or '')[:40]!r}: another program "
        "uses this group, or a newer release wrote it",
    )
