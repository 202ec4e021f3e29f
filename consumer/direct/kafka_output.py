"""Declarations of what an application sends into Kafka, and where."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from broadsheet.consumer.application import (
    EncodedRecord,
    EncodesRecords,
    RecordConnection,
    RecordHeaders,
    Shard,
)
from broadsheet.consumer.stores.kafka.settings import (
    CHECKPOINTS_TOPIC,
    LIMITS_SECONDS,
    RECORD_BYTES_MAX,
    TRANSACTION_SECONDS,
    checked_settings,
)
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.message.checkpoint import OUTPUT_KEYS
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.libraries import needing

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.consumer.stores.kafka.topics import KafkaTopics, TopicLimits
    from broadsheet.consumer.stores.kafka.transactions import KafkaClients

KeyOf: TypeAlias = Callable[[Any], Any]
"""Returns the key of a message of the application's own class: bytes, None, or what the output's `key_type` encodes."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_JSON: Final = JsonType()


class KafkaCluster:
    """A Kafka cluster that applications send records into. Nothing is opened before a shard is served."""

    def __init__(
        self,
        config: Mapping[
            str, Any
        ],  # Any: texts, numbers, booleans and callbacks, as the client accepts them.
        *,
        name: str = "default",
        checkpoints_topic: str = CHECKPOINTS_TOPIC,
        transaction_seconds: float = TRANSACTION_SECONDS,
        clients: KafkaClients | None = None,
    ) -> None:
        """Check the settings.

        Args:
            config: Of Kafka's client (librdkafka), at least `bootstrap.servers`. Values `@/path` are read from files on
                each member, so that secrets are in no code.
            name: Tells the clusters of one application apart. Shards remember by it what they have sent: never change
                it, and never give it to another cluster.
            checkpoints_topic: A compacted topic whose committed offsets say what was sent; created if it is absent.
            transaction_seconds: Longest that a transaction may be open, and so hold up readers of its partitions.
            clients: Makers of clients.

        Raises:
            ValidationError: a setting is missing, or is one on which exactly-once depends; or the name is none.
        """
        if not _NAME.fullmatch(name):
            raise ValidationError("name", f"expected a-z, 0-9 and -, 63 at most, got {name!r}")
        self.name = name
        self.config = checked_settings(config)
        self.checkpoints_topic = checkpoints_topic
        self.transaction_seconds = transaction_seconds
        self.clients = clients
        self._limits: dict[str, tuple[float, TopicLimits]] = {}
        self._topics: KafkaTopics | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is declared, without what was opened: applications are sent to executors."""
        return {
            "config": self.config,
            "name": self.name,
            "checkpoints_topic": self.checkpoints_topic,
            "transaction_seconds": self.transaction_seconds,
            "clients": self.clients,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Declare the same cluster, with nothing opened."""
        self.__dict__.update(state)
        self._limits, self._topics, self._lock = {}, None, threading.Lock()

    def __repr__(self) -> str:
        """Return its name; settings may be secrets."""
        return f"KafkaCluster(name={self.name!r})"

    @property
    def key(self) -> str:
        """The key of its intents in checkpoints."""
        return OUTPUT_KEYS + self.name

    def limits(self, topic: str, now: float) -> TopicLimits:
        """Return what a topic takes, as asked in the last minutes. On any thread.

        Args:
            topic: Its name.
            now: Monotonic seconds.

        Raises:
            StoreUnavailableError: there is no such topic, or no broker answers.
            StoreError: the brokers refuse to tell.
        """
        with self._lock:
            asked, limits = self._limits.get(topic, (0.0, None))
            if limits is None or now > asked + LIMITS_SECONDS:
                limits = self._asked_limits(topic, limits)
                self._limits[topic] = now, limits
            return limits

    def forget_limits(self, topic: str) -> None:
        """Ask again when the limits of a topic are needed next. On any thread."""
        with self._lock:
            known = self._limits.get(topic)
            if known is not None:
                self._limits[topic] = float("-inf"), known[1]

    def _asked_limits(self, topic: str, known: TopicLimits | None) -> TopicLimits:
        from broadsheet.consumer.stores.kafka.topics import KafkaTopics
        from broadsheet.consumer.stores.kafka.transactions import KafkaClients, SinkId

        if self._topics is None:
            # Shared by the shards of the process: a client is threads and connections.
            sink = SinkId(f"output {self.key}", "", self.checkpoints_topic)
            clients = self.clients or KafkaClients()
            self._topics = KafkaTopics(sink, read_files(self.config), clients)
        return self._topics.limits_now(topic, RECORD_BYTES_MAX, known)

    def open(self, shard: Shard, *, bytes_max: int, clock: Clock | None = None) -> RecordConnection:
        """Return the connection of one attempt to serve a shard.

        Raises:
            ExtraMissingError: the extra `[kafka]` is not installed.
        """
        with needing("KafkaOutput", extra="kafka"):
            from broadsheet.consumer.direct.kafka_connection import KafkaConnection

        return KafkaConnection(self, shard, bytes_max=bytes_max, clock=clock or SystemClock())


