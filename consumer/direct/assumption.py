"""An operator's word for what Kafka has forgotten: whether it has a shard's last records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.stores.kafka.marker import DIRECT_METADATA
from broadsheet.consumer.stores.kafka.settings import (
    CHECKPOINTS_TOPIC,
    checked_settings,
    for_readers,
)
from broadsheet.consumer.stores.kafka.transactions import KafkaClients
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.runtime.errors import ValidationError

_SECONDS = 30.0


def assume(
    config: Mapping[str, Any],  # Any: as the client accepts them.
    sink: str,
    *,
    number: int,
    produced: bool,
    checkpoints_topic: str = CHECKPOINTS_TOPIC,
    clients: KafkaClients | None = None,
) -> int:
    """Commit the marker that a shard misses; its next attempt goes on from there.

    Args:
        config: Of Kafka's client. Values `@/path` are read from files.
        sink: Name of the shard in Kafka, its group, as the shard's error names it.
        number: The transaction in doubt, as the error names it, too.
        produced: Kafka has its records, so that they are not sent again; otherwise they are sent.
        checkpoints_topic: As the application's cluster has it.
        clients: Makers of clients.

    Returns:
        The marker that was committed.

    Raises:
        ValidationError: the number is one of which there is no doubt.
        StoreError: Kafka has a marker after all, or refuses.
    """
    if number < 2:
        raise ValidationError(
            "--number", f"expected 2 or more, as the shard's error names it, got {number}"
        )
    settings = for_readers(read_files(checked_settings(config, "--set")))
    consumer = (clients or KafkaClients()).consumer(
        {**settings, "group.id": sink, "enable.auto.commit": False}
    )
    marker = number if produced else number - 1
    try:
        place = TopicPartition(checkpoints_topic, 0)
        (found,) = consumer.committed([place], timeout=_SECONDS)
        if found.offset >= 0:
            raise StoreError(
                sink, f"Kafka has marker {found.offset}, so there is nothing to assume"
            )
        said = TopicPartition(checkpoints_topic, 0, marker, DIRECT_METADATA)
        consumer.commit(offsets=[said], asynchronous=False)
    except KafkaException as error:
        cause = error.args[0]
        raise StoreError(sink, f"Kafka refuses: {cause.str()} ({cause.name()})") from error
    finally:
        consumer.close()
    return marker
