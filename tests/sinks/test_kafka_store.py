"""`KafkaStore` over a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broadsheet.testing.stores.subject import FixedShard, Holders, wait
from broadsheet.testing.stores.suite import StoreConformance
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.kafka_sinks import KafkaSubject, topic_of
from tests.support.real_kafka import RealKafka


class TestKafkaStore(StoreConformance):
    """The suite of every store: a reader of committed records sees what a query of another store would."""

    @pytest.fixture
    def subject(self, real_kafka: RealKafka) -> Iterator[KafkaSubject]:
        """Topics of the test's own."""
        subject = KafkaSubject(real_kafka.config, real_kafka.create)
        yield subject
        subject.close()

    def test_lists_that_the_caller_uses_again_change_no_record(self, subject: KafkaSubject) -> None:
        """A loop fills one list for each batch."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            values, keys = list[bytes](), list[bytes | None]()
            for key, value in ((b"a", b"1"), (b"b", b"2")):
                values[:], keys[:] = [value], [key]
                store.publish_batch(topic_of(shard.fqn), values, keys)
            wait(store.start_commit(shard, Checkpoint(), ()))

            assert subject.committed(store) == {"a": 1, "b": 2}
