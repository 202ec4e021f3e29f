"""Conversion of Kafka's messages into message batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from broadsheet.consumer.message.batch import MessageBatch, MessageType, batch_around_damage
from broadsheet.consumer.message.framing import Frames
from broadsheet.consumer.message.uuid import Flags
from broadsheet.consumer.sources.received import Payload

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
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


def name_of(topic: str, partition: int) -> str:
    """Return the name of a partition's messages."""
    return f"kafka/{topic}/{partition}"


def batch_of(
    messages: Sequence[Message], message_type: MessageType, *, sequenced: bool
) -> MessageBatch:
    """Convert messages of one partition, at least one, into a batch.

    Args:
        messages: In the order of their offsets.
        message_type: How their values are encoded.
        sequenced: They carry UUIDs; otherwise each is taken as committed.

    Raises:
        MemoryError: there is no memory left: that says nothing of the values.
    """
    payloads = [Payload(message.value(), _metadata_of(message)) for message in messages]
    begins = np.array([payload.metadata.offset for payload in payloads], dtype=np.int64)
    topic, partition = payloads[0].metadata.topic, payloads[0].metadata.partition
    ends = begins + 1
    if sequenced:
        # An undecodable message is marked, so that the shard can record it as a dead letter, or name it in its failure.
        return batch_around_damage(
            name_of(topic, partition), Frames(begins, ends, payloads), message_type
        )
    zeros = np.zeros(len(payloads), dtype=np.uint64)
    return MessageBatch(
        name_of(topic, partition),
        begins,
        ends,
        zeros,
        zeros,
        zeros,
        payloads,
        message_type,
    )


def marker(
    topic: str, partition: int, begin: int, end: int, message_type: MessageType
) -> MessageBatch:
    """Return a marker that makes offsets [begin, end) without messages, such as transaction ends, count as read.

    It acknowledges nothing, and no application sees it.
    """
    return MessageBatch(
        name_of(topic, partition),
        [begin],
        [end],
        [_MARKER_PRODUCER],
        [1],
        [Flags.ACK_TXN],
        [b""],
        message_type,
    )


def _metadata_of(message: Message) -> KafkaMetadata:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    kind, milliseconds = message.timestamp()
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return KafkaMetadata(
        topic=topic,
        partition=partition,
        offset=offset,
        key=message.key(),
        headers=tuple(
            (name, value.encode() if isinstance(value, str) else value) for name, value in pairs
        ),
        timestamp=None
        if kind == TIMESTAMP_NOT_AVAILABLE
        else _EPOCH + timedelta(milliseconds=milliseconds),
    )
