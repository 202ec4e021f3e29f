"""A real Kafka for the tests of sinks. They are one group, so that one process of a run starts one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.consumer.conftest import host as host
from tests.support.real_kafka import RealKafka


@pytest.fixture(scope="session")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker for the whole run; tests keep to topics of their own."""
    with RealKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka
