"""Transactions of one transactional id: a producer, and the calls of its client until each has an outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from broadsheet.consumer.errors import (
    SinkFencedError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from broadsheet.consumer.stores.kafka.marker import (
    RecordPlace,
    inline_metadata,
    record_metadata,
)
from broadsheet.consumer.stores.kafka.record import Outgoing, Record, RecordRun
from broadsheet.consumer.stores.kafka.verdicts import (
    TxnVerdict,
    is_passing,
    is_undecided,
    verdict_of,
)

_CALL_SECONDS: Final = 0.5
"""Longest of one call: a store that is destroyed ends after it."""
_OPEN_SECONDS: Final = 60.0
_INIT_SECONDS: Final = 0.05
"""Of one call that fences: the client tells only at its end that the holder before left a transaction open."""
_RENEWALS_MAX: Final = 3
_SENDINGS_MAX: Final = 3
"""How often a transaction is sent that the brokers do not take, before the shard's attempt fails."""
_PAUSE_SECONDS: Final = 0.05
_TOKEN_SECONDS: Final = 1.0
_log = structlog.get_logger()


class SinkId(NamedTuple):
    """Names of a shard in Kafka."""

    shard_fqn: str
    """For errors."""
    name: str
    """Transactional id and group."""
    checkpoints_topic: str


class TxnProgress(NamedTuple):
    """The marker of a shard, as a transaction carries it."""

    number: int
    checkpoint: bytes = b""
    needs_record: bool = False
    """The checkpoint must be in a record, even a short one."""
    metadata: str | None = None
    """Of the marker, where it holds no checkpoint."""


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """Makers of clients, for tests and for callers with clients of their own."""

    producer: Callable[[dict[str, Any]], Producer] = Producer
    consumer: Callable[[dict[str, Any]], Consumer] = Consumer
    admin: Callable[[dict[str, Any]], AdminClient] = AdminClient


@dataclass(slots=True)
class _Failures:
    """Errors of deliveries, of which the client's commit only tells that there are some."""

    first: KafkaError | None = None
    topic: str | None = None
    """Of the first, as far as it is known."""
    place: RecordPlace | None = None
    is_committing: bool = False
    """The commit was asked for, so its outcome may be unknown."""

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.first is None:
            self.first, self.topic = error, message.topic()

    def note_checkpoint(self, error: KafkaError | None, message: Message) -> None:
        self.note(error, message)
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.place = RecordPlace(partition, offset)


