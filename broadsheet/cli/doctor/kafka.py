"""Checks of `shardctl doctor` on a Kafka that shards send into. Needs the extra `[kafka]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs export only some of its names
    AdminClient,
    ConfigResource,
    ResourceType,
)

from broadsheet.cli.doctor.findings import KafkaFacts, KafkaTopic
from broadsheet.consumer.errors import StoreUnavailableError
from broadsheet.consumer.relay.sink_labels import SINK, SINK_TO
from broadsheet.consumer.stores.kafka.settings import (
    CHECKPOINTS_TOPIC,
    checked_settings,
    for_readers,
)
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.wire.labels import values_of
from broadsheet.wire.shard_pb2 import ShardSpec

_SECONDS: Final = 10.0


def facts_of(config: Mapping[str, str], shards: Sequence[ShardSpec]) -> KafkaFacts:
    """Return what the brokers say of ids, groups, topics, limits and retention.

    Args:
        config: Of the client. Values `@/path` are read from files.
        shards: Of the cluster; those with labels of a sink of Kafka send there.

    Raises:
        StoreUnavailableError: no broker answers, or they refuse.
        ValidationError: a setting is not possible.
    """
    settings = for_readers(read_files(checked_settings(config, "--kafka")))
    admin = AdminClient(settings)
    try:
        return _asked(admin, settings, shards)
    except KafkaException as error:
        cause = error.args[0]
        raise StoreUnavailableError("kafka", f"{cause.str()} ({cause.name()})") from error


def _asked(
    admin: AdminClient, settings: Mapping[str, Any], shards: Sequence[ShardSpec]
) -> KafkaFacts:
    sending = [each for each in shards if values_of(each.labels, SINK) == ["kafka"]]
    names = sorted({name for each in sending for name in values_of(each.labels, SINK_TO)})
    checkpoints, *topics = _topics(admin, [CHECKPOINTS_TOPIC, *names])
    markers = {}
    if checkpoints.partitions is not None:
        groups = [group.group_id for group in _groups(admin)]
        ids = {each.id for each in shards}
        ours = [group for group in groups if any(group.endswith(f"/{each}") for each in ids)]
        markers = {group: marker for group in ours if (marker := _marker(settings, group)) >= 0}
    broker = _config_of(admin, ResourceType.BROKER, str(_any_broker(admin)))
    minutes, ms_max = (
        broker.get("offsets.retention.minutes"),
        broker.get("transaction.max.timeout.ms"),
    )
    return KafkaFacts(
        servers=str(settings["bootstrap.servers"]),
        checkpoints=checkpoints,
        topics=topics,
        markers=markers,
        without_marker=[
            each.id
            for each in sending
            if not any(group.endswith(f"/{each.id}") for group in markers)
        ],
        retention_seconds=None if minutes is None else float(minutes) * 60,
        transaction_ms_max=None if ms_max is None else int(ms_max),
    )


def _topics(admin: AdminClient, names: Sequence[str]) -> list[KafkaTopic]:
    answers = admin.describe_topics(TopicCollection(list(names)), request_timeout=_SECONDS)
    return [_topic(admin, name, answers[name]) for name in names]


def _topic(admin: AdminClient, name: str, answer: Any) -> KafkaTopic:  # Any: as the stubs have it.
    try:
        partitions = len(answer.result().partitions)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return KafkaTopic(name, None)
    told = _config_of(admin, ResourceType.TOPIC, name)
    bytes_max = told.get("max.message.bytes")
    return KafkaTopic(
        name,
        partitions,
        told.get("cleanup.policy", ""),
        None if bytes_max is None else int(bytes_max),
    )


def _config_of(admin: AdminClient, kind: Any, name: str) -> Mapping[str, str]:
    """Return settings of a topic or a broker; none if we may not know them."""
    resource = ConfigResource(kind, name)
    try:
        found = admin.describe_configs([resource], request_timeout=_SECONDS)[resource].result()
    except KafkaException as error:
        denied = (
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
        )
        if error.args[0].code() not in denied:
            raise
        return {}
    return {key: entry.value for key, entry in found.items() if entry.value is not None}


def _any_broker(admin: AdminClient) -> int:
    return next(iter(admin.list_topics(timeout=_SECONDS).brokers))


def _groups(admin: AdminClient) -> Iterable[Any]:  # Any: as the stubs have it.
    found: Iterable[Any] = admin.list_consumer_groups(request_timeout=_SECONDS).result().valid
    return found


def _marker(settings: Mapping[str, Any], group: str) -> int:
    consumer = Consumer({**settings, "group.id": group, "enable.auto.commit": False})
    try:
        (found,) = consumer.committed([TopicPartition(CHECKPOINTS_TOPIC, 0)], timeout=_SECONDS)
        return found.offset
    finally:
        consumer.close()
