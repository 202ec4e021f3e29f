"""A store that is a Kafka cluster: a shard's records and its checkpoint in one Kafka transaction.

    class Out:
        def new_store(self, shard): return KafkaStore(shard, {"bootstrap.servers": "broker:9092"})
        def consume_message(self, shard, store, envelope, publisher):
            store.publish("orders", encoded(envelope.message), key)

Readers with `isolation.level=read_committed` see each record once. Records of one key keep their order. A newer holder
takes the transactional id `{root}/{shard}`, so that brokers refuse the older one. Nothing is kept beside Kafka: no
recovery log, no files.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.kafka.marker import (
    InlineCheckpoint,
    RecordPlace,
    parse_metadata,
    sink_name,
)
from broadsheet.consumer.stores.kafka.record import (
    Outgoing,
    Record,
    RecordRun,
    count_records,
    places_of,
    record_bytes,
)
from broadsheet.consumer.stores.kafka.settings import (
    CHECKPOINTS_TOPIC,
    LIMITS_SECONDS,
    RECORD_BYTES_MAX,
    TRANSACTION_SECONDS,
    checked_settings,
    ours,
)
from broadsheet.consumer.stores.kafka.topics import (
    KafkaTopics,
    Marker,
    TopicLimits,
)
from broadsheet.consumer.stores.kafka.transactions import (
    KafkaClients,
    SinkId,
    Transactions,
    TxnProgress,
)
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint

REFRESH_SECONDS: Final = 86_400.0
"""How often an idle shard commits, so that Kafka, which forgets offsets after 7 days by default, keeps its marker."""

_BEGIN_AGAIN: Final = (
    "To send all again, apply the shard under another id, and delete this one; to go on, give its sources there the "
    "min_offset behind what the output topic has"
)


class KafkaStore:
    """Publishes records into Kafka, exactly once. It keeps no state: records are all that its shard makes."""

    def __init__(
        self,
        shard: Shard,
        config: Mapping[
            str, Any
        ],  # Any: texts, numbers, booleans and callbacks, as the client accepts them.
        *,
        checkpoints_topic: str = CHECKPOINTS_TOPIC,
        transaction_seconds: float = TRANSACTION_SECONDS,
        clients: KafkaClients | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Check the settings; nothing is opened before `restore_checkpoint`.

        Args:
            shard: The shard.
            config: Of Kafka's client, at least `bootstrap.servers`. Values `@/path` are read from files.
            checkpoints_topic: A compacted topic for all sinks of the cluster; created if it is absent.
            transaction_seconds: Longest that a transaction may be open, and so hold up readers of its partitions.
            clients: Makers of clients.
            clock: Ages what is known of topics.

        Raises:
            ValidationError: a setting is missing, or is one that the store chooses.
        """
        self._fqn = shard.fqn
        root = shard.fqn.removesuffix(f"/items/{shard.id}")
        self._sink = SinkId(shard.fqn, sink_name(root, shard.id), checkpoints_topic)
        self._config = checked_settings(config)
        self._ours = ours(self._sink.name, transaction_seconds)
        self._clients = clients or KafkaClients()
        self._commits = CommitThread(shard.fqn)
        self._lock = threading.Lock()
        self._transactions: Transactions | None = None
        self._topics: KafkaTopics | None = None
        self._limits: dict[str, TopicLimits] = {}
        self._asked: dict[str, float] = {}
        """When the limits of a topic were asked for, monotonic seconds."""
        self._clock = clock or SystemClock()
        self._pending: list[Outgoing] = []
        self._number = 0
        """Of the last transaction that was started."""
        self._closed = False

    @property
    def sink_name(self) -> str:
        """Transactional id and group of the shard."""
        return self._sink.name

    @property
    def pending(self) -> int:
        """Number of records of the running transaction."""
        return count_records(self._pending)

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = -1,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
    ) -> None:
        """Add a record to the running transaction.

        Args:
            topic: Its topic, which exists.
            value: Encoded; None is a tombstone.
            key: Chooses the partition, as Kafka's producers in Java do.
            partition: Its partition; -1: by the key.
            headers: In their order.
            timestamp_ms: Milliseconds since 1970; 0: when it is sent.

        Raises:
            ValidationError: the topic would not take a record of this length.
            StoreUnavailableError: there is no such topic.
        """
        self._require_short(topic, record_bytes(value, key, headers))
        self._pending.append(Record(topic, value, key, partition, headers, timestamp_ms))

    def publish_batch(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int = -1,
    ) -> None:
        """Add many records to the running transaction, in their order: all or, if one is refused, none.

        Args:
            topic: Their topic, which exists.
            values: Encoded.
            keys: As many; None: the records have none.
            partition: Of all; -1: by the keys.

        Raises:
            ValidationError, StoreUnavailableError: as of `publish`.
        """
        keyed: Sequence[bytes | None] = [None] * len(values) if keys is None else keys
        longest = max(map(len, values), default=0)
        if keys is not None:
            longest += max((len(key) for key in keys if key is not None), default=0)
        if longest > self.limits(topic).record_bytes_max:
            # Perhaps of two records: only a look at each tells.
            for value, key in zip(values, keyed, strict=True):
                self._require_short(topic, len(value) + len(key or b""))
        if len(keyed) != len(values):
            raise ValidationError("keys", f"expected {len(values)}, one a value, got {len(keyed)}")
        # Copied: the caller may use its lists again before the commit.
        self._pending.append(RecordRun(topic, tuple(values), tuple(keyed), partition))

    def _require_short(self, topic: str, size: int) -> None:
        bytes_max = self.limits(topic).record_bytes_max
        if size > bytes_max:
            # Refused before anything is committed: Kafka would never take it, and the shard would be stuck.
            raise ValidationError(
                "value",
                f"expected a record of {bytes_max} bytes at most for topic {topic} (its max.message.bytes and the "
                f"client's message.max.bytes, less its frame), got {size}",
            )

    def limits(self, topic: str) -> TopicLimits:
        """Return how many partitions a topic has and how long its records may be, as asked in the last minutes.

        Raises:
            StoreUnavailableError: there is no such topic, or no broker answers.
            StoreError: the brokers refuse to tell.
        """
        known, now = self._limits.get(topic), self._clock.monotonic_seconds()
        if known is not None and now < self._asked[topic] + LIMITS_SECONDS:
            return known
        if self._topics is None:
            raise StoreClosedError(self._fqn)
        self._asked[topic] = now
        self._limits[topic] = found = self._topics.limits_now(topic, RECORD_BYTES_MAX, known)
        return found

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Fence the holders before, and return the checkpoint of the last transaction that Kafka committed."""
        del shard
        self._pending = []
        self._limits.clear()
        config = {**read_files(self._config), **self._ours}
        topics = self._topics = KafkaTopics(self._sink, config, self._clients)
        topics.ensure_checkpoints()
        transactions = Transactions(self._sink, config, self._clients)
        self._take(transactions)
        transactions.open()
        # Read only now: the producer before can no longer change it.
        marker = topics.marker()
        transactions.group, self._number = marker.group, marker.number
        return stored_checkpoint(self._fqn, self._checkpoint_of(marker, topics))

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Send the records so far, and the checkpoint, in one transaction, after `wait_for`."""
        del shard
        records, self._pending = self._pending, []
        self._number += 1
        # A marker can be forgotten by Kafka, the record of the first checkpoint cannot.
        topics = self._topics
        needs_record = self._number == 1 or (topics is not None and topics.made_again)
        progress = TxnProgress(self._number, checkpoint.SerializeToString(), needs_record)
        return self._commits.start(
            CommitSteps(write=partial(self._commit, records, progress, dict(self._limits))),
            wait_for,
        )

    def destroy(self) -> None:
        """End calls to Kafka, and drop what was not committed."""
        with self._lock:
            self._closed = True
            transactions = self._transactions
        self._pending, self._topics = [], None
        if transactions is not None:
            transactions.close()
        self._commits.close()

    def _take(self, transactions: Transactions) -> None:
        with self._lock:
            if self._closed:
                raise StoreClosedError(self._fqn)
            before, self._transactions = self._transactions, transactions
        if before is not None:
            before.close()

    def _checkpoint_of(self, marker: Marker, topics: KafkaTopics) -> bytes:
        if not marker.number:
            if topics.has_checkpoint_record():
                raise StoreError(
                    self._fqn,
                    f"Kafka has forgotten the marker of group {self._sink.name}, though this shard has sent records "
                    "(offsets.retention.minutes, or the group was deleted or reset): to begin again would send "
                    f"all of them again. {_BEGIN_AGAIN}",
                )
            return b""
        try:
            marked = parse_metadata(marker.metadata)
        except ValidationError as error:
            raise StoreError(
                self._fqn,
                f"offset {marker.number} of group {self._sink.name}: {error}. If somebody reset the offset, the "
                f"checkpoint is lost with it. {_BEGIN_AGAIN}",
            ) from error
        match marked:
            case InlineCheckpoint(content):
                return content
            case RecordPlace():
                return topics.checkpoint_at(marked)

    def _commit(
        self,
        records: Sequence[Outgoing],
        progress: TxnProgress,
        limits: Mapping[str, TopicLimits],
    ) -> None:
        transactions, topics = self._transactions, self._topics
        if transactions is None or topics is None:
            raise StoreClosedError(self._fqn)
        transactions.commit(records, progress, partial(_hindrance, topics, records, limits))
        if progress.needs_record:
            topics.made_again = False


def _hindrance(
    topics: KafkaTopics, records: Sequence[Outgoing], limits: Mapping[str, TopicLimits]
) -> str:
    """Return why the topics of records do not take them; empty: that is not known."""
    places = places_of(records)
    # Where the client chose, it may have chosen any partition of those that there were.
    chosen = {(topic, limits[topic].partitions - 1) for topic, _ in places if topic in limits}
    return topics.hindrance(places | chosen)
