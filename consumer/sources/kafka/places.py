"""Starting offsets of partitions, and their entries in checkpoints.

A checkpoint has an entry for each partition that is read, and one for each topic, `kafka/{topic}`: the topic's id,
which says what its offsets are offsets of. A topic that was deleted and created again has another id. If it is to be
read from its beginning, its messages continue the offsets of the old one, because offsets of a name never decrease:

    Kafka's      0 ... 11 | 0 ... 4            shift of the new topic: 12
    ours         0 ... 11 | 12 ... 16
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

import msgspec

from broadsheet.consumer.errors import SourceDataLossError
from broadsheet.consumer.sources.part import AtTimestamp as AtTimestamp, Latest as Latest, Part
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format, LaterFormatError
from broadsheet.wire.shard_pb2 import Checkpoint

EntryT = TypeVar("EntryT", bound=msgspec.Struct)
PLACE: Final = Format("a place in a topic of Kafka", "let a member of that release serve the shard")
_UNNOTED: Final = b'{"begin":0}'
"""Of a partition that an application committed an offset of, and nothing else."""


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
    """Kafka's offset at which the application began to read it."""
    shift: int = 0
    """Our offsets minus Kafka's."""

    def encode(self) -> bytes:
        """Encode the entry for a checkpoint."""
        return msgspec.json.encode(self)

    def resume_at(self, read_through: int) -> int:
        """Return Kafka's offset to resume at.

        Args:
            read_through: The checkpoint's offset, one of ours.
        """
        return max(read_through - self.shift, self.begin)


class TopicEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic's entry in a checkpoint, as JSON: it was begun, also if none of its partitions is ours."""

    id: str = ""
    """Base64, as Kafka's tools show it; empty: its brokers did not tell."""

    def encode(self) -> bytes:
        """Encode the entry for a checkpoint."""
        return msgspec.json.encode(self)


def topic_name(topic: str) -> str:
    """Return the name of a topic's entry."""
    return f"kafka/{topic}"


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition's messages."""
    return f"kafka/{topic}/{partition}"


def reads(part: Part, partition: int) -> bool:
    """Tell whether a part reads a partition: the same numbers of every topic, stable when partitions are added."""
    return partition % part.count == part.index


def topic_entry(checkpoint: Checkpoint, topic: str) -> TopicEntry | None:
    """Return a topic's entry; None if the checkpoint has none.

    Raises:
        SourceDataLossError: it cannot be read.
    """
    name = topic_name(topic)
    source = checkpoint.sources.get(name)
    return None if source is None else _decoded(name, source.resume, TopicEntry)


def begun_partitions(checkpoint: Checkpoint, topic: str) -> dict[TopicPartitionKey, Begun]:
    """Return the entries of a topic's partitions.

    Raises:
        SourceDataLossError: one cannot be read.
    """
    prefix = topic_name(topic) + "/"
    return {
        (topic, int(number)): _decoded(name, source.resume, Begun)
        for name, source in checkpoint.sources.items()
        if name.startswith(prefix) and (number := name.removeprefix(prefix)).isdecimal()
    }


def offset_of(checkpoint: Checkpoint, key: TopicPartitionKey) -> int | None:
    """Return Kafka's offset to resume at; None if the checkpoint does not know the partition.

    Raises:
        SourceDataLossError: what it says of the partition cannot be read.
    """
    name = partition_name(*key)
    source = checkpoint.sources.get(name)
    if source is None:
        return None
    return _decoded(name, source.resume, Begun).resume_at(source.read_through)


def begun_again(checkpoint: Checkpoint, topic: str) -> dict[TopicPartitionKey, Begun]:
    """Return entries that read every known partition of a topic that was created again from its beginning.

    Also of partitions that the new topic does not have: they may be added to it.
    """
    return {
        key: Begun(0, shift=begun.shift + (offset_of(checkpoint, key) or 0))
        for key, begun in begun_partitions(checkpoint, topic).items()
    }


def _decoded(name: str, content: bytes, kind: type[EntryT]) -> EntryT:
    try:
        return PLACE.decode_json(content or _UNNOTED, kind)
    except LaterFormatError as error:
        raise SourceDataLossError(name, str(error)) from error
    except DocumentError as error:
        raise SourceDataLossError(
            name, f"its checkpoint cannot be read, restore an earlier one: {error}"
        ) from error
