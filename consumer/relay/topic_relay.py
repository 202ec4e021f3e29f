"""The relay of topics: each shard carries its part of a Kafka topic to what its labels name, exactly once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from broadsheet.consumer.application import Shard
from broadsheet.consumer.relay.application import CarriesOut
from broadsheet.consumer.relay.kafka_outlet import OURS, SOURCE
from broadsheet.consumer.relay.sink_labels import SINK_FROM, SINK_SET, Sink, SinkKind, sink_of
from broadsheet.consumer.sources.kafka.source import KafkaSource
from broadsheet.consumer.stores.kafka.settings import for_readers
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.journals.message.batch import MessageBatch, MessageType
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import Checkpoint

RECREATED_SETTING = f"{SOURCE}read.recreated"
"""Says that a topic which was deleted and created again is read from its beginning."""


class RawRecords:
    """A message type that leaves records as they are; they count as committed."""

    content_type = "application/octet-stream"

    def decode(self, payload: bytes) -> bytes:
        """Return the payload."""
        return payload

    def encode(self, message: bytes) -> bytes:
        """Return the message."""
        return message

    def uuid_of(self, payload: bytes) -> bytes:
        """Return none: 16 zero bytes."""
        del payload
        return bytes(16)

    def set_uuid(self, message: bytes, uuid: bytes) -> None:
        """Do nothing: records have no place for one."""

    def new_acknowledgement(self, journal: str) -> bytes:
        """Return no bytes."""
        del journal
        return b""


class TopicRelay(CarriesOut):
    """Carries topics out. Serve it with `shardctl serve broadsheet.consumer.relay:TopicRelay`."""

    def __init__(self) -> None:
        """Connect to nothing yet."""
        self._sources: dict[str, tuple[Sink, KafkaSource]] = {}

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Never called: the shards read no journals."""
        raise AssertionError("the shard has no journals")

    def read_messages(
        self, shard: Shard, store: object, checkpoint: Checkpoint
    ) -> AsyncIterator[MessageBatch]:
        """Return the records of the shard's part of its topic."""
        return self._source(shard).read_messages(shard, store, checkpoint)

    def replay_range(
        self, shard: Shard, store: object, *, journal: str, begin: int, end: int
    ) -> AsyncIterator[MessageBatch]:
        """Yield records of a partition again."""
        return self._source(shard).replay_range(shard, store, journal=journal, begin=begin, end=end)

    def read_through(
        self, shard: Shard, store: object, offsets: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the offsets to wait for."""
        return self._source(shard).read_through(shard, store, offsets)

    def _source(self, shard: Shard) -> KafkaSource:
        sink = self._sink_of(shard)
        known = self._sources.get(shard.fqn)
        if known is None or known[0] != sink:
            source = KafkaSource(
                sink.from_topic,
                RawRecords(),
                _source_config(sink),
                read_recreated=_reads_recreated(sink),
            )
            known = self._sources[shard.fqn] = sink, source
        return known[1]

    def _sink_of(self, shard: Shard) -> Sink:
        sink = sink_of(shard.spec.labels)
        _reads_recreated(sink)
        if not sink.from_topic:
            raise ValidationError(
                f"labels[{SINK_FROM}]",
                "expected a topic: journals are read by broadsheet.consumer.relay:Relay",
            )
        return sink


def _reads_recreated(sink: Sink) -> bool:
    """Tell whether a topic that was deleted and created again is read from its beginning.

    Raises:
        ValidationError: the setting is neither.
    """
    said = sink.settings.get(RECREATED_SETTING, "false")
    if said not in ("true", "false"):
        raise ValidationError(SINK_SET + RECREATED_SETTING, f"expected true or false, got {said!r}")
    return said == "true"


def _source_config(sink: Sink) -> dict[str, Any]:
    """Return the settings of the consumer: the sink's, if that is Kafka too, and over them its own."""
    own = {
        name.removeprefix(SOURCE): value
        for name, value in sink.settings.items()
        if name.startswith(SOURCE) and name != RECREATED_SETTING
    }
    shared = sink.settings if sink.kind is SinkKind.KAFKA else {}
    common = {name: value for name, value in shared.items() if not name.startswith((OURS, SOURCE))}
    return for_readers(read_files({**common, **own}))
