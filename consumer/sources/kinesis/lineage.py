"""Shards of a stream: which part each belongs to, and which may be read now.

The hash keys [0, 2**128) are cut into as many slices as there are parts. A shard of the stream belongs to the slice in
which its range begins, whatever becomes of its parents and children, so each shard has one reader and needs no record
of who that is. It is read once its parents were read to their ends. A parent may be of another part:

    slice   0          |  1
    parents [----A----)[----B----)      C begins in slice 0, and waits for B of slice 1
    child   [---------C----------)

then the reader of C asks that part whether a checkpoint holds the parent's end (`consumer.sources.kinesis.elsewhere`).
A parent that the stream does not list any more has no records, and counts as read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from consumer.sources.kinesis.records import HashRange
from consumer.sources.part import Part

HASH_BITS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShard:
    """A shard of a stream."""

    id: str
    parents: tuple[str, ...] = ()
    hashes: HashRange


@dataclass(frozen=True, slots=True)
class Outlook:
    """What may be done with the shards of one part now."""

    readable: tuple[StreamShard, ...]
    """May be read, oldest first."""
    awaited: tuple[StreamShard, ...]
    """Parents of other parts that shards of ours wait for."""


def slice_of(shard: StreamShard, count: int) -> int:
    """Return the index of the part that reads a shard."""
    return (shard.hashes.first * count) >> HASH_BITS


def outlook(shards: Mapping[str, StreamShard], part: Part, *, finished: Collection[str]) -> Outlook:
    """Return what a part may read now.

    Args:
        shards: All that the stream lists, by id.
        part: Ours.
        finished: Ids of shards that were read to their ends, of any part.
    """
    readable: list[StreamShard] = []
    awaited: dict[str, StreamShard] = {}
    for shard_id in sorted(shards):
        shard = shards[shard_id]
        if slice_of(shard, part.count) != part.index or shard_id in finished:
            continue
        blocking = [
            shards[parent]
            for parent in shard.parents
            if parent in shards and parent not in finished
        ]
        if not blocking:
            readable.append(shard)
        awaited |= {each.id: each for each in blocking if slice_of(each, part.count) != part.index}
    return Outlook(tuple(readable), tuple(awaited.values()))
