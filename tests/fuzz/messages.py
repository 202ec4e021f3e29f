"""Decoders of messages in journals: framings, UUIDs, contents, sequencing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from broadsheet.journals.content.arrow import ArrowType
from broadsheet.journals.content.csv import CsvType
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.content.protobuf import ProtobufType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import (
    UNREADABLE,
    MessageBatch,
    MessageType,
    batch_around_damage,
    batch_of,
    unreadable_apart,
    why_unreadable,
)
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import build_uuid
from broadsheet.wire.journal_pb2 import AppendRequest
from tests.fuzz.arrow_seeds import arrow_messages, look_at_all
from tests.fuzz.decoder import FuzzedDecoder

_JOURNAL: Final = "in/a"
_CHUNKS: Final = (1 << 20, 7)
"""Content arrives whole, and cut anywhere: what is damage must not depend on that."""


class _Protobuf(ProtobufType):
    def __init__(self) -> None:
        super().__init__(AppendRequest, uuid_field="content")


def _uuid(number: int, flags: int = 0) -> bytes:
    return build_uuid(0x0102030405 | 1 << 40, (1 << 50) + number, flags)


def _journal(message_type: MessageType, messages: Sequence[Any]) -> Callable[[], Sequence[bytes]]:
    """Return what makes a journal of these messages: two of a transaction, its acknowledgement, and one outside."""

    def seeds() -> list[bytes]:
        frame = framing_for(message_type.content_type).frame
        parts = []
        for number, (message, flags) in enumerate(zip(messages, (1, 1, 2, 0), strict=True)):
            message_type.set_uuid(message, _uuid(number, flags))
            parts.append(frame(message_type.encode(message)))
        return [b"".join(parts)]

    return seeds


def _read(message_type: MessageType) -> Callable[[bytes], object]:
    """Return what reads a journal as shards do: with damage read around, and without."""

    def read(data: bytes) -> None:
        found = [_around(message_type, data, chunk) for chunk in _CHUNKS]
        places = [
            (batch.begins.tolist(), batch.ends.tolist(), batch.flags.tolist()) for batch in found
        ]
        assert places[0] == places[1], "what is read depends on how it arrives"
        batch = found[0]
        assert all(
            data[begin:end].find(payload) >= 0
            for begin, end, payload in zip(batch.begins, batch.ends, batch.payloads, strict=True)
        ), "a payload is not what stands at its place"
        _deliver(batch)
        frames = framing_for(message_type.content_type).unframer(journal=_JOURNAL, offset=0)
        strict, error = batch_of(_JOURNAL, frames.feed(data), message_type)
        _deliver(strict)
        if error is not None:
            raise error

    return read


def _around(message_type: MessageType, data: bytes, chunk: int) -> MessageBatch:
    unframer = framing_for(message_type.content_type).unframer(
        journal=_JOURNAL, offset=0, read_around=True
    )
    parts = [
        batch_around_damage(_JOURNAL, unframer.feed(data[at : at + chunk]), message_type)
        for at in range(0, len(data) + 1, chunk)
    ]
    return MessageBatch.joined(parts)


def _deliver(batch: MessageBatch) -> None:
    """Sequence a batch, and decode all that is emitted."""
    sequencer = Sequencer({})
    index = 0
    while index < len(batch):
        index = sequencer.queue(batch, index).next_index
        if sequencer.replay_range() is not None:
            sequencer.feed_replay(batch)
            sequencer.end_replay()
        while sequencer.emitting:
            run = sequencer.peek(100)
            if run is None:
                return
            _look_at(run)
            sequencer.consume(len(run))
    sequencer.take_checkpoint()


def _look_at(run: MessageBatch) -> None:
    for part, unreadable in unreadable_apart(run):
        if unreadable:
            why_unreadable(part.payloads[0], part.message_type)
            continue
        assert UNREADABLE not in part.flags
        for index in range(len(part)):
            with suppress(FramingError):
                list(part.span(index, index + 1).envelopes())


def _arrow(data: bytes) -> None:
    message = ArrowType().decode(data)
    if message.rows is not None:
        look_at_all(message.rows)


def _dicts() -> list[dict[str, Any]]:
    return [{"key": "a", "n": 1, "deep": [{"x": [1, 2.5, None]}]}, {"key": "b"}, {}, {"n": 4}]


JSON_JOURNAL: Final = _journal(JsonType(), _dicts())
CSV_JOURNAL: Final = _journal(
    CsvType(columns=2),
    [["", "a", "1"], ["", 'b "quoted"\nline', "2"], ["", "", ""], ["", "c", "4"]],
)
PROTOBUF_JOURNAL: Final = _journal(
    _Protobuf(), [AppendRequest(journal=name, offset=3) for name in ("a", "b", "", "c")]
)

MESSAGE_DECODERS: Final = (
    FuzzedDecoder("message.arrow", arrow_messages, _arrow, (ValueError,)),
    FuzzedDecoder("journal.json", JSON_JOURNAL, _read(JsonType()), (FramingError,)),
    FuzzedDecoder("journal.csv", CSV_JOURNAL, _read(CsvType(columns=2)), (FramingError,)),
    FuzzedDecoder("journal.protobuf", PROTOBUF_JOURNAL, _read(_Protobuf()), (FramingError,)),
)
