"""Ids of topics: two topics that had the same name, one after the other, differ in them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from broadsheet.consumer.sources.kafka.partitions import CALL_SECONDS, told_apart
from broadsheet.consumer.stores.kafka.topics import topic_id_text
from broadsheet.consumer.stores.setting_files import read_files

_CONNECTION: Final = (
    "api.version.",
    "bootstrap.servers",
    "broker.",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "connections.",
    "debug",
    "enable.metrics.push",
    "enable.sasl.",
    "enable.ssl.",
    "error_cb",
    "https.",
    "log_level",
    "logger",
    "metadata.broker.list",
    "oauth_cb",
    "plugin.",
    "reconnect.",
    "resolve_cb",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
    "ssl_",
)
"""Settings, by their beginnings, that say how to connect. Others are of consumers, and a client that is none warns."""
_UNTOLD: Final = {
    KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001 - the client's own errors have an underscore
    KafkaError.UNSUPPORTED_VERSION,
}

_log = structlog.get_logger()


class TopicIds:
    """Asks a cluster for the ids of topics, by one connection for all shards of a source."""

    def __init__(
        self,
        config: Mapping[str, Any],  # Any: as the client accepts them.
        open_admin: Callable[[dict[str, Any]], AdminClient],
    ) -> None:
        """Create it without a connection.

        Args:
            config: Of a consumer; what says how to connect is taken. Values `@/path` are read from files.
            open_admin: Returns a client of the settings given.
        """
        self._config = {name: value for name, value in config.items() if _connects(name)}
        self._open_admin = open_admin
        self._admin: AdminClient | None = None
        self._opening = threading.Lock()

    async def of(self, topics: Sequence[str]) -> Mapping[str, str]:
        """Return the ids of topics, empty texts where the brokers tell none, as those before Kafka 2.8.

        Raises:
            SourceError: a topic does not exist, or no broker answers.
        """
        return await asyncio.to_thread(self._ask, list(topics))

    def _ask(self, topics: list[str]) -> dict[str, str]:
        admin = self._opened()
        admin.poll(0)  # Tokens are renewed by callbacks.
        try:
            answers = admin.describe_topics(TopicCollection(topics), request_timeout=CALL_SECONDS)
        except KafkaException as error:
            raise told_apart(",".join(topics), error.args[0]) from error
        return {topic: _id_of(topic, answers[topic]) for topic in topics}

    def _opened(self) -> AdminClient:
        with self._opening:
            if self._admin is None:
                self._admin = self._open_admin(read_files(self._config))
            return self._admin


def _connects(name: str) -> bool:
    return name.startswith(_CONNECTION)


def _id_of(topic: str, answer: Any) -> str:  # Any: the stubs do not tell what the future returns.
    try:
        found = answer.result().topic_id
    except KafkaException as error:
        if error.args[0].code() in _UNTOLD:
            _log.info("kafka.topic_id_untold", topic=topic, reason=error.args[0].str())
            return ""
        raise told_apart(topic, error.args[0]) from error
    return topic_id_text(found)
