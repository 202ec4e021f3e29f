"""Which shards of a stream a part reads, and when."""

from __future__ import annotations

from broadsheet.consumer.sources.kinesis.lineage import StreamShard, outlook, slice_of
from broadsheet.consumer.sources.kinesis.records import ShardHashRange
from broadsheet.consumer.sources.part import Part
from tests.support.kinesis_streams import HASH_END


def shard(name: str, first: int, last: int, *parents: str) -> StreamShard:
    """Return a shard of [first, last), in percent of the hash keys."""
    unit = HASH_END // 100
    return StreamShard(
        id=name, parents=parents, hashes=ShardHashRange(first * unit, last * unit - 1)
    )


def listed(*shards: StreamShard) -> dict[str, StreamShard]:
    """Return shards as a stream lists them."""
    return {each.id: each for each in shards}


def test_every_hash_key_is_of_one_part() -> None:
    """Slices cover the keys without a gap, also where they do not divide them."""
    for count in (2, 3, 7):
        width = HASH_END // count
        for first, index in ((0, 0), (width - 1, 0), (width + 1, 1), (HASH_END - 1, count - 1)):
            each = StreamShard(id="s", hashes=ShardHashRange(first, first))
            assert slice_of(each, count) == index, (first, count)


def test_children_wait_for_both_parents() -> None:
    """Of two that were merged, each may have records that the child's follow."""
    shards = listed(shard("a", 0, 50), shard("b", 50, 100), shard("c", 0, 100, "a", "b"))

    def readable(*finished: str) -> list[str]:
        return [each.id for each in outlook(shards, Part(), finished=finished).readable]

    assert readable() == ["a", "b"]
    assert readable("a") == ["b"]
    assert readable("a", "b") == ["c"]


def test_parent_of_another_part_is_awaited() -> None:
    """The part that a child begins in cannot see the end of a parent that begins in the other."""
    shards = listed(shard("a", 0, 50), shard("b", 51, 100), shard("c", 0, 100, "a", "b"))

    ours = outlook(shards, Part(0, 2), finished={"a"})
    theirs = outlook(shards, Part(1, 2), finished=set())

    assert (ours.readable, [each.id for each in ours.awaited]) == ((), ["b"])
    assert [each.id for each in theirs.readable] == ["b"]
    assert outlook(shards, Part(0, 2), finished={"a", "b"}).readable == (shards["c"],)


def test_parents_that_are_not_listed_count_as_read() -> None:
    """Their records are past the stream's retention."""
    shards = listed(shard("c", 0, 100, "a", "b"))

    assert outlook(shards, Part(), finished=set()).readable == (shards["c"],)