@dataclass(frozen=True, slots=True)
class KafkaOutput:
    """A topic to which an application sends messages: `publisher.publish_record(output, message)`.

    Readers with `isolation.level=read_committed` see each record once, whatever happens to the shard; records of one
    key keep their order. It stands where a `JournalOutput` does, too.
    """

    topic: str
    """It exists."""
    cluster: KafkaCluster
    message_type: MessageType = _JSON
    """Encoding of values, without a UUID: `JsonType()`, or of a Schema Registry. Bytes, and None, a tombstone, are sent
    as they are."""
    key: str | KeyOf = ""
    """The field whose value is the record's key, or a function of the message; empty: records have no keys."""
    schema: Any = ""
    """Of the rows of a keyed processor, as of a `JournalOutput`."""
    key_type: MessageType | None = None
    """Encoding of keys, such as of a Schema Registry, of what `key` finds; None: bytes, and texts of all else."""

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            ValidationError: there is no topic.
        """
        if not self.topic:
            raise ValidationError("topic", "expected the name of a topic")

    def record_of(self, message: Any, key: bytes | None = None) -> EncodedRecord:
        """Return the record of a message: value and key as their types encode them, with the headers that these need.

        Args:
            message: Bytes, and None, a tombstone, are taken as they are.
            key: Taken as it is; None: what `key` finds, as `key_type` encodes it, or the UTF-8 of its text.

        Raises:
            ValueError, SourceError: a type cannot encode its part.
        """
        found = self._found_key(message) if key is None else key
        if found is not None and not isinstance(found, bytes) and self.key_type is None:
            found = str(found).encode()
        encoded_key, key_headers = _encoded(self.key_type, found)
        value, value_headers = _encoded(self.message_type, message)
        return EncodedRecord(value, encoded_key, (*value_headers, *key_headers))

    def _found_key(self, message: Any) -> Any:
        key = self.key
        if callable(key):
            return key(message)
        if not key or message is None or isinstance(message, bytes):
            return None
        return message.get(key) if isinstance(message, Mapping) else getattr(message, key, None)

    def publish_rows(self, publisher: Publisher, rows: pa.Table) -> None:
        """Send a record for each row."""
        for row in rows.to_pylist():
            publisher.publish_record(self, row)


def _encoded(message_type: MessageType | None, part: Any) -> tuple[bytes | None, RecordHeaders]:
    """Return a part of a record, and its headers; bytes, and None, as they are."""
    if part is None or isinstance(part, bytes):
        return part, ()
    assert message_type is not None, "keys without a type are bytes"
    if _has_headers(type(message_type)):
        encoded: tuple[bytes, RecordHeaders] = cast("EncodesRecords", message_type).encode_record(
            part
        )
        return encoded
    return message_type.encode(part), ()


@cache
def _has_headers(message_type: type) -> bool:
    # Kept, because a look at a protocol takes longer than the rest.
    return issubclass(message_type, EncodesRecords)
