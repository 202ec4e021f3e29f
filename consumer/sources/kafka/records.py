"""Conversion of Kafka's messages into message batches."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from broadsheet.consumer.application import RecordHeaders
from broadsheet.consumer.sources.kafka.partitions import key_of
from broadsheet.consumer.sources.kafka.places import partition_name
from broadsheet.consumer.sources.received import Payload
from broadsheet.journals.message.batch import MessageBatch, MessageType, batch_around_damage
from broadsheet.journals.message.framing import Frames
from broadsheet.journals.message.uuid import Flags

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Asked for headers whose name is not UTF-8, the client sets an error and returns a tuple all the same, which lacks the
# name: to unpack it ends the process. The interpreter finds that contradiction out, but not where it has specialized
# the call, as it does with calls from Python code; and only the first time that a message is asked.
_ASK_HEADERS: Final = operator.methodcaller("headers")
_DECODING: Final = threading.Lock()
_MARKER_PRODUCER: Final = 1
"""Producer of the markers of offsets without messages. Real producers are random numbers of 48 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaMetadata:
    """Metadata of a message in a topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """The headers, in the order of the message; a name may occur several times."""
    timestamp: datetime | None = None
    """When it was created, or appended, depending on the topic's configuration; aware."""


class KafkaPayload(Payload[KafkaMetadata]):
    """The content of a message; its metadata is decoded when it is asked for.

    Kafka keeps times and names of headers as producers send them, so they may be neither a date nor text. An
    application that does not ask for them never meets that.
    """

    _message: Message | None
    """None once its metadata was decoded."""
    _headers: RecordHeaders
    _damage: str
    _headers_damage: str

    @classmethod
    def of(cls, message: Message) -> KafkaPayload:
        """Return the payload of a message, which gives up its value."""
        payload = cls._without_metadata(message.value())
        # The payload is a copy, and messages wait in memory.
        message.set_value(None)
        payload._keep(message)  # noqa: SLF001 - its own class makes it
        return payload

    def _keep(self, message: Message) -> None:
        self._message = message
        self._damage = self._headers_damage = ""

    @property
    def metadata(self) -> KafkaMetadata:
        """The message's metadata.

        Raises:
            ValueError: its time is no date, or the name of a header is not UTF-8.
        """
        with _DECODING:
            message, self._message = self._message, None
            if message is not None:
                self._decode(message)
        if self._damage:
            raise ValueError(self._damage)
        return self._metadata

    @property
    def headers(self) -> RecordHeaders:
        """The message's headers, whatever is wrong with its other metadata.

        Raises:
            ValueError: the name of one is not UTF-8.
        """
        with _DECODING:
            if self._message is not None:
                return headers_of(self._message)
        if self._headers_damage:
            raise ValueError(self._headers_damage)
        return self._headers

    def _decode(self, message: Message) -> None:
        try:
            self._headers = headers_of(message)
        except ValueError as error:
            self._damage = self._headers_damage = str(error)
            return
        try:
            self._metadata = _metadata_of(message, self._headers)
        except ValueError as error:
            self._damage = str(error)


def batch_of(
    messages: Sequence[Message],
    message_type: MessageType,
    *,
    sequenced: bool,
    shift: int = 0,
    position: int = 0,
) -> MessageBatch:
    """Convert messages of one partition, at least one, into a batch.

    Args:
        messages: In the order of their offsets.
        message_type: How their values are encoded.
        sequenced: They carry UUIDs; otherwise each is taken as committed.
        shift: Added to Kafka's offsets.
        position: Kafka's offset at which the partition goes on behind them, if that is known.

    Raises:
        MemoryError: there is no memory left: that says nothing of the values.
    """
    key = key_of(messages[0])
    assert key is not None
    name = partition_name(*key)
    begins = np.array([message.offset() for message in messages], dtype=np.int64) + shift
    ends = begins + 1
    ends[-1] = max(int(ends[-1]), position + shift)
    payloads = [KafkaPayload.of(message) for message in messages]
    if sequenced:
        # An undecodable message is marked, so that the shard can record it as a dead letter, or name it in its failure.
        return batch_around_damage(name, Frames(begins, ends, payloads), message_type)
    zeros = np.zeros(len(payloads), dtype=np.uint64)
    return MessageBatch(name, begins, ends, zeros, zeros, zeros, payloads, message_type)


def marker(name: str, begin: int, end: int, message_type: MessageType) -> MessageBatch:
    """Return a marker that makes offsets [begin, end) without messages, such as transaction ends, count as read.

    It acknowledges nothing, and no application sees it.
    """
    return MessageBatch(
        name,
        [begin],
        [end],
        [_MARKER_PRODUCER],
        [1],
        [Flags.ACK_TXN],
        [b""],
        message_type,
    )


def values_with_headers(messages: Iterable[Message]) -> Iterator[tuple[bytes, RecordHeaders]]:
    """Yield the value and the headers of each message that has both, undamaged; events are passed over."""
    for message in messages:
        value = message.value() if message.error() is None else None
        if value is None:
            continue
        try:
            headers = headers_of(message)
        except ValueError:
            continue  # The message type tells of it, where the message can be left out.
        yield value, headers


def _metadata_of(message: Message, headers: RecordHeaders) -> KafkaMetadata:
    key, offset = key_of(message), message.offset()
    assert key is not None
    assert offset is not None
    topic, partition = key
    return KafkaMetadata(
        topic=topic,
        partition=partition,
        offset=offset,
        key=message.key(),
        headers=tuple(headers),
        timestamp=_timestamp_of(message),
    )


class _DamagedNames(tuple[()]):
    """The headers of a message, of which one has a name that is not UTF-8."""

    problem: str


def headers_of(message: Message) -> RecordHeaders:
    """Return the headers of a message.

    Raises:
        ValueError: the name of one is not UTF-8.
    """
    try:
        headers = _ASK_HEADERS(message)
    except (UnicodeDecodeError, SystemError) as error:
        # The client passes on the interpreter's complaint that it returned a value together with an error.
        cause = error if isinstance(error, UnicodeDecodeError) else error.__cause__
        got = repr(cause.object) if isinstance(cause, UnicodeDecodeError) else str(error)
        damaged = _DamagedNames()
        damaged.problem = f"headers: expected names in UTF-8, got {got}"
        # Asked again, the client would return what lacks the name, and not complain.
        message.set_headers(damaged)  # type: ignore[arg-type]  # it keeps any object
        raise ValueError(damaged.problem) from error
    if isinstance(headers, _DamagedNames):
        raise ValueError(headers.problem)
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return tuple(
        (name, value.encode() if isinstance(value, str) else value) for name, value in pairs
    )


def _timestamp_of(message: Message) -> datetime | None:
    kind, milliseconds = message.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError as error:
        raise ValueError(
            f"timestamp: expected milliseconds since 1970, up to the year 9999, got {milliseconds}"
        ) from error
