"""Settings of Kafka's clients for a sink: the user's pass through, ours cannot be contradicted.

A value `@/path` is the content of that file, read when a client is opened: so secrets are on the member, and in no spec
and no log. Names of the settings are librdkafka's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broadsheet.consumer.stores.setting_files import FROM_FILE
from broadsheet.runtime.errors import ValidationError

CHECKPOINTS_TOPIC: Final = "broadsheet-checkpoints"
TRANSACTION_SECONDS: Final = 10.0
"""Longest that readers of a partition can be held up by a transaction whose producer stopped; it is only open while
records that are in memory are sent."""
LIMITS_SECONDS: Final = 300.0
"""Age at which partitions and limits of a topic are asked for again, as Kafka's producers do."""
RECORD_BYTES_MAX: Final = 1_000_000
"""`message.max.bytes` of the client, where no setting says otherwise."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    # The offset of a transaction right behind another meets the unfinished end of that one, and waits a whole back-off:
    # 15 transactions a second with the client's 100 ms, 150 with these (confluent-kafka-python, issue 967).
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 20,
    # The client's own bound is 1 GiB for each producer.
    "queue.buffering.max.kbytes": 65_536,
    "queue.buffering.max.messages": 500_000,
    # A topic that was deleted would come back as brokers make one by themselves: with one partition, and their limits.
    "allow.auto.create.topics": False,
    # Keys go to the partitions to which producers in Java send them.
    "partitioner": "murmur2_random",
}
_SECRETS: Final = (
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
)
_OF_PRODUCERS: Final = (
    "acks",
    "allow.auto.create.topics",
    "batch.",
    "compression.",
    "delivery.",
    "enable.gapless",
    "enable.idempotence",
    "linger.",
    "max.in.flight",
    "message.send",
    "message.timeout",
    "partitioner",
    "queue.buffering.",
    "queuing.strategy",
    "request.required",
    "request.timeout",
    "retries",
    "retry.backoff",
    "sticky.",
    "transaction",
)
"""Beginnings of settings that a consumer or an admin client would warn of."""


def ours(transactional_id: str, transaction_seconds: float) -> dict[str, Any]:
    """Return the settings on which exactly-once depends."""
    return {
        "transactional.id": transactional_id,
        "enable.idempotence": True,
        "acks": "all",
        "transaction.timeout.ms": round(transaction_seconds * 1000),
    }


def checked_settings(config: Mapping[str, Any], field: str = "config") -> dict[str, Any]:
    """Return the settings of a producer, without those that `ours` adds.

    Args:
        config: The user's: texts, numbers, booleans and callbacks, as the client accepts them.
        field: Named in errors.

    Raises:
        ValidationError: there are no brokers, or a setting is one that the store chooses.
    """
    if not config.get("bootstrap.servers"):
        raise ValidationError(f"{field}[bootstrap.servers]", "expected addresses of brokers")
    for name in (*ours("", TRANSACTION_SECONDS), "group.id", "isolation.level"):
        if name in config:
            raise ValidationError(
                f"{field}[{name}]",
                "expected none: exactly-once depends on it, and the store chooses it",
            )
    return {**_DEFAULTS, **config}


def refuse_secrets(config: Mapping[str, str], field: str) -> None:
    """Refuse secrets where everyone who may list shards reads them.

    Raises:
        ValidationError: a secret is there as itself, and not as the name of a file.
    """
    for name in _SECRETS:
        if name in config and not config[name].startswith(FROM_FILE):
            raise ValidationError(
                f"{field}[{name}]",
                f"expected {FROM_FILE}FILE, a file on each member: it is a secret",
            )


def for_readers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a consumer or an admin client needs of a producer's settings."""
    return {name: value for name, value in config.items() if not name.startswith(_OF_PRODUCERS)}
