"""Messages as records of a Kafka topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from broadsheet.consumer.application import Shard
from broadsheet.consumer.relay.outlet import Outlet
from broadsheet.consumer.relay.record_keys import json_keys
from broadsheet.consumer.relay.sink_labels import SINK_KEY, SINK_SET, Sink
from broadsheet.consumer.sources.kafka.records import KafkaPayload
from broadsheet.consumer.stores.kafka.settings import (
    CHECKPOINTS_TOPIC,
    checked_settings,
    refuse_secrets,
)
from broadsheet.consumer.stores.kafka.store import REFRESH_SECONDS, KafkaStore
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.runtime.errors import ValidationError

OURS: Final = "relay."
"""Begins settings of the relay, which are not Kafka's."""
SOURCE: Final = "source."
"""Begins settings of the topic that is read, where they differ from those of the sink."""
CHECKPOINTS_SETTING: Final = f"{OURS}checkpoints.topic"
TIMEOUT_SETTING: Final = f"{OURS}transaction.seconds"


class KafkaOutlet(Outlet):
    """Publishes payloads as they are. Records of a key keep the order of their journal, or of their partition."""

    def __init__(self, shard: Shard, sink: Sink) -> None:
        """Check the sink; nothing is opened.

        Raises:
            ValidationError: a setting is not possible.
        """
        config, options = check_settings(sink.settings)
        self._kafka = KafkaStore(shard, config, **options)
        super().__init__(self._kafka, idle_seconds=REFRESH_SECONDS)
        self._topic = sink.to
        self._keys_of = json_keys(sink.key) if sink.key else None

    def take(self, batch: MessageBatch) -> None:
        """Publish the payloads of a batch."""
        payloads = batch.payloads
        if len(payloads) and isinstance(payloads[0], KafkaPayload):
            self._take_records(payloads)
            return
        if self._keys_of is None:
            # All of a journal into one partition: the only order that there is without keys.
            partition = self._partition_of(crc32(batch.journal.encode()))
            self._kafka.publish_batch(self._topic, list(payloads), partition=partition)
            return
        if batch.message_type.content_type != NDJSON:
            raise ValidationError(
                f"labels[{SINK_KEY}]",
                f"expected none for messages of {batch.message_type.content_type}: only JSON has fields",
            )
        values = list(payloads)
        self._kafka.publish_batch(self._topic, values, self._keys(values))

    def _take_records(self, payloads: Sequence[Any]) -> None:
        """Publish what came from another topic, with keys, headers and times."""
        for payload in payloads:
            metadata = payload.metadata
            key = metadata.key if self._keys_of is None else self._keys((payload,))[0]
            moment = metadata.timestamp
            self._kafka.publish(
                self._topic,
                None if payload.absent else bytes(payload),
                key,
                partition=self._partition_of(metadata.partition) if key is None else -1,
                headers=metadata.headers,
                timestamp_ms=0 if moment is None else round(moment.timestamp() * 1000),
            )

    def _keys(self, payloads: Sequence[bytes]) -> list[bytes | None]:
        assert self._keys_of is not None
        try:
            return self._keys_of(payloads)
        except ValueError as error:
            raise ValueError(f"the key cannot be read: {error}") from error

    def _partition_of(self, number: int) -> int:
        return number % self._kafka.limits(self._topic).partitions


def check_settings(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the settings of Kafka's client, and the options of the store.

    Raises:
        ValidationError: a secret is there as itself, a setting is one that the store chooses, or it is unknown to us.
    """
    refuse_secrets(settings, SINK_SET.rstrip("/"))
    config = {
        name: value for name, value in settings.items() if not name.startswith((OURS, SOURCE))
    }
    options: dict[str, Any] = {
        "checkpoints_topic": settings.get(CHECKPOINTS_SETTING, CHECKPOINTS_TOPIC)
    }
    known = (CHECKPOINTS_SETTING, TIMEOUT_SETTING)
    unknown = [name for name in settings if name.startswith(OURS) and name not in known]
    if unknown:
        raise ValidationError(SINK_SET + unknown[0], f"expected one of {', '.join(known)}")
    if TIMEOUT_SETTING in settings:
        try:
            options["transaction_seconds"] = float(settings[TIMEOUT_SETTING])
        except ValueError as error:
            raise ValidationError(SINK_SET + TIMEOUT_SETTING, "expected seconds") from error
    checked_settings(config, SINK_SET.rstrip("/"))
    return config, options
