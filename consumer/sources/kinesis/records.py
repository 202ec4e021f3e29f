"""Records of a Kinesis stream, with aggregates unpacked.

An aggregate is F3 89 9A C2, a protobuf message, and the MD5 of that. A record that is incomplete, or has another
digest, is no aggregate, and is delivered unchanged.

Source: awslabs/amazon-kinesis-producer aggregation-format.md (the format); amazon-kinesis-client AggregatorUtil (an
aggregate with a record that hashes outside its shard is left out: its producer puts it again).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from google.protobuf.message import DecodeError

from broadsheet.wire.aggregated_record_pb2 import AggregatedRecord

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_HASH_DIGITS_MAX: Final = 39
"""Of 2**128 - 1, the last hash key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisMetadata:
    """Metadata of a record in a stream."""

    shard_id: str
    sequence_number: str
    """Decimal digits; grows within the shard. Records of one aggregate share it."""
    sub_sequence_number: int = 0
    """Index within the aggregate, from 0."""
    partition_key: str
    explicit_hash_key: str | None = None
    """The explicit hash key, known only of aggregated records; decimal digits."""
    arrived_at: datetime | None = None
    """Approximate time when the stream received it, aware."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One record as its producer put it, unpacked from an aggregate."""

    metadata: KinesisMetadata
    data: bytes


@dataclass(frozen=True, slots=True)
class ShardHashRange:
    """The hash keys [first, last] of a shard."""

    first: int
    last: int

    def __contains__(self, key: int) -> bool:
        return self.first <= key <= self.last


def user_records(
    metadata: KinesisMetadata, data: bytes, hashes: ShardHashRange
) -> list[StreamRecord]:
    """Unpack a record of the stream; return nothing for an aggregate of another shard.

    Args:
        metadata: Of the record of the stream.
        data: Its content.
        hashes: Of its shard.
    """
    aggregate = _aggregate_or_none(data)
    if aggregate is None:
        return [StreamRecord(metadata, data)]
    found = list(_entries(metadata, aggregate))
    return found if all(_hash_of(record.metadata) in hashes for record in found) else []


def _aggregate_or_none(data: bytes) -> AggregatedRecord | None:
    body, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC) + _DIGEST_BYTES:
        return None
    if hashlib.md5(body, usedforsecurity=False).digest() != digest:
        return None
    try:
        aggregate = AggregatedRecord.FromString(body)
    except DecodeError:
        return None
    keys, hash_keys = len(aggregate.partition_keys), len(aggregate.explicit_hash_keys)
    whole = all(
        entry.partition_key_index < keys
        and (
            not entry.HasField("explicit_hash_key_index")
            or entry.explicit_hash_key_index < hash_keys
        )
        for entry in aggregate.entries
    )
    return aggregate if whole else None


def _entries(outer: KinesisMetadata, aggregate: AggregatedRecord) -> Iterator[StreamRecord]:
    for index, entry in enumerate(aggregate.entries):
        explicit = None
        if entry.HasField("explicit_hash_key_index"):
            explicit = aggregate.explicit_hash_keys[entry.explicit_hash_key_index]
        metadata = KinesisMetadata(
            shard_id=outer.shard_id,
            sequence_number=outer.sequence_number,
            sub_sequence_number=index,
            partition_key=aggregate.partition_keys[entry.partition_key_index],
            explicit_hash_key=explicit,
            arrived_at=outer.arrived_at,
        )
        yield StreamRecord(metadata, entry.data)


def _hash_of(metadata: KinesisMetadata) -> int:
    explicit = metadata.explicit_hash_key
    # Bounded, because Python refuses to convert thousands of digits, and one record must not stop its shard.
    if explicit is not None and explicit.isdecimal() and len(explicit) <= _HASH_DIGITS_MAX:
        return int(explicit)
    digest = hashlib.md5(metadata.partition_key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest, "big")
