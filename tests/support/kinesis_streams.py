"""Kinesis streams for tests: what producers and operators do to them, each call in a thread."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from broadsheet.consumer.sources.kinesis.records import MAGIC
from broadsheet.wire.aggregated_record_pb2 import AggregatedRecord
from tests.support.moto import aws_settings

if TYPE_CHECKING:
    from types_boto3_kinesis.client import KinesisClient

HASH_END = 2**128


class TestStream:
    """A stream of one test's own."""

    __test__ = False

    def __init__(self, endpoint: str) -> None:
        self.name = f"stream-{uuid4().hex[:12]}"
        self.open_client: Callable[[], KinesisClient] = lambda: _client(endpoint)
        self._client = _client(endpoint)
        self._arn = ""

    @property
    def consumer_arn(self) -> str:
        """What a registered consumer might be called."""
        return f"{self._arn}/consumer/test:1"

    def name_of(self, index: int) -> str:
        """Return what the messages of the shard of an index are called."""
        return f"kinesis/{self.name}/{shard_id(index)}"

    async def create(self, shards: int) -> TestStream:
        """Create it, with shards of equal ranges."""
        await self._call(self._client.create_stream, StreamName=self.name, ShardCount=shards)
        described = await self._call(self._client.describe_stream_summary, StreamName=self.name)
        self._arn = described["StreamDescriptionSummary"]["StreamARN"]
        return self

    async def delete(self) -> None:
        """Delete it."""
        await self._call(self._client.delete_stream, StreamName=self.name)

    async def put(self, key: str, numbers: Sequence[int], *, hash_key: int = 0) -> None:
        """Put messages {"key": key, "n": number} where a hash key belongs."""
        records = [
            {
                "Data": json.dumps({"key": key, "n": number}).encode(),
                "PartitionKey": key,
                "ExplicitHashKey": str(hash_key),
            }
            for number in numbers
        ]
        await self._call(self._client.put_records, StreamName=self.name, Records=records)

    async def put_aggregate(self, key: str, numbers: Sequence[int], *, hash_key: int = 0) -> None:
        """Put the same as one record of the stream."""
        await self._call(
            self._client.put_record,
            StreamName=self.name,
            Data=aggregate(key, numbers, hash_key=hash_key),
            PartitionKey="a",
            ExplicitHashKey=str(hash_key),
        )

    async def put_data(self, data: bytes) -> None:
        """Put a record of any content into the shard of the lowest hash keys."""
        await self._call(
            self._client.put_record,
            StreamName=self.name,
            Data=data,
            PartitionKey="k",
            ExplicitHashKey="0",
        )

    async def split(self, index: int, at: int) -> None:
        """Split a shard at a hash key."""
        await self._call(
            self._client.split_shard,
            StreamName=self.name,
            ShardToSplit=shard_id(index),
            NewStartingHashKey=str(at),
        )

    async def merge(self, index: int, adjacent: int) -> None:
        """Merge two shards."""
        await self._call(
            self._client.merge_shards,
            StreamName=self.name,
            ShardToMerge=shard_id(index),
            AdjacentShardToMerge=shard_id(adjacent),
        )

    async def refuse(self, code: str, *, times: int) -> None:
        """Have the next readings fail."""
        await self._script({"refuse": code, "times": times})

    async def trim(self, records: int) -> None:
        """Drop the oldest records of each shard."""
        await self._script({"trim": records})

    async def _script(self, script: dict[str, Any]) -> None:
        await self._call(
            self._client.put_resource_policy, ResourceARN=self._arn, Policy=json.dumps(script)
        )

    async def _call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        return await asyncio.to_thread(lambda: function(**arguments))


def shard_id(index: int) -> str:
    """Return the id of the shard of an index."""
    return f"shardId-{index:012d}"


def aggregate(key: str, numbers: Sequence[int], *, hash_key: int = 0) -> bytes:
    """Return messages put together."""
    together = AggregatedRecord(partition_keys=[key], explicit_hash_keys=[str(hash_key)])
    for number in numbers:
        content = json.dumps({"key": key, "n": number}).encode()
        together.entries.add(partition_key_index=0, explicit_hash_key_index=0, data=content)
    body = together.SerializeToString()
    return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()


def _client(endpoint: str) -> KinesisClient:
    import boto3

    client: KinesisClient = boto3.client("kinesis", **aws_settings(endpoint))
    return client
