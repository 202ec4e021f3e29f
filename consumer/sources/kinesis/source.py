"""A Kinesis stream as a source of shards: an application's `MessageProducer` methods.

    class Orders:
        def __init__(self):
            source = KinesisSource("orders", JsonType())
            self.read_messages = source.read_messages
            self.replay_range = source.replay_range
            self.read_through = source.read_through

Messages of a shard of the stream are called `kinesis/{stream}/{shard id}`. Each is consumed once, because the
checkpoint that holds the place to resume is committed with the application's results.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from broadsheet.consumer.application import Shard
from broadsheet.consumer.sources.kinesis.calls import KinesisCalls, default_client
from broadsheet.consumer.sources.kinesis.fan_out import KinesisStream
from broadsheet.consumer.sources.kinesis.lineage import END_SUFFIX, Elsewhere
from broadsheet.consumer.sources.kinesis.pages import DEFAULT_PACE, Pace
from broadsheet.consumer.sources.kinesis.places import Start, TrimHorizon
from broadsheet.consumer.sources.kinesis.reading import (
    DISCOVERY_SECONDS,
    KinesisReadingSettings,
    StreamReading,
    stream_name,
)
from broadsheet.consumer.sources.metrics import SourceMetrics
from broadsheet.consumer.sources.part import part_of
from broadsheet.consumer.sources.settled import SettledBatches
from broadsheet.journals.errors import ReplayError
from broadsheet.journals.message.batch import MessageBatch, MessageType
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.wire.shard_pb2 import Checkpoint

if TYPE_CHECKING:
    from types_boto3_kinesis.client import KinesisClient

_NEVER = 2**63 - 1
"""An offset that no source reaches."""


class KinesisSource:
    """Source that reads one stream for any number of shards, each with a part of it."""

    def __init__(
        self,
        stream: str,
        message_type: MessageType,
        *,
        start: Start | None = None,
        open_client: Callable[[], KinesisClient] = default_client,
        consumer_arn: str = "",
        elsewhere: Elsewhere | None = None,
        pace: Pace = DEFAULT_PACE,
        read_recreated: bool = False,
        discovery_seconds: float = DISCOVERY_SECONDS,
        clock: Clock | None = None,
        metrics: SourceMetrics | None = None,
    ) -> None:
        """Configure the source without opening a connection.

        Args:
            stream: Its name.
            message_type: How the records' data is encoded; `WithMetadata` adds keys and numbers.
            start: Where to begin without a checkpoint. None: with the oldest records.
            open_client: Returns a client of boto3; called once, in a thread.
            consumer_arn: Of a registered consumer, to be read with enhanced fan-out. Empty: by asking.
            elsewhere: Knows the ends of shards that other parts read; needed where the stream is read in parts.
            pace: How often to ask.
            read_recreated: Read a stream that was deleted and created again from its beginning. Otherwise the shard
                fails, because what it has not read of the old stream is lost.
            discovery_seconds: How often the stream's shards are listed.
            clock: Tells what "latest" means at the very beginning.
            metrics: Where it counts what it reads; None: in a private registry.
        """
        self._stream = KinesisStream.of(
            KinesisCalls(stream, open_client), consumer_arn, pace=pace, metrics=metrics
        )
        self._settings = KinesisReadingSettings(
            start=start or TrimHorizon(),
            message_type=message_type,
            read_recreated=read_recreated,
            clock=clock or SystemClock(),
            elsewhere=elsewhere,
            discovery_seconds=discovery_seconds,
            awaiting_seconds=min(pace.idle_interval_seconds, discovery_seconds),
        )
        self._readings: dict[str, StreamReading] = {}
        """The present reading of each shard of ours, by its key in etcd."""

    @property
    def is_reading(self) -> bool:
        """True while a shard that this process serves reads the stream."""
        return bool(self._readings)

    def read_messages(
        self, shard: Shard, store: object, checkpoint: Checkpoint
    ) -> AsyncIterator[MessageBatch]:
        """Return the batches of the shard's part, without end.

        Raises:
            UnsupportedSpecError: the shard's label names no part.
            SourceError: the stream cannot be read.
        """
        del store
        reading = StreamReading(
            part_of(shard.spec), checkpoint, stream=self._stream, settings=self._settings
        )
        self._readings[shard.fqn] = reading

        def close() -> None:
            if self._readings.get(shard.fqn) is reading:
                del self._readings[shard.fqn]

        return SettledBatches(
            stream_name(self._stream.name),
            self._settings.message_type,
            settle=reading.settle,
            batches=reading.batches,
            close=close,
        )

    def replay_range(
        self, shard: Shard, store: object, *, journal: str, begin: int, end: int
    ) -> AsyncIterator[MessageBatch]:
        """Refuse: records are committed as they arrive, so no reading reads one again.

        Raises:
            ReplayError: always.
        """
        del shard, store
        raise ReplayError(
            journal, f"records of a stream have no transactions, so not [{begin}, {end})"
        )

    def read_through(
        self, shard: Shard, store: Any, offsets: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the offsets to wait for; for `{name};end`, those of the end of a shard of the stream."""
        del store
        reading = self._readings.get(shard.fqn)
        wanted: dict[str, int] = {}
        for name, offset in offsets.items():
            if not name.endswith(END_SUFFIX):
                wanted[name] = max(offset, wanted.get(name, 0))
                continue
            ended = name.removesuffix(END_SUFFIX)
            wanted[ended] = _NEVER if reading is None else reading.ends.get(ended, _NEVER)
        return wanted
