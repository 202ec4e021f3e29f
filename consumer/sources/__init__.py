"""Sources of messages beside journals: Kinesis streams (extra `[aws]`) and Kafka topics (extra `[kafka]`)."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.consumer.errors import (
        SourceDataLossError as SourceDataLossError,
        SourceError as SourceError,
        SourceRecreatedError as SourceRecreatedError,
        SourceUnavailableError as SourceUnavailableError,
    )
    from broadsheet.consumer.sources.kafka.places import (
        AtOffsets as AtOffsets,
        Earliest as Earliest,
    )
    from broadsheet.consumer.sources.kafka.records import KafkaMetadata as KafkaMetadata
    from broadsheet.consumer.sources.kafka.source import KafkaSource as KafkaSource
    from broadsheet.consumer.sources.kinesis.lineage import AskedByStat as AskedByStat
    from broadsheet.consumer.sources.kinesis.places import TrimHorizon as TrimHorizon
    from broadsheet.consumer.sources.kinesis.records import KinesisMetadata as KinesisMetadata
    from broadsheet.consumer.sources.kinesis.source import KinesisSource as KinesisSource
    from broadsheet.consumer.sources.metrics import SourceMetrics as SourceMetrics
    from broadsheet.consumer.sources.part import AtTimestamp as AtTimestamp, Latest as Latest
    from broadsheet.consumer.sources.received import WithMetadata as WithMetadata

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
