"""`KafkaStore` over a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broadsheet.testing.stores.suite import StoreConformance
from tests.support.kafka_sinks import KafkaSubject
from tests.support.real_kafka import RealKafka


class TestKafkaStore(StoreConformance):
    """The suite of every store: a reader of committed records sees what a query of another store would."""

    @pytest.fixture
    def subject(self, real_kafka: RealKafka) -> Iterator[KafkaSubject]:
        """Topics of the test's own."""
        subject = KafkaSubject(real_kafka.config, real_kafka.create)
        yield subject
        subject.close()
