"""Sources of messages beside journals: Kinesis streams (extra `[aws]`) and Kafka topics (extra `[kafka]`)."""

from typing import TYPE_CHECKING

from allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from consumer.errors import SourceDataLossError, SourceError, SourceUnavailableError
    from consumer.sources.kafka.places import AtOffsets, Earliest
    from consumer.sources.kafka.records import KafkaMetadata
    from consumer.sources.kafka.source import KafkaSource
    from consumer.sources.kinesis.lineage import AskedByStat
    from consumer.sources.kinesis.places import TrimHorizon
    from consumer.sources.kinesis.record_source import KinesisRecordSource
    from consumer.sources.kinesis.records import KinesisMetadata
    from consumer.sources.kinesis.source import KinesisSource
    from consumer.sources.metrics import SourceMetrics
    from consumer.sources.part import AtTimestamp, Latest
    from consumer.sources.received import WithMetadata

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
    "SourceUnavailableError",
    "TrimHorizon",
    "WithMetadata",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AskedByStat": "consumer.sources.kinesis.lineage",
            "AtOffsets": "consumer.sources.kafka.places",
            "AtTimestamp": "consumer.sources.part",
            "Earliest": "consumer.sources.kafka.places",
            "KafkaMetadata": "consumer.sources.kafka.records",
            "KafkaSource": "consumer.sources.kafka.source",
            "KinesisMetadata": "consumer.sources.kinesis.records",
            "KinesisRecordSource": "consumer.sources.kinesis.record_source",
            "KinesisSource": "consumer.sources.kinesis.source",
            "Latest": "consumer.sources.part",
            "SourceDataLossError": "consumer.errors",
            "SourceError": "consumer.errors",
            "SourceMetrics": "consumer.sources.metrics",
            "SourceUnavailableError": "consumer.errors",
            "TrimHorizon": "consumer.sources.kinesis.places",
            "WithMetadata": "consumer.sources.received",
        },
    )
