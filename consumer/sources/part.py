"""Parts of a stream or topic; a shard's label `broadsheet.dev/source-part` names its part, such as `2/8`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broadsheet.consumer.errors import UnsupportedSpecError
from broadsheet.wire.labels import value_of
from broadsheet.wire.shard_pb2 import ShardSpec

SOURCE_PART: Final = "broadsheet.dev/source-part"
"""Label of a shard: the part of a source that it reads, `index/count`; the index counts from 0. Absent: all of it."""


@dataclass(frozen=True, slots=True)
class Part:
    """The `index`-th of `count` parts; 0 <= index < count."""

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def part_of(spec: ShardSpec) -> Part:
    """Return the part that a shard's label names.

    Raises:
        UnsupportedSpecError: the label is no `index/count`.
    """
    text = value_of(spec.labels, SOURCE_PART, "0/1")
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return Part(int(index), int(count))
    raise UnsupportedSpecError(
        f"labels[{SOURCE_PART}]",
        f"expected index/count such as 0/4, the index below the count, got {text!r}",
    )


# Starting places that every system has; each system adds its own.


@dataclass(frozen=True, slots=True)
class Latest:
    """Begin with messages written from now on."""


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """Begin with messages written at `at` or later, by the system's clock; aware, in milliseconds."""

    at: datetime

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ValueError(f"at: expected a time with a zone, got {self.at!r}")
