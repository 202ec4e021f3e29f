"""Starting offsets of partitions, and their entries in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from broadsheet.allocator.documents import DocumentError, decode_json
from broadsheet.consumer.errors import SourceDataLossError
from broadsheet.consumer.protocol.shard_pb2 import Checkpoint
from broadsheet.consumer.sources.part import AtTimestamp as AtTimestamp
from broadsheet.consumer.sources.part import Latest as Latest
from broadsheet.consumer.sources.part import Part


@dataclass(frozen=True, slots=True)
class Earliest:
    """Begin with the oldest message."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Begin at these offsets."""

    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition; those that are not named begin with their oldest message."""


Start: TypeAlias = Earliest | Latest | AtTimestamp | AtOffsets
TopicPartitionKey: TypeAlias = tuple[str, int]


class Begun(msgspec.Struct, frozen=True):
    """A partition's entry in a checkpoint, as JSON, in addition to the offset."""

    begin: int
    """The offset at which the application began to read it."""

    def encode(self) -> bytes:
        """Encode the entry for a checkpoint."""
        return msgspec.json.encode(self)


def reads(part: Part, partition: int) -> bool:
    """Tell whether a part reads a partition: the same numbers of every topic, stable when partitions are added."""
    return partition % part.count == part.index


def offset_of(checkpoint: Checkpoint, name: str) -> int | None:
    """Return the offset to resume at; None if the checkpoint does not know the partition.

    Raises:
        SourceDataLossError: what it says of the partition cannot be read.
    """
    source = checkpoint.sources.get(name)
    if source is None:
        return None
    try:
        begin = decode_json(source.resume, Begun).begin if source.resume else 0
    except DocumentError as error:
        raise SourceDataLossError(
            name, f"its checkpoint cannot be read, restore an earlier one: {error}"
        ) from error
    return max(source.read_through, begin)
