"""Calls outside transactions: the checkpoints' topic, limits of topics, and what the marker names."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs export only some of its names
    AdminClient,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from broadsheet.consumer.errors import StoreError, StoreUnavailableError
from broadsheet.consumer.stores.kafka.marker import RecordPlace
from broadsheet.consumer.stores.kafka.settings import for_readers
from broadsheet.consumer.stores.kafka.transactions import KafkaClients, SinkId
from broadsheet.consumer.stores.kafka.verdicts import is_passing, is_refused_connection

# ruff: noqa: SLF001 - the client names errors of its own, not of a broker, with an underscore

_SECONDS: Final = 10.0
_SCAN_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.25
_EMPTY_POLLS_MAX: Final = round(_SCAN_SECONDS / _POLL_SECONDS)
_ASKINGS_MAX: Final = 20
_SETTLING: Final = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_UNTOLD: Final = {
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
_BATCH_BYTES: Final = 512
"""Most bytes that a record and its batch need beside key, value and headers."""
AnswerT = TypeVar("AnswerT")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The limits of a topic."""

    partitions: int
    record_bytes_max: int
    """Keys, values and headers of one record."""
    topic_id: str = ""
    """Of a topic that was deleted and created again it is another one; empty: brokers do not tell."""


class Marker(NamedTuple):
    """The state of a shard in Kafka."""

    number: int
    """Of its last transaction; 0: there is no marker."""
    metadata: str | None
    group: Any
    """The group's metadata, for the transactions that follow. `Any`: the client's own object, which has no type."""


