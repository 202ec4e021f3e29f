"""Aggregates of Kinesis' producers: taken apart if they are whole, and handed on as they are if not."""

from __future__ import annotations

import hashlib

import pytest

from broadsheet.consumer.sources.kinesis.records import (
    MAGIC,
    KinesisMetadata,
    ShardHashRange,
    user_records,
)
from broadsheet.wire.aggregated_record_pb2 import AggregatedRecord
from tests.support.kinesis_streams import HASH_END, aggregate

EVERYTHING = ShardHashRange(0, HASH_END - 1)
OUTER = KinesisMetadata(shard_id="shardId-000000000000", sequence_number="495", partition_key="a")


def sealed(together: AggregatedRecord) -> bytes:
    """Return an aggregate on the wire."""
    body: bytes = together.SerializeToString()
    return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()


def test_aggregate_becomes_its_records() -> None:
    """Each has its own key and index, and the number of all."""
    together = AggregatedRecord(partition_keys=["p", "q"], explicit_hash_keys=["17"])
    together.entries.add(partition_key_index=1, data=b"one")
    together.entries.add(partition_key_index=0, explicit_hash_key_index=0, data=b"two")

    first, second = user_records(OUTER, sealed(together), EVERYTHING)

    assert (first.data, first.metadata.partition_key, first.metadata.explicit_hash_key) == (
        b"one",
        "q",
        None,
    )
    assert (second.data, second.metadata.partition_key, second.metadata.explicit_hash_key) == (
        b"two",
        "p",
        "17",
    )
    assert [r.metadata.sub_sequence_number for r in (first, second)] == [0, 1]
    assert {r.metadata.sequence_number for r in (first, second)} == {"495"}


@pytest.mark.parametrize(
    "data",
    [
        b"plain",
        MAGIC,
        MAGIC + b"x" * 16,
        aggregate("k", [1])[:-1] + b"\x00",
        aggregate("k", [1])[:-3],
        sealed(AggregatedRecord(entries=[AggregatedRecord.Entry(partition_key_index=3)])),
        MAGIC + b"\xff\xff" + hashlib.md5(b"\xff\xff", usedforsecurity=False).digest(),
    ],
)
def test_what_is_no_whole_aggregate_is_handed_on_as_it_is(data: bytes) -> None:
    """Another digest, too few bytes, an index beyond its table: no reader can tell what was meant."""
    (record,) = user_records(OUTER, data, EVERYTHING)

    assert (record.data, record.metadata) == (data, OUTER)


def test_aggregate_with_a_record_of_another_shard_is_left_out() -> None:
    """Put just when its shard was split: its producer sees where it went, and puts it again."""
    data = aggregate("k", [1, 2], hash_key=50)

    assert len(user_records(OUTER, data, ShardHashRange(50, 50))) == 2
    assert user_records(OUTER, data, ShardHashRange(51, HASH_END)) == []
    assert user_records(OUTER, data, ShardHashRange(0, 49)) == []


def test_hash_of_a_key_is_its_md5() -> None:
    """Without an explicit hash key, as for a record that is put alone."""
    together = AggregatedRecord(partition_keys=["key"])
    together.entries.add(partition_key_index=0, data=b"")
    place = int(hashlib.md5(b"key", usedforsecurity=False).hexdigest(), 16)

    assert user_records(OUTER, sealed(together), ShardHashRange(place, place))
    assert not user_records(OUTER, sealed(together), ShardHashRange(place + 1, HASH_END))
