"""A Kinesis stream as a record source of the workers of `broadsheet.leases`.

    source = KinesisRecordSource("orders")

A lease's key is the id of its shard, as it is for the Kinesis Client Library.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from broadsheet.consumer.errors import SourceError, SourceUnavailableError
from broadsheet.consumer.sources.kinesis.calls import KinesisCalls, default_client
from broadsheet.consumer.sources.kinesis.fan_out import KinesisStream
from broadsheet.consumer.sources.kinesis.lineage import StreamShard
from broadsheet.consumer.sources.kinesis.pages import DEFAULT_PACE, Pace
from broadsheet.consumer.sources.kinesis.places import AtSequence, Place, TrimHorizon
from broadsheet.consumer.sources.kinesis.records import StreamRecord
from broadsheet.consumer.sources.metrics import SourceMetrics
from broadsheet.consumer.sources.part import AtTimestamp, Latest
from broadsheet.leases import position as names
from broadsheet.leases.errors import DependencyError, InvalidStateError
from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange
from broadsheet.leases.record_processor.processor import ProcessorRecord
from broadsheet.leases.worker.source import RecordBatch, SourceShard

if TYPE_CHECKING:
    from types_boto3_kinesis.client import KinesisClient

_log = structlog.get_logger()


class KinesisRecordSource:
    """Implements `broadsheet.leases.worker.source.RecordSource` for one stream."""

    def __init__(
        self,
        stream: str,
        *,
        open_client: Callable[[], KinesisClient] = default_client,
        consumer_arn: str = "",
        at: AtTimestamp | None = None,
        pace: Pace = DEFAULT_PACE,
        metrics: SourceMetrics | None = None,
    ) -> None:
        """Configure the source without opening a connection.

        Args:
            stream: Its name.
            open_client: Returns a client of boto3; called once, in a thread.
            consumer_arn: Of a registered consumer, to be read with enhanced fan-out. Empty: by asking.
            at: What the position `AT_TIMESTAMP` means.
            pace: How often to ask.
            metrics: Where it counts what it reads; None: in a private registry.
        """
        self._stream = KinesisStream.of(
            KinesisCalls(stream, open_client), consumer_arn, pace=pace, metrics=metrics
        )
        self._at = at
        self._shards: dict[str, StreamShard] = {}

    async def list_shards(self) -> tuple[SourceShard, ...]:
        """Return the shards that have records, open or ended, older ones first.

        Raises:
            DependencyError: Kinesis does not answer now.
            InvalidStateError: there is no such stream, or it must not be listed.
        """
        try:
            self._shards = await self._stream.calls.list_shards()
        except SourceError as error:
            raise _told(error) from error
        return tuple(_source_shard(self._shards[key]) for key in sorted(self._shards))

    async def read_records(
        self, shard_key: str, position: Position
    ) -> AsyncGenerator[RecordBatch, None]:
        """Yield a shard's records from a position on, then new ones; aggregates are unpacked.

        A deleted shard ends at once, because its records are past the stream's retention.

        Raises:
            DependencyError: Kinesis does not answer now.
            InvalidStateError: the shard must not be read, or `AT_TIMESTAMP` has no meaning here.
        """
        if position.is_end:
            return
        if shard_key not in self._shards:
            await self.list_shards()
        shard = self._shards.get(shard_key)
        if shard is None:
            _log.warning("kinesis.shard_not_found", stream=self._stream.name, shard=shard_key)
            return
        try:
            async with aclosing(self._stream.reader.pages(shard, self._place(position))) as pages:
                async for page in pages:
                    yield RecordBatch(
                        records=tuple(_processor_record(record) for record in page.records),
                        millis_behind_latest=page.behind_ms,
                    )
        except SourceError as error:
            raise _told(error) from error

    def _place(self, position: Position) -> Place:
        match position.seq:
            case names.TRIM_HORIZON:
                return TrimHorizon()
            case names.LATEST:
                return Latest()
            case names.AT_TIMESTAMP:
                if self._at is None:
                    raise InvalidStateError(
                        "at: expected a time, for a lease begins AT_TIMESTAMP; give it to the source"
                    )
                return self._at
            case number:
                return AtSequence(number)


def _source_shard(shard: StreamShard) -> SourceShard:
    hashes = HashRange(first=str(shard.hashes.first), last=str(shard.hashes.last))
    return SourceShard(key=shard.id, parents=shard.parents, hash_range=hashes)


def _processor_record(record: StreamRecord) -> ProcessorRecord:
    metadata = record.metadata
    return ProcessorRecord(
        position=Position(metadata.sequence_number, metadata.sub_sequence_number),
        binary_data=record.data,
        partition_key=metadata.partition_key,
        explicit_hash_key=metadata.explicit_hash_key,
        approximate_arrival_timestamp=metadata.arrived_at,
    )


def _told(error: SourceError) -> DependencyError | InvalidStateError:
    if isinstance(error, SourceUnavailableError):
        return DependencyError(str(error))
    return InvalidStateError(str(error))