class KafkaTopics:
    """Asks the brokers of one sink."""

    def __init__(
        self,
        sink: SinkId,
        config: Mapping[str, Any],  # Any: as the client accepts them.
        clients: KafkaClients,
    ) -> None:
        """Connect to nothing yet.

        Args:
            sink: The shard, for errors, and its names.
            config: Of its producer, with the contents of files.
            clients: Makers of clients.
        """
        self._sink = sink
        self._config = for_readers(config)
        self._record_bytes_max = int(config.get("message.max.bytes", 0))
        self._clients = clients
        self._admin: AdminClient | None = None
        self.made_again = False
        """The checkpoints' topic was deleted under this holder, and created again: it has no record of the shard."""
        self._refused: KafkaError | None = None
        """The last refused connection, of which calls tell only that they timed out."""

    def ensure_checkpoints(self) -> None:
        """Create the checkpoints' topic if there is none; refuse one that would forget.

        Raises:
            StoreError: it cannot be created, or its policy removes records by age.
            StoreUnavailableError: no broker answers.
        """
        topic = self._sink.checkpoints_topic
        if self._described(topic) is None:
            with self._named(f"cannot create the topic {topic}, compacted and of one partition"):
                new = NewTopic(topic, 1, config={"cleanup.policy": "compact"})
                for created in self._opened().create_topics([new]).values():
                    _result_unless(created, KafkaError.TOPIC_ALREADY_EXISTS)
        policy = self._topic_config(topic).get("cleanup.policy", "compact")
        if policy != "compact":
            raise StoreError(
                self._sink.shard_fqn,
                f"topic {topic}: expected cleanup.policy=compact, got {policy}: checkpoints would be deleted by age",
            )

    def limits(self, topic: str, default_bytes_max: int) -> TopicLimits:
        """Return what a topic takes.

        Args:
            topic: Its name.
            default_bytes_max: Of a record, where no setting of the client says otherwise.

        Raises:
            StoreUnavailableError: there is no such topic, or no broker answers.
        """
        described = self._described(topic)
        if described is None:
            raise StoreUnavailableError(self._sink.shard_fqn, _absent(topic))
        bytes_max = self._record_bytes_max or default_bytes_max
        told = self._topic_config(topic).get("max.message.bytes")
        if told is not None:
            bytes_max = min(bytes_max, int(told))
        return TopicLimits(
            len(described.partitions), bytes_max - _BATCH_BYTES, topic_id_text(described.topic_id)
        )

    def limits_now(
        self, topic: str, default_bytes_max: int, known: TopicLimits | None
    ) -> TopicLimits:
        """Return what a topic takes, as `limits` does; as far as it is known while that cannot be told.

        Logs a warning if the topic is another one than before.
        """
        try:
            found = self.limits(topic, default_bytes_max)
        except StoreUnavailableError:
            if known is None:
                raise
            return known  # The next commit waits, and tells why.
        if known is not None and known.topic_id and found.topic_id not in ("", known.topic_id):
            _log.warning(
                "kafka_sink.topic_recreated",
                topic=topic,
                known=known.topic_id,
                found=found.topic_id,
                lost="records that were sent to the former topic",
            )
        return found

    def hindrance(self, places: Iterable[tuple[str, int]]) -> str:
        """Return why topics take no records now, and what to do; empty if they should, or do not tell.

        If the checkpoints' topic was deleted, it is created again: the transaction that is sent again has the marker,
        which only this holder knows by then.

        Args:
            places: Topics and partitions of records; -1: any.
        """
        wanted = defaultdict(set)
        for topic, partition in places:
            wanted[topic].add(partition)
        try:
            if self._described(self._sink.checkpoints_topic) is None:
                _log.warning(
                    "kafka_sink.checkpoints_deleted",
                    topic=self._sink.checkpoints_topic,
                    shard=self._sink.shard_fqn,
                )
                self.ensure_checkpoints()
                self.made_again = True
            found = (self._lacking(topic, partitions) for topic, partitions in wanted.items())
            return next((each for each in found if each), "")
        except StoreError:
            return ""

    def _lacking(self, topic: str, partitions: Collection[int]) -> str:
        described = self._described(topic)
        if described is None:
            return _absent(topic)
        count, highest = len(described.partitions), max(partitions)
        if highest >= count:
            return (
                f"a record is for partition {highest} of topic {topic}, which has {count} by now: it was deleted and "
                "created again with fewer. The next attempt chooses again"
            )
        in_sync_min = int(self._topic_config(topic).get("min.insync.replicas", 1))
        for each in described.partitions:
            if -1 in partitions or each.id in partitions:
                if each.leader is None:
                    return f"partition {each.id} of topic {topic} has no leader: start its brokers"
                # A topic with fewer replicas than that takes records with all it has.
                if len(each.isr) < min(in_sync_min, len(each.replicas)):
                    return (
                        f"partition {each.id} of topic {topic} has {len(each.isr)} replicas in sync, and takes records "
                        f"with {in_sync_min} (min.insync.replicas): start the other brokers, or lower that"
                    )
        return ""

    def marker(self) -> Marker:
        """Return the number and metadata of the shard's last transaction.

        A commit under way is waited for, as only `read_committed` does.

        Raises:
            StoreUnavailableError: no broker answers, or a commit stays undecided.
        """
        with self._consumer(isolation="read_committed") as consumer:
            wanted = TopicPartition(self._sink.checkpoints_topic, 0)
            with self._named("cannot read the marker"):
                (found,) = _asked(lambda: consumer.committed([wanted], timeout=_SCAN_SECONDS))
            group = consumer.consumer_group_metadata()
        if found.error is not None:
            raise self._told("cannot read the marker", found.error)
        return Marker(max(0, found.offset), found.metadata, group)

    def offsets_retention_seconds(self) -> float | None:
        """Return after how long brokers forget offsets of a group without members; None if they do not tell us.

        Raises:
            StoreUnavailableError: no broker answers.
        """
        with self._named("cannot list the brokers"):
            brokers = self._opened().list_topics(timeout=_SECONDS).brokers
        resource = ConfigResource(ResourceType.BROKER, str(next(iter(brokers), 0)))
        try:
            answer = self._opened().describe_configs([resource], request_timeout=_SECONDS)
            found = answer[resource].result().get("offsets.retention.minutes")
        except KafkaException as error:
            if error.args[0].code() not in _UNTOLD:
                raise self._told("cannot read the brokers' settings", error.args[0]) from error
            return None
        return None if found is None or found.value is None else float(found.value) * 60

    def checkpoint_at(self, place: RecordPlace) -> bytes:
        """Return the checkpoint in a record that a marker names, which is committed because the marker is.

        Raises:
            StoreError: it is not there.
        """
        with self._consumer(isolation="read_uncommitted") as consumer:
            start = TopicPartition(self._sink.checkpoints_topic, place.partition, place.offset)
            consumer.assign([start])
            for _ in range(_EMPTY_POLLS_MAX):
                message = consumer.poll(_POLL_SECONDS)
                if message is None:
                    continue
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if is_passing(error):
                        continue
                    raise self._told("cannot read the checkpoint", error)
                if error is None and message.offset() == place.offset:
                    return message.value() or b""
                break
        raise StoreError(
            self._sink.shard_fqn,
            f"its checkpoint is missing: the marker names offset {place.offset} of {self._sink.checkpoints_topic}"
            f"/{place.partition}, which has no such record; was the topic deleted, or given a retention?",
        )

    def has_checkpoint_record(self) -> bool:
        """Tell whether a committed record of this shard is in the checkpoints' topic. Reads all of it.

        Raises:
            StoreUnavailableError: the end of the topic could not be read, as while another transaction is open in it.
        """
        topic, key = self._sink.checkpoints_topic, self._sink.name.encode()
        with self._consumer(isolation="read_uncommitted") as consumer, self._named("cannot scan"):
            # Asked without isolation: with it, the end is where the oldest open transaction began.
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_SECONDS)
        if low >= high:
            return False
        with self._consumer(isolation="read_committed") as consumer, self._named("cannot scan"):
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            for _ in range(_EMPTY_POLLS_MAX):
                for message in consumer.consume(1_000, _POLL_SECONDS):
                    if message.error() is None and message.key() == key:
                        return True
                (position,) = consumer.position([TopicPartition(topic, 0)])
                if position.offset >= high:
                    return False
        raise StoreUnavailableError(
            self._sink.shard_fqn, f"the topic {topic} could not be read to its end {high}"
        )

    def _described(self, topic: str) -> Any:  # Any: the stubs do not tell what the future returns.
        """Return what brokers tell of a topic; None if there is none, which asking does not create."""
        with self._named(f"cannot describe the topic {topic}"):
            answer = self._opened().describe_topics(
                TopicCollection([topic]), request_timeout=_SECONDS
            )
            try:
                return answer[topic].result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise

    def _topic_config(self, topic: str) -> Mapping[str, str]:
        """Return the settings of a topic; none if the brokers do not tell them to us."""
        resource = ConfigResource(ResourceType.TOPIC, topic)

        def ask() -> Mapping[str, str]:
            answer = self._opened().describe_configs([resource], request_timeout=_SECONDS)
            found = answer[resource].result()
            return {name: entry.value for name, entry in found.items() if entry.value is not None}

        try:
            return _asked(ask)
        except KafkaException as error:
            if error.args[0].code() not in _UNTOLD:
                raise self._told(f"cannot read the settings of {topic}", error.args[0]) from error
            _log.info("kafka_sink.topic_settings_untold", topic=topic, reason=error.args[0].str())
            return {}

    def _opened(self) -> AdminClient:
        if self._admin is None:
            self._admin = self._clients.admin({"error_cb": self._note, **self._config})
        self._admin.poll(0)  # Tokens are renewed by callbacks.
        return self._admin

    @contextmanager
    def _consumer(self, *, isolation: str) -> Iterator[Consumer]:
        consumer = self._clients.consumer(
            {
                **self._config,
                "group.id": self._sink.name,
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        try:
            if "oauth_cb" in self._config:
                consumer.poll(0)
            yield consumer
        finally:
            consumer.close()

    @contextmanager
    def _named(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._told(doing, error.args[0]) from error

    def _note(self, error: KafkaError) -> None:
        if is_refused_connection(error):
            self._refused = error

    def _told(self, doing: str, error: KafkaError) -> StoreError:
        kind = StoreUnavailableError if is_passing(error) else StoreError
        detail = f"{doing}: {error.str()} ({error.name()})"
        if self._admin is not None:
            self._admin.poll(0)  # Calls back with what has happened meanwhile.
        refused, self._refused = self._refused, None
        if refused is not None:
            detail += f"; a connection was refused: {refused.str()} ({refused.name()})"
        return kind(self._sink.shard_fqn, detail)


def _absent(topic: str) -> str:
    return f"there is no topic {topic}; create it, or correct its name"


def topic_id_text(found: Any) -> str:  # Any: the stubs do not have its class.
    """Return an id as Kafka's tools show it; empty: there is none."""
    if found is None:
        return ""
    told = found.get_most_significant_bits() or found.get_least_significant_bits()
    return str(found) if told else ""


def _asked(ask: Callable[[], AnswerT]) -> AnswerT:
    """Return the answer, once brokers know what they will in a moment: a topic just created, a group's coordinator."""
    pause = threading.Event()
    for _ in range(_ASKINGS_MAX - 1):
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _SETTLING:
                raise
        pause.wait(_POLL_SECONDS)
    return ask()


def _result_unless(
    future: Any, code: int
) -> None:  # Any: the stubs do not tell what it resolves to.
    try:
        future.result(_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != code:
            raise
