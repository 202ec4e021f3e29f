"""One shard's way into a Kafka cluster: records of the running transaction, and Kafka's transactions behind commits.

    worker thread    add … add ─► take_intent ─► the store's commit
    own thread       open: fence, marker ─► verify what was restored ─► send n ─► send n+1 …

The own thread does one thing at a time. Opening begins before the shard is restored, because it takes as long as that:
to fence the former producer earlier is harmless, as long as the marker is read behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, Final, Protocol

import structlog

from broadsheet.consumer.application import RecordOutput, Shard, Store
from broadsheet.consumer.direct.partitioner import partition_of
from broadsheet.consumer.direct.record_intents import (
    INTENT_BYTES_FACTOR,
    Intent,
    IntentVerdict,
    encoded_head,
    encoded_record,
    parse_intent,
    resolve,
)
from broadsheet.consumer.errors import (
    OutputDoubtError,
    StoreClosedError,
    UnsupportedSpecError,
)
from broadsheet.consumer.stores.kafka.marker import DIRECT_METADATA, sink_name
from broadsheet.consumer.stores.kafka.record import Record, places_of, record_bytes
from broadsheet.consumer.stores.kafka.settings import RECORD_BYTES_MAX, ours
from broadsheet.consumer.stores.kafka.store import KafkaStore
from broadsheet.consumer.stores.kafka.topics import KafkaTopics, TopicLimits
from broadsheet.consumer.stores.kafka.transactions import (
    KafkaClients,
    SinkId,
    Transactions,
    TxnProgress,
)
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.op_future import OpFuture, completed

RENEWED_SECONDS: Final = 86_400.0
"""Age of a marker at which it is committed again, at most: Kafka forgets offsets after 7 days by default."""
SHORT_RETENTION_SECONDS: Final = 86_400.0
_log = structlog.get_logger()
_partition_of = lru_cache(maxsize=65_536)(partition_of)


class DeclaredCluster(Protocol):
    """The part of a `KafkaCluster` that a connection needs."""

    name: str
    config: dict[str, Any]
    checkpoints_topic: str
    transaction_seconds: float
    clients: KafkaClients | None

    @property
    def key(self) -> str:
        """The key of its intents in checkpoints."""
        ...

    def limits(self, topic: str, now: float) -> TopicLimits:
        """Return what a topic takes, as of a moment not long ago."""
        ...

    def forget_limits(self, topic: str) -> None:
        """Ask again when the limits of a topic are needed next."""
        ...


class _OwnThread:
    """A thread that makes one call at a time. It ends with the process, whatever it waits for."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[OpFuture, Callable[[], None]] | None] = SimpleQueue()
        self._closed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False

    def start(self, future: OpFuture, call: Callable[[], None]) -> None:
        """Make a call behind those before it; the future tells its end."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        self._calls.put((future, call))

    def close(self, error: BaseException) -> None:
        """Fail what has not begun."""
        self._closed = self._closed or error
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            try:
                if self._closed is not None:
                    raise self._closed
                call()
            except BaseException as error:  # The future carries it to its waiters.
                future.set_exception(error)
            else:
                future.set_result(None)


class KafkaConnection:
    """The connection of one attempt to serve a shard."""

    def __init__(
        self, cluster: DeclaredCluster, shard: Shard, *, bytes_max: int, clock: Clock
    ) -> None:
        """Connect to nothing yet.

        Args:
            cluster: Where records go.
            shard: Whose.
            bytes_max: Of a transaction's records: above it `is_full`.
            clock: Stamps records, and ages limits.
        """
        self.key = cluster.key
        root = shard.fqn.removesuffix(f"/items/{shard.id}")
        name = sink_name(root, shard.id)
        # Of several clusters that are one after all, producers must not fence each other.
        self.sink = name if cluster.name == "default" else f"{name}#{cluster.name}"
        self._shard_id, self._fqn = shard.id, shard.fqn
        self._cluster = cluster
        self._bytes_max = bytes_max
        self._clock = clock
        self._records: list[Record] = []
        self._parts: list[bytes] = []
        self._bytes = 0
        self._number = 0
        """Of the last transaction that sends records."""
        self._taken: tuple[bytes, int, Sequence[Record]] = b"", 0, ()
        """The last intent, its number and its records, which need not be decoded then."""
        self._thread = _OwnThread(f"kafka {shard.id}")
        self._opening: OpFuture = Future()
        self._transactions: Transactions | None = None
        self._topics: KafkaTopics | None = None
        self._marker: int | None = None
        """As Kafka has it; None: it has none. The own thread's."""
        self._renewed = float("-inf")
        """When the marker was last committed, as far as this process knows, monotonic seconds."""
        self._renewal_seconds = RENEWED_SECONDS
        self._closed = False

    # -- the transaction, on the worker thread

    @property
    def queued_bytes(self) -> int:
        """Bytes of the running transaction's records, encoded."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """Report whether the transaction should take no more input."""
        return self._bytes >= self._bytes_max

    def add(
        self,
        output: RecordOutput,
        message: Any,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Add a message to the running transaction.

        Raises:
            ValidationError: the topic would not take a record of this length, the transaction would be too large, or a
                header has the name of one in which the message type tells its schema.
            StoreUnavailableError: there is no such topic, or no broker answers.
        """
        topic = output.topic
        value, key, own_headers = output.record_of(message, key)
        _require_absent(headers, own_headers)
        headers = (*headers, *own_headers)
        limits = self._cluster.limits(topic, self._clock.monotonic_seconds())
        size = record_bytes(value, key, headers)
        if size > limits.record_bytes_max:
            # Refused before anything is committed: Kafka would never take it, and the shard would be stuck.
            raise ValidationError(
                "value",
                f"expected a record of {limits.record_bytes_max} bytes at most for topic {topic} (its max.message.bytes"
                f" and the client's message.max.bytes, less its frame), got {size}",
            )
        # Records without keys change the partition with each transaction, as batches of Kafka's producers do.
        partition = (
            self._number % limits.partitions
            if key is None
            else _partition_of(key, limits.partitions)
        )
        moment = round(self._clock.wall_seconds() * 1000)
        record = Record(topic, value, key, partition, headers, moment)
        part = encoded_record(record)
        hard_max = self._bytes_max * INTENT_BYTES_FACTOR
        if self._bytes + len(part) > hard_max:
            raise ValidationError(
                "records",
                f"expected {hard_max} bytes at most in one transaction, because its commit holds them: publish into a "
                "journal, and carry it out by `shardctl sink kafka`; or raise the member's intent_bytes_max",
            )
        self._records.append(record)
        self._parts.append(part)
        self._bytes += len(part)

    def take_intent(self) -> bytes:
        """Return the intent of the transaction that closes, and begin another one."""
        records, parts = self._records, self._parts
        if not records:
            return encoded_head(self._number, self.sink)
        self._records, self._parts, self._bytes = [], [], 0
        self._number += 1
        content = b"".join((encoded_head(self._number, self.sink), *parts))
        self._taken = content, self._number, records
        return content

    # -- recovery and sending

    def start(self) -> None:
        """Fence former producers, and read the marker, in the background."""
        self._thread.start(self._opening, self._open)

    def settle(self, restored: bytes, store: Store) -> bytes:
        """Go on from a restored checkpoint; return the intent that is to be acknowledged.

        Args:
            restored: The checkpoint's intent; empty: it has none.
            store: The shard's.

        Raises:
            UnsupportedSpecError: the store sends into the same cluster, under the same name.
            ValidationError: the intent is none.
            LaterFormatError: a later release wrote it.
        """
        if isinstance(store, KafkaStore) and store.sink_name == self.sink:
            raise UnsupportedSpecError(
                f"outputs[{self.key}]",
                "expected another store than KafkaStore, or another name of the cluster: both would be one producer",
            )
        intent = parse_intent(restored, f"ack_intents[{self.key}]")
        if intent.sink not in ("", self.sink):
            # The state was another shard's, which sends it.
            _log.info("outputs.begun_again", shard=self._shard_id, sink=intent.sink)
            restored = b""
        self._number = intent.number if restored else 0
        return restored or encoded_head(0, self.sink)

    def acknowledge(
        self, content: bytes, after: Future[object] | None, *, recovered: bool
    ) -> OpFuture:
        """Send the records of an intent once its commit is durable.

        Args:
            content: The intent.
            after: The commit; None: it is durable.
            recovered: It is of the restored checkpoint, so Kafka may have it.

        Returns:
            A future that succeeds once Kafka has them. It fails with `OutputDoubtError` if Kafka has forgotten whether
            it has them, or contradicts the store; as `Transactions.commit` does otherwise.
        """
        if not recovered and content is not self._taken[0]:
            assert not parse_intent(content, self.key).records, "records of another transaction"
            return completed()
        future: OpFuture = Future()
        send = partial(self._acknowledge, content, recovered=recovered)
        if after is None:
            self._thread.start(future, send)
            return future

        def on_durable(commit: Future[object]) -> None:
            error = None if commit.cancelled() else commit.exception()
            if error is None and not commit.cancelled():
                self._thread.start(future, send)
            else:
                future.set_exception(error or StoreClosedError(self._fqn))

        after.add_done_callback(on_durable)
        return future

    def renew(self) -> None:
        """Commit the marker again if it is old, so that Kafka does not forget it. In the background."""
        if not self._closed:
            self._thread.start(Future(), self._renew)

    def close(self) -> None:
        """End every call under way, and drop what was not sent. Idempotent."""
        self._closed = True
        if self._transactions is not None:
            self._transactions.close()
        self._thread.close(StoreClosedError(self._fqn))

    # -- on the own thread

    def _open(self) -> None:
        cluster = self._cluster
        config = {**read_files(cluster.config), **ours(self.sink, cluster.transaction_seconds)}
        clients = cluster.clients or KafkaClients()
        sink = SinkId(self._fqn, self.sink, cluster.checkpoints_topic)
        topics = self._topics = KafkaTopics(sink, config, clients)
        topics.ensure_checkpoints()
        transactions = self._transactions = Transactions(sink, config, clients)
        if self._closed:
            transactions.close()
        transactions.open()
        # Read only now: the producer before can no longer change it.
        marker = topics.marker()
        transactions.group = marker.group
        if marker.number and marker.metadata != DIRECT_METADATA:
            raise self._doubt(
                f"its group was written by another program, or by a KafkaStore: {(marker.metadata or '')[:40]!r}"
            )
        self._marker = marker.number or None

    def _acknowledge(self, content: bytes, *, recovered: bool) -> None:
        self._opening.result()
        if not recovered:
            taken, number, records = self._taken
            assert taken is content, "one transaction at a time"
            self._send(number, records)
            return
        intent = parse_intent(content, self.key)
        match resolve(intent, self._marker):
            case IntentVerdict.SENT:
                if intent.number and self._marker != intent.number:
                    # It was forgotten while the shard had nothing to send; without it, the next doubt is undecidable.
                    self._send(intent.number, ())
            case IntentVerdict.SEND:
                _log.info(
                    "outputs.sent_again",
                    shard=self._shard_id,
                    number=intent.number,
                    records=len(intent.records),
                )
                self._send(intent.number, self._placed(intent.records))
            case IntentVerdict.DOUBTFUL | IntentVerdict.CONTRADICTED as resolution:
                raise self._refusal(intent, resolution)

    def _placed(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return records of a restored intent as their topics can take them.

        None of them were committed, so those of a topic that was created again with fewer partitions may go to others:
        it has no records of their keys yet.
        """
        assert self._topics is not None, "it is open"
        counts: dict[str, int] = {}
        for topic in {each.topic for each in records}:
            counts[topic] = self._topics.limits(topic, RECORD_BYTES_MAX).partitions
        gone = {each.topic for each in records if each.partition >= counts[each.topic]}
        for topic in gone:
            _log.warning(
                "outputs.partitions_gone",
                shard=self._shard_id,
                topic=topic,
                partitions=counts[topic],
                lost="records that were sent to the former topic",
            )
            self._cluster.forget_limits(topic)
        return [
            _placed_among(counts[each.topic], each) if each.topic in gone else each
            for each in records
        ]

    def _send(self, number: int, records: Sequence[Record]) -> None:
        assert self._transactions is not None, "it is open"
        progress = TxnProgress(number, metadata=DIRECT_METADATA)
        topics = self._topics
        assert topics is not None, "it is open"
        self._transactions.commit(records, progress, lambda: topics.hindrance(places_of(records)))
        self._marker = number
        self._renewed = self._clock.monotonic_seconds()

    def _renew(self) -> None:
        if self._closed or self._opening.exception() is not None:
            return
        assert self._topics is not None, "it is open"
        try:
            if self._renewed == float("-inf"):
                self._adopt_retention(self._topics.offsets_retention_seconds())
            age = self._clock.monotonic_seconds() - self._renewed
            if self._marker is not None and age > self._renewal_seconds:
                self._send(self._marker, ())
        except Exception as error:
            # The next transaction tells what is wrong, if it is still.
            _log.warning("outputs.marker_not_renewed", shard=self._shard_id, error=str(error))

    def _adopt_retention(self, seconds: float | None) -> None:
        if seconds is None:
            return
        self._renewal_seconds = min(RENEWED_SECONDS, seconds / 4)
        if seconds < SHORT_RETENTION_SECONDS:
            _log.warning(
                "outputs.short_retention",
                shard=self._shard_id,
                offsets_retention_seconds=seconds,
                expected_seconds=SHORT_RETENTION_SECONDS,
            )

    def _refusal(self, intent: Intent, resolution: IntentVerdict) -> OutputDoubtError:
        number = intent.number
        if resolution is IntentVerdict.DOUBTFUL:
            return self._doubt(
                f"Kafka has forgotten its marker (offsets.retention.minutes, or the group was deleted), so it is "
                f"unknown whether it has the {len(intent.records)} records of transaction {number}. Look for them, "
                f"then say: shardctl kafka assume {self.sink} produced|not-produced --number {number} "
                "--set bootstrap.servers=…"
            )
        return self._doubt(
            f"the store is at transaction {number}, Kafka at {self._marker}: the store was set back, or two shards, "
            "of two roots or stores, have this name. Restore the store as of that transaction, or apply the shard "
            "under another id"
        )

    def _doubt(self, detail: str) -> OutputDoubtError:
        return OutputDoubtError(self._shard_id, self.key, f"group {self.sink}: {detail}")


def _placed_among(partitions: int, record: Record) -> Record:
    """Return a record in the partition that it has among so many."""
    key = record.key
    chosen = record.partition % partitions if key is None else partition_of(key, partitions)
    return record._replace(partition=chosen)


def _require_absent(
    headers: Sequence[tuple[str, bytes | None]], own: Sequence[tuple[str, bytes | None]]
) -> None:
    """Refuse a second header of a name that readers expect once."""
    names = {name for name, _ in own}
    for name, _ in headers:
        if name in names:
            raise ValidationError(
                f"headers[{name}]",
                "expected none: the output's message type tells its schema there",
            )