@dataclass(slots=True)
class Transactions:
    """The producer of one holder. Calls come from one thread at a time, except `close`."""

    sink: SinkId
    config: Mapping[str, Any]
    """Of the producer, with our settings and the contents of files."""
    clients: KafkaClients
    group: Any = None
    """Metadata of the group, once the marker was read. `Any`: the client's own object, which has no type."""
    _producer: Producer | None = None
    _closing: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        """Fence the holders before, and end what they left open.

        Raises:
            StoreUnavailableError: no broker answers.
            StoreError: the brokers refuse this id.
        """
        # Where tokens come from a callback, a thread holds the producer, which would not end.
        renewals = 0 if "oauth_cb" in self.config else _RENEWALS_MAX
        self._start_producer()
        pause = threading.Event()
        for _ in range(round(_OPEN_SECONDS / _INIT_SECONDS)):
            try:
                self._live().init_transactions(_INIT_SECONDS)
                return
            except KafkaException as error:
                last: KafkaError = error.args[0]
                if not self._may_pass(last):
                    raise self._told(last) from error
            if last.code() == KafkaError.CONCURRENT_TRANSACTIONS and renewals:
                # The broker ends what the holder before left open, within milliseconds, but this client asks again only
                # after half a second. A new one asks at once; the old one, ended before its time, never does.
                renewals -= 1
                self._start_producer()
            else:
                pause.wait(_PAUSE_SECONDS)
        raise self._unanswered(last)

    def _start_producer(self) -> None:
        """Open a client in place of the one before, which ends with its last reference."""
        self._producer = None
        # The client's own callback raises what is fatal, in the midst of others; calls tell of it, too.
        self._producer = self.clients.producer({"error_cb": self._note, **self.config})
        self._renew_tokens(self._live())
        # Without the brokers' list the client asks for the coordinator only every half second.
        self._until_done(
            lambda: self._live().list_topics(self.sink.checkpoints_topic, timeout=_CALL_SECONDS)
        )

    def close(self) -> None:
        """End every call under way, and drop what was not committed. Idempotent."""
        self._closing.set()
        producer, self._producer = self._producer, None
        if producer is not None:
            # What an open transaction holds must not be sent by the client's end; the next holder aborts it.
            producer.purge(in_flight=True, blocking=False)

    def commit(
        self,
        records: Sequence[Outgoing],
        progress: TxnProgress,
        hindrance: Callable[[], str] = lambda: "",
    ) -> None:
        """Send records and the marker in one transaction; return once it is committed.

        Args:
            records: In their order.
            progress: The marker.
            hindrance: Called after brokers did not take the records: returns what their topics lack, and what to do;
                empty: nothing that is known.

        Raises:
            SinkFencedError: a newer holder has the id, or the transaction was open for too long.
            StoreUnavailableError: the brokers did not take it for now.
            StoreError: they refuse it, or the store was destroyed; the next restore shows what they have.
        """
        reason = "unknown"
        passes = True
        for sending in range(_SENDINGS_MAX):
            failures = _Failures()
            try:
                self._send(records, progress, failures, explains=sending > 0)
                return
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                verdict = verdict_of(cause, is_committing=failures.is_committing)
                if verdict is not TxnVerdict.REPEAT:
                    raise self._told(cause) from error
                told = failures.first or cause
                reason, passes = _reason_of(told, failures.topic), is_passing(told)
            except SystemError as error:
                # The client has set its fatal error while it called back, which Python then complains of. To abort is
                # safe in any state, and tells the error.
                reason = str(error)
            _log.warning(
                "kafka_sink.transaction_aborted",
                shard=self.sink.shard_fqn,
                error=reason,
                sending=sending + 1,
            )
            try:
                self._until_done(lambda: self._live().abort_transaction(_CALL_SECONDS))
            except SinkFencedError as error:
                # Records that no broker takes keep the transaction open for longer than it may be.
                lacking = hindrance()
                if not lacking:
                    detail = f"{error.detail}; before that: {reason}"
                    raise SinkFencedError(self.sink.shard_fqn, detail) from error
                raise StoreUnavailableError(self.sink.shard_fqn, lacking) from error
            lacking = hindrance()
            if lacking:
                raise StoreUnavailableError(self.sink.shard_fqn, lacking)
        detail = f"Kafka did not take the transaction in {_SENDINGS_MAX} sendings: {reason}"
        kind = StoreUnavailableError if passes else StoreError
        raise kind(self.sink.shard_fqn, detail)

    def _send(
        self,
        records: Sequence[Outgoing],
        progress: TxnProgress,
        failures: _Failures,
        *,
        explains: bool,
    ) -> None:
        producer = self._live()
        producer.begin_transaction()
        # Calls for each record of Python's are not free; the first sending does without them.
        self._produce(producer, records, failures.note if explains else None)
        metadata = progress.metadata
        if metadata is None and not progress.needs_record:
            metadata = inline_metadata(progress.checkpoint)
        if metadata is None:
            metadata = record_metadata(self._checkpoint_record(producer, progress, failures))
        marker = TopicPartition(self.sink.checkpoints_topic, 0, progress.number, metadata)
        self._again(
            lambda: producer.send_offsets_to_transaction([marker], self.group, _CALL_SECONDS)
        )
        failures.is_committing = True
        self._again(lambda: producer.commit_transaction(_CALL_SECONDS))

    def _produce(
        self,
        producer: Producer,
        records: Sequence[Outgoing],
        on_delivery: Callable[[KafkaError | None, Message], None] | None,
    ) -> None:
        told: dict[str, Any] = {} if on_delivery is None else {"on_delivery": on_delivery}
        for each in records:
            if isinstance(each, RecordRun):
                self._produce_run(producer, each, told)
            else:
                self._produce_record(producer, each, told)

    def _produce_run(self, producer: Producer, run: RecordRun, told: Mapping[str, Any]) -> None:
        topic, values, keys, partition = run
        produce = producer.produce
        for value, key in zip(values, keys, strict=True):
            try:
                # By position, and without what most records do not have: that takes half of the time.
                produce(topic, value, key, partition, **told)
            except BufferError:
                self._produce_record(producer, Record(topic, value, key, partition), told)

    def _produce_record(self, producer: Producer, record: Record, told: Mapping[str, Any]) -> None:
        topic, value, key, partition, headers, timestamp = record
        extra = {**told, "headers": list(headers)} if headers else told
        while True:
            try:
                producer.produce(topic, value, key, partition, timestamp=timestamp, **extra)
                return
            except BufferError:
                self._require_open()
                producer.poll(_PAUSE_SECONDS)

    def _checkpoint_record(
        self, producer: Producer, progress: TxnProgress, failures: _Failures
    ) -> RecordPlace:
        """Send the checkpoint as a record, and return its place once a broker has it."""
        producer.produce(
            self.sink.checkpoints_topic,
            progress.checkpoint,
            self.sink.name.encode(),
            partition=0,
            on_delivery=failures.note_checkpoint,
        )
        while failures.place is None and failures.first is None:
            self._require_open()
            producer.flush(_CALL_SECONDS)
        # A record that failed makes the transaction one that must be aborted, as what follows says.
        return failures.place or RecordPlace(0, -1)

    def _again(self, call: Callable[[], object]) -> None:
        """Call until it has an outcome: a call that timed out goes on, and must not be aborted."""
        while True:
            self._require_open()
            try:
                call()
                return
            except KafkaException as error:
                if verdict_of(error.args[0]) is not TxnVerdict.AGAIN:
                    raise

    def _until_done(self, call: Callable[[], object]) -> None:
        """Call until it is done, for a while, outside the sending of a transaction."""
        pause = threading.Event()
        for _ in range(round(_OPEN_SECONDS / _CALL_SECONDS)):
            self._require_open()
            try:
                call()
                return
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if not self._may_pass(cause):
                    raise self._told(cause) from error
                last = cause
            pause.wait(_PAUSE_SECONDS)
        raise self._unanswered(last)

    def _may_pass(self, error: KafkaError) -> bool:
        return verdict_of(error) is TxnVerdict.AGAIN or is_passing(error)

    def _unanswered(self, error: KafkaError) -> StoreUnavailableError:
        return StoreUnavailableError(self.sink.shard_fqn, f"Kafka does not answer: {error.str()}")

    def _told(self, error: KafkaError) -> StoreError | SinkFencedError:
        if verdict_of(error) is TxnVerdict.FENCED:
            return self._fenced(error.str())
        passes = is_passing(error) or is_undecided(error)
        kind = StoreUnavailableError if passes else StoreError
        return kind(self.sink.shard_fqn, f"Kafka refuses: {error.str()} ({error.name()})")

    def _fenced(self, reason: str) -> SinkFencedError:
        return SinkFencedError(
            self.sink.shard_fqn,
            f"a newer producer has the transactional id {self.sink.name} (of this shard, or of one of that name in "
            "another cluster of shards), or its transaction was open for longer than "
            f"{self.config['transaction.timeout.ms']} ms ({reason})",
        )

    def _live(self) -> Producer:
        self._require_open()
        assert self._producer is not None, "it was opened"
        return self._producer

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosedError(self.sink.shard_fqn)

    def _note(self, error: KafkaError) -> None:
        _log.debug("kafka_sink.client_error", shard=self.sink.shard_fqn, error=error.str())

    def _renew_tokens(self, producer: Producer) -> None:
        """Poll while the store lives, if tokens come from a callback: the client calls it from there alone."""
        if "oauth_cb" not in self.config:
            return

        def poll() -> None:
            while not self._closing.is_set():
                producer.poll(_TOKEN_SECONDS)

        threading.Thread(target=poll, name=f"kafka {self.sink.name}", daemon=True).start()


def _reason_of(error: KafkaError, topic: str | None) -> str:
    """Return what brokers say of records, and what to do if only an operator can."""
    named = f"{error.str()} (topic {topic})" if topic else error.str()
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return f"{named}: raise the topic's max.message.bytes"
    return named
