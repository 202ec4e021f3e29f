"""Calls to Kinesis, off the event loop, with their errors translated.

boto3 blocks, so each call runs in a thread. It retries according to the client's configuration; the remaining errors
are throttling, an expired iterator, an outage, or one that only an operator can fix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import boto3
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError as NoConnectionError,
    HTTPClientError,
)

from broadsheet.consumer.errors import SourceError, SourceUnavailableError
from broadsheet.consumer.sources.kinesis.lineage import StreamShard
from broadsheet.consumer.sources.kinesis.places import (
    Place,
    StreamEntry,
    place_arguments,
    time_of,
)
from broadsheet.consumer.sources.kinesis.records import ShardHashRange

if TYPE_CHECKING:
    from types_boto3_kinesis.client import KinesisClient

ResultT = TypeVar("ResultT")

_THROTTLED: Final = {
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ResourceInUseException",
    "Throttling",
    "ThrottlingException",
}
_EXPIRED: Final = {"ExpiredIteratorException", "ExpiredNextTokenException"}
_DENIED: Final = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_PASSING: Final = {"InternalFailure", "InternalFailureException", "ServiceUnavailable"}
_SERVER_ERROR: Final = 500


class ThrottledError(SourceUnavailableError):
    """The stream, or the account, has no capacity for this call now."""


class NotAllowedError(SourceError):
    """The client's identity has no permission for this call."""


class ExpiredIteratorError(SourceUnavailableError):
    """An iterator was not used for five minutes; a new one is needed."""


@dataclass(frozen=True, slots=True)
class Got:
    """The answer to one `GetRecords` call."""

    records: list[Any]  # Any: boto3's dicts.
    next_iterator: str | None
    """The next iterator; None: the shard is closed, and was read to its end."""
    behind_ms: int | None


def default_client() -> KinesisClient:
    """Return a client as the environment configures it."""
    return boto3.client("kinesis")


class KinesisCalls:
    """Calls about one stream."""

    def __init__(self, stream: str, open_client: Callable[[], KinesisClient]) -> None:
        """Create the calls; the first one opens the client.

        Args:
            stream: Name of the stream.
            open_client: Returns a client; called once, in a thread.
        """
        self.stream = stream
        self._open_client = open_client
        self._client: KinesisClient | None = None
        self._opening = asyncio.Lock()

    async def list_shards(self) -> dict[str, StreamShard]:
        """Return the shards that have records or may get some, by id."""
        client = await self.client()
        found: dict[str, StreamShard] = {}
        arguments: dict[str, str] = {"StreamName": self.stream}
        while True:
            # The stubs accept literal arguments only.
            answer = await self._ask(lambda page=arguments: client.list_shards(**page))  # type: ignore[misc]
            found |= {each["ShardId"]: _shard_of(each) for each in answer["Shards"]}
            token = answer.get("NextToken")
            if not token:
                return found
            arguments = {"NextToken": token}

    async def described(self) -> StreamEntry:
        """Return what identifies the stream.

        Raises:
            NotAllowedError: the client must not describe it.
        """
        client = await self.client()
        answer = await self._ask(lambda: client.describe_stream_summary(StreamName=self.stream))
        summary = answer["StreamDescriptionSummary"]
        created = summary["StreamCreationTimestamp"]
        return StreamEntry(
            arn=summary["StreamARN"],
            created_ms=(created - time_of(0)) // timedelta(milliseconds=1),
        )

    async def iterator(self, shard_id: str, place: Place) -> str:
        """Return an iterator that begins at a place."""
        client = await self.client()
        arguments = place_arguments(place)
        arguments["ShardIteratorType"] = arguments.pop("Type")
        if "SequenceNumber" in arguments:
            arguments["StartingSequenceNumber"] = arguments.pop("SequenceNumber")
        answer = await self._ask(
            lambda: client.get_shard_iterator(StreamName=self.stream, ShardId=shard_id, **arguments)
        )
        return answer["ShardIterator"]

    async def get_records(self, iterator: str, limit: int) -> Got:
        """Return up to `limit` records that follow an iterator."""
        client = await self.client()
        answer = await self._ask(lambda: client.get_records(ShardIterator=iterator, Limit=limit))
        following = answer.get("NextShardIterator")
        return Got(list(answer["Records"]), following or None, answer.get("MillisBehindLatest"))

    async def client(self) -> KinesisClient:
        """Return the client, opened by the first call, in a thread because opening reads files and takes a while."""
        async with self._opening:
            if self._client is None:
                self._client = await self._ask(self._open_client)
            return self._client

    async def _ask(self, call: Callable[[], ResultT]) -> ResultT:
        try:
            return await asyncio.to_thread(call)
        except (ClientError, BotoCoreError) as error:
            raise told_apart(self.stream, error) from error


def told_apart(stream: str, error: ClientError | BotoCoreError) -> SourceError:
    """Translate an error of boto3 into a source error."""
    if not isinstance(error, ClientError):
        # Wrong parameters and missing credentials belong to this family too.
        outage = isinstance(error, HTTPClientError | NoConnectionError)
        return (
            SourceUnavailableError(stream, str(error))
            if outage
            else SourceError(stream, str(error))
        )
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _THROTTLED:
        return ThrottledError(stream, str(error))
    if code in _EXPIRED:
        return ExpiredIteratorError(stream, str(error))
    if code in _DENIED:
        return NotAllowedError(stream, str(error))
    if code in _PASSING or status >= _SERVER_ERROR:
        return SourceUnavailableError(stream, str(error))
    return SourceError(stream, str(error))


def _shard_of(listed: Any) -> StreamShard:  # Any: boto3's dict.
    parents = (listed.get("ParentShardId"), listed.get("AdjacentParentShardId"))
    hashes = listed["HashKeyRange"]
    return StreamShard(
        id=listed["ShardId"],
        parents=tuple(parent for parent in parents if parent),
        hashes=ShardHashRange(int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"])),
    )
