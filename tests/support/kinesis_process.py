"""A moto server whose Kinesis keeps to what AWS documents where moto does not: run as a process of its own.

* Sequence numbers have 56 digits and grow across the shards of a stream, as those of AWS; moto counts each from 1.
* A shard that is split or merged keeps its records; moto moves them to its children.
* A closed shard takes nothing, and its last page names no next iterator, but its children; moto never ends one.
* SubscribeToShard, of which moto has nothing: an event with what is there, then the subscription ends.
* Scripts of a test's: `PutResourcePolicy` with a policy {"refuse": CODE, "times": N} makes the next N readings of the
  stream fail with that code; {"trim": N} drops the N oldest records of each shard.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
import sys
import zlib
from collections import OrderedDict
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.kinesis import models
from moto.kinesis.responses import KinesisResponse
from moto.kinesis.utils import compose_shard_iterator, decompose_shard_iterator
from moto.server import main

_FIRST_NUMBER = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_801
_numbers = itertools.count(_FIRST_NUMBER, 2**24 + 1)


def put_record(self: models.Shard, partition_key: str, data: str, explicit_hash_key: str) -> str:
    """Keep a record under a number of AWS' size."""
    number = next(_numbers)
    self.records[number] = models.Record(partition_key, data, number, explicit_hash_key)
    return str(number)


def shard_for_key(self: models.Stream, partition_key: str, explicit_hash_key: str) -> Any:
    """Return the open shard of a key."""
    key = int(
        explicit_hash_key or hashlib.md5(partition_key.encode(), usedforsecurity=False).hexdigest(),
        10 if explicit_hash_key else 16,
    )
    return next(
        shard
        for shard in self.shards.values()
        if shard.is_open and shard.starting_hash <= key <= shard.ending_hash
    )


def _keeping_records(reshard: Any) -> Any:
    def keep(self: models.Stream, *arguments: str) -> None:
        kept = {shard_id: shard.records for shard_id, shard in self.shards.items()}
        for shard in self.shards.values():
            shard.records = OrderedDict()
        reshard(self, *arguments)
        for shard_id, shard in self.shards.items():
            shard.records = kept.get(shard_id, OrderedDict())

    return keep


def get_records(
    self: models.KinesisBackend, stream_arn: str | None, shard_iterator: str, limit: int | None
) -> tuple[str | None, list[models.Record], int]:
    """Return a page; no next iterator behind the last record of a closed shard."""
    stream_name, shard_id, after = decompose_shard_iterator(shard_iterator)
    stream = self.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
    script = _SCRIPTS.get(stream_name, {})
    if script.get("times", 0) > 0:
        script["times"] -= 1
        raise JsonRESTError(script["refuse"], "as the test asked for")
    shard = stream.get_shard(shard_id)
    records, last, behind_ms = shard.get_records(after, limit)
    if not shard.is_open and int(last) >= shard.get_max_sequence_number():
        return None, records, 0
    return compose_shard_iterator(stream_name, shard, last), records, behind_ms


_SCRIPTS: dict[str, dict[str, Any]] = {}


def _telling_children(answer: Any) -> Any:
    def get_records(self: KinesisResponse) -> Any:
        result = answer(self)
        if result.result["NextShardIterator"] is None:
            del result.result["NextShardIterator"]
            stream_name, shard_id, _ = decompose_shard_iterator(self._get_param("ShardIterator"))
            stream = self.kinesis_backend.describe_stream(stream_arn=None, stream_name=stream_name)
            result.result["ChildShards"] = [
                _child(shard) for shard in stream.shards.values() if shard_id in _parents(shard)
            ]
        return result

    return get_records


def _child(shard: models.Shard) -> dict[str, Any]:
    told = shard.to_json()
    return {
        "ShardId": told["ShardId"],
        "ParentShards": _parents(shard),
        "HashKeyRange": told["HashKeyRange"],
    }


def _parents(shard: models.Shard) -> list[str]:
    return [parent for parent in (shard.parent, shard.adjacent_parent) if parent]


def put_resource_policy(self: models.KinesisBackend, resource_arn: str, policy_doc: str) -> None:
    """Take a test's script for a stream."""
    script = json.loads(policy_doc)
    stream = self.describe_stream(stream_arn=resource_arn, stream_name=None)
    _SCRIPTS[stream.stream_name] = script
    for shard in stream.shards.values():
        for number in list(shard.records)[: script.get("trim", 0)]:
            del shard.records[number]


def subscribe_to_shard(self: KinesisResponse) -> Any:
    """Answer as an event stream: the answer's beginning, and one event."""
    stream = self._get_param("ConsumerARN").split("/")[1]
    shard_id, place = self._get_param("ShardId"), self._get_param("StartingPosition")
    backend = self.kinesis_backend
    iterator = backend.get_shard_iterator(
        None, stream, shard_id, place["Type"], place.get("SequenceNumber"), place.get("Timestamp")
    )
    following, records, behind_ms = backend.get_records(None, iterator, 3)
    event = {
        "Records": [
            {
                **record.to_json(),
                "Data": record.data,
                "ApproximateArrivalTimestamp": record.created_at,
            }
            for record in records
        ],
        "MillisBehindLatest": behind_ms,
    }
    if following is not None:
        event["ContinuationSequenceNumber"] = decompose_shard_iterator(following)[2]
    body = _frame("initial-response", {}) + _frame("SubscribeToShardEvent", event)
    return 200, {"Content-Type": "application/vnd.amazon.eventstream"}, body


def _frame(event_type: str, content: dict[str, Any]) -> bytes:
    """Return a message of AWS' event streams: lengths, their CRC, headers, payload, the CRC of all."""
    headers = b"".join(
        struct.pack(">B", len(name))
        + name.encode()
        + struct.pack(">BH", 7, len(value))
        + value.encode()
        for name, value in (
            (":message-type", "event"),
            (":event-type", event_type),
            (":content-type", "application/x-amz-json-1.1"),
        )
    )
    payload = json.dumps(content).encode()
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    begun = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + payload
    return begun + struct.pack(">I", zlib.crc32(begun))


def patch() -> None:
    """Put the above in place of moto's."""
    KinesisResponse.get_records = _telling_children(KinesisResponse.get_records)  # type: ignore[method-assign]
    KinesisResponse.subscribe_to_shard = subscribe_to_shard  # type: ignore[attr-defined]
    models.Shard.put_record = put_record  # type: ignore[method-assign]
    models.Stream.get_shard_for_key = shard_for_key  # type: ignore[method-assign]
    models.Stream.split_shard = _keeping_records(models.Stream.split_shard)  # type: ignore[method-assign]
    models.Stream.merge_shards = _keeping_records(models.Stream.merge_shards)  # type: ignore[method-assign]
    models.KinesisBackend.get_records = get_records  # type: ignore[method-assign,assignment]
    models.KinesisBackend.put_resource_policy = put_resource_policy  # type: ignore[method-assign]


if __name__ == "__main__":
    patch()
    main(sys.argv[1:])
