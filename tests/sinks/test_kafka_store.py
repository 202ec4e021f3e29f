"""`KafkaStore` over a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from broadsheet.consumer.errors import StoreUnavailableError
from broadsheet.consumer.stores.kafka.record import record_bytes
from broadsheet.consumer.stores.kafka.store import KafkaStore
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.subject import FixedShard, Holders, wait
from broadsheet.testing.stores.suite import StoreConformance
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.eventually import eventually_sync
from tests.support.kafka_sinks import CommittedReader, KafkaSubject, topic_of
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


@pytest.mark.parametrize("header", [("h", b""), ("ü" * 50, b"v" * 200)])
def test_record_of_headers_at_the_topic_s_limit_is_committed(
    real_kafka: RealKafka, header: tuple[str, bytes]
) -> None:
    """A broker counts their names and lengths, too: it would refuse for ever what was taken above its limit."""
    topic, shard = f"headers-{uuid4().hex[:12]}", FixedShard(id="headers", root=f"/{uuid4().hex}")
    real_kafka.create(topic, 1, max_message_bytes="20000")
    store = KafkaStore(shard, real_kafka.config)

    def is_restored() -> bool:
        try:
            store.restore_checkpoint(shard)
        except StoreUnavailableError:
            return False  # A broker that has just begun does not keep groups yet.
        return True

    eventually_sync(is_restored, timeout_seconds=60)
    limit = store.limits(topic).record_bytes_max
    count = limit // record_bytes(None, None, [header])
    rest = limit - record_bytes(None, None, [header] * count)

    store.publish(topic, b"v" * rest, headers=[header] * count)
    with pytest.raises(ValidationError, match=f"expected a record of {limit} bytes at most"):
        store.publish(topic, b"v" * (rest + 1), headers=[header] * count)
    store.start_commit(shard, Checkpoint(), ()).result(60)

    store.destroy()
    reader = CommittedReader(real_kafka.config, topic)
    (sent,) = reader.catch_up()
    reader.close()
    assert sent.headers == (header,) * count
