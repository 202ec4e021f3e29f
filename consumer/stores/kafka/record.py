"""Records on their way to Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

_HEADER_FRAME_BYTES: Final = 10
"""Most bytes of a header beside its name and value: the length of each, in up to 5 bytes."""


class Record(NamedTuple):
    """One record to be sent."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int = -1
    """-1: the partitioner chooses."""
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0
    """Milliseconds since 1970; 0: now."""


class RecordRun(NamedTuple):
    """Many records of one topic, in their order, as columns: an object for each would cost as much as its sending."""

    topic: str
    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    """As many."""
    partition: int = -1
    """Of all; -1: the partitioner chooses."""


Outgoing: TypeAlias = Record | RecordRun


def record_bytes(
    value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Return the most bytes that a record takes of its topic's limit, beside the frame that all records have."""
    size = len(value or b"") + len(key or b"")
    for name, content in headers:
        size += len(name.encode()) + len(content or b"") + _HEADER_FRAME_BYTES
    return size


def places_of(outgoing: Iterable[Outgoing]) -> set[tuple[str, int]]:
    """Return the topics and partitions of records; -1: the partitioner chooses."""
    return {(each.topic, each.partition) for each in outgoing}


def count_records(outgoing: Iterable[Outgoing]) -> int:
    """Return how many records these are."""
    return sum(len(each.values) if isinstance(each, RecordRun) else 1 for each in outgoing)
