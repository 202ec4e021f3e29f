"""Records that shards with state send straight into Kafka, exactly once, beside the store that keeps their state.

    OUT = KafkaOutput("totals", KafkaCluster({"bootstrap.servers": "broker:9092"}), key="user")

    class Totals:
        record_outputs = (OUT,)
        def consume_message(self, shard, store, envelope, publisher):
            publisher.publish_record(OUT, {"user": …, "total": …})

The store's commit holds the records; then one Kafka transaction sends them:

    consume n ─► store commit n: state, sources, records ─► Kafka transaction n: records, marker n ─► n+1 may close
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.consumer.direct.kafka_output import (
        KafkaCluster as KafkaCluster,
        KafkaOutput as KafkaOutput,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
