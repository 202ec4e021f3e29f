"""Intents that carry records, and what follows from them and from what the other system has.

An intent is built as records come: it is the message `RecordIntent`, whose parts may be concatenated. Pure.

The marker is the number of the shard's last transaction in the other system, as that tells it. After a restore:

    checkpoint            marker          action
    n, no records         0 … n           none
    intent n              n               none: the next checkpoint drops the records
    intent n              n − 1           send the records
    intent 1              none            send the records
    intent n > 1          none            refuse: the system has forgotten, and an operator must say
    anything              else            refuse: the store was set back, or two shards have one name
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from google.protobuf.message import DecodeError

from broadsheet.consumer.stores.kafka.record import Record
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.formats import Format
from broadsheet.wire.outputs_pb2 import OutputRecord, RecordIntent

RECORD_INTENT: Final = Format(
    "the records that a checkpoint holds", "let a member of that release serve the shard"
)
INTENT_BYTES_MAX: Final = 1 << 20
"""Records of a transaction, by default: it takes no more input above this."""
INTENT_BYTES_FACTOR: Final = 8
"""How many times as much a transaction may hold after all: what its last message, or its end, has published."""


@dataclass(frozen=True, slots=True)
class Intent:
    """A decoded intent."""

    number: int
    sink: str
    records: Sequence[Record]


def encoded_head(number: int, sink: str) -> bytes:
    """Return the intent of a transaction, without its records."""
    return RecordIntent(number=number, sink=sink).SerializeToString()


def encoded_record(record: Record) -> bytes:
    """Return what a record adds to an intent, to be put behind its head."""
    encoded = OutputRecord(
        topic=record.topic,
        partition=record.partition,
        key=record.key,
        value=record.value,
        headers=[OutputRecord.Header(name=name, value=value) for name, value in record.headers],
        timestamp_ms=record.timestamp_ms,
    )
    return RecordIntent(records=[encoded]).SerializeToString()


def parse_intent(content: bytes, field: str) -> Intent:
    """Return what an intent says.

    Args:
        content: Of the checkpoint; empty: the checkpoint has none.
        field: Named in errors.

    Raises:
        ValidationError: it is none.
        LaterFormatError: a later release wrote it.
    """
    try:
        message = RecordIntent.FromString(content)
    except DecodeError as error:
        raise ValidationError(field, f"expected records: {error}") from error
    RECORD_INTENT.check(message.min_reader)
    if message.records and not message.number:
        raise ValidationError(field, "expected the number of their transaction, got records alone")
    return Intent(message.number, message.sink, [_record(each) for each in message.records])


def _record(encoded: OutputRecord) -> Record:
    return Record(
        encoded.topic,
        encoded.value if encoded.HasField("value") else None,
        encoded.key if encoded.HasField("key") else None,
        encoded.partition,
        tuple(
            (each.name, each.value if each.HasField("value") else None) for each in encoded.headers
        ),
        encoded.timestamp_ms,
    )


class IntentVerdict(Enum):
    """The next step after a restore."""

    SENT = "the other system has all of it"
    SEND = "send the records"
    DOUBTFUL = "refuse: the other system has forgotten whether it has the records"
    CONTRADICTED = "refuse: the store and the other system do not belong together"


def resolve(intent: Intent, marker: int | None) -> IntentVerdict:
    """Return what follows from a checkpoint's intent and the marker; None: there is no marker."""
    number = intent.number
    if not intent.records:
        return IntentVerdict.SENT if (marker or 0) <= number else IntentVerdict.CONTRADICTED
    if marker == number:
        return IntentVerdict.SENT
    if marker is None:
        return IntentVerdict.SEND if number == 1 else IntentVerdict.DOUBTFUL
    return IntentVerdict.SEND if marker == number - 1 else IntentVerdict.CONTRADICTED
