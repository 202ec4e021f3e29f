"""Sources of messages beside journals: Kinesis streams (extra `[aws]`) and Kafka topics (extra `[kafka]`)."""

from typing import TYPE_CHECKING

from broadsheet.allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from broadsheet.consumer.errors import (
        SourceDataLossError,
        SourceError,
        SourceRecreatedError,
        SourceUnavailableError,
    )
    from broadsheet.consumer.sources.kafka.places import AtOffsets, Earliest
    from broadsheet.consumer.sources.kafka.records import KafkaMetadata
    from broadsheet.consumer.sources.kafka.source import KafkaSource
    from broadsheet.consumer.sources.kinesis.lineage import AskedByStat
    from broadsheet.consumer.sources.kinesis.places import TrimHorizon
    from broadsheet.consumer.sources.kinesis.record_source import KinesisRecordSource
    from broadsheet.consumer.sources.kinesis.records import KinesisMetadata
    from broadsheet.consumer.sources.kinesis.source import KinesisSource
    from broadsheet.consumer.sources.metrics import SourceMetrics
    from broadsheet.consumer.sources.part import AtTimestamp, Latest
    from broadsheet.consumer.sources.received import WithMetadata

__all__ = [
    "AskedByStat",
    "AtOffsets",
    "AtTimestamp",
    "Earliest",
    "KafkaMetadata",
    "KafkaSource",
    "KinesisMetadata",
    "KinesisRecordSource",
    "KinesisSource",
    "Latest",
    "SourceDataLossError",
    "SourceError",
    "SourceMetrics",
    "SourceRecreatedError",
    "SourceUnavailableError",
    "TrimHorizon",
    "WithMetadata",
]

# Hidden from type checkers, which would accept any name if they saw `__getattr__`.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AskedByStat": "broadsheet.consumer.sources.kinesis.lineage",
            "AtOffsets": "broadsheet.consumer.sources.kafka.places",
            "AtTimestamp": "broadsheet.consumer.sources.part",
            "Earliest": "broadsheet.consumer.sources.kafka.places",
            "KafkaMetadata": "broadsheet.consumer.sources.kafka.records",
            "KafkaSource": "broadsheet.consumer.sources.kafka.source",
            "KinesisMetadata": "broadsheet.consumer.sources.kinesis.records",
            "KinesisRecordSource": "broadsheet.consumer.sources.kinesis.record_source",
            "KinesisSource": "broadsheet.consumer.sources.kinesis.source",
            "Latest": "broadsheet.consumer.sources.part",
            "SourceDataLossError": "broadsheet.consumer.errors",
            "SourceError": "broadsheet.consumer.errors",
            "SourceMetrics": "broadsheet.consumer.sources.metrics",
            "SourceRecreatedError": "broadsheet.consumer.errors",
            "SourceUnavailableError": "broadsheet.consumer.errors",
            "TrimHorizon": "broadsheet.consumer.sources.kinesis.places",
            "WithMetadata": "broadsheet.consumer.sources.received",
        },
    )
