"""Trace contexts of messages: found where formats have room for them, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from broadsheet.journals.content.arrow import ArrowMessage, ArrowType
from broadsheet.journals.content.csv import CsvType
from broadsheet.journals.content.json import JsonStructType, JsonType, Meta
from broadsheet.journals.content.message_type import CarriesTrace
from broadsheet.journals.content.traceparents import LOOKS_MAX
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.framing import Payloads
from broadsheet.journals.message.json_rows import JsonRows
from broadsheet.journals.message.trace_contexts import traceparents_in
from broadsheet.journals.message.uuid import Flags, build_uuid, uuid_bytes

UUID = build_uuid(7, 1 << 4, Flags.OUTSIDE_TXN)
CONTEXT = f"00-{'1' * 32}-{'2' * 16}-01"
OTHER = f"00-{'3' * 32}-{'4' * 16}-01"


class _Row(msgspec.Struct):
    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    key: str = ""


def _batch(payloads: Sequence[bytes], message_type: Any) -> MessageBatch:
    count = len(payloads)
    numbers = list(range(count))
    return MessageBatch(
        "a/journal",
        numbers,
        [each + 1 for each in numbers],
        numbers,
        numbers,
        [0] * count,
        payloads,
        message_type,
    )


def _stamped(message: Any, message_type: Any, traceparent: str) -> bytes:
    message_type.set_uuid(message, UUID)
    message_type.set_traceparent(message, traceparent)
    payload: bytes = message_type.encode(message)
    assert message_type.uuid_of(payload) == UUID
    return payload


@pytest.mark.parametrize(
    ("message_type", "message"),
    [
        (JsonType(), {"_meta": {"mine": 1}, "key": "a"}),
        (JsonStructType(_Row), _Row(key="a")),
        (ArrowType(), ArrowMessage(pa.record_batch({"key": ["a"]}))),
    ],
    ids=["dict", "struct", "arrow"],
)
def test_context_is_carried_beside_the_uuid(message_type: Any, message: Any) -> None:
    """What a message type writes, a batch of its payloads shows, and the message is otherwise what it was."""
    payload = _stamped(message, message_type, CONTEXT)

    assert list(traceparents_in(_batch([payload], message_type))) == [CONTEXT]
    assert list(traceparents_in(_batch(Payloads.of([payload]), message_type))) == [CONTEXT]
    decoded = message_type.decode(payload)
    if isinstance(decoded, dict):
        assert decoded["_meta"]["mine"] == 1


def test_untraced_struct_has_no_field_for_the_context() -> None:
    """Journals hold no more bytes than before where nothing is traced."""
    kind = JsonStructType(_Row)
    row = _Row(key="a")
    kind.set_uuid(row, UUID)

    assert b"traceparent" not in kind.encode(row)


def test_formats_without_room_carry_none() -> None:
    """Fields of a record belong to the application."""
    assert not isinstance(CsvType(columns=1), CarriesTrace)
    batch = _batch([f'u,"traceparent",{CONTEXT}'.encode()], CsvType(columns=2))

    assert not list(traceparents_in(batch))


def test_rows_of_a_table_have_the_context_in_every_line() -> None:
    """Columns are written as lines without a look at each, and each line is still a message with a UUID."""
    rows = pa.record_batch({"key": ["a", "b"]})
    uuids = uuid_bytes(7, np.array([16, 32], dtype=np.uint64), Flags.CONTINUE_TXN)
    content, _ = JsonRows(traceparent=CONTEXT).lines(rows, uuids)
    lines = bytes(content).splitlines()

    assert [msgspec.json.decode(each)["key"] for each in lines] == ["a", "b"]
    assert list(traceparents_in(_batch(Payloads.of(lines), JsonType()))) == [CONTEXT, CONTEXT]
    assert JsonType().uuids_of(lines) == bytes(uuids.tobytes())


def test_only_meta_of_the_batch_itself_counts() -> None:
    """A word in an application's own fields is no context, and messages between those of the batch are not its own."""
    lines = [
        b'{"_meta":{"uuid":""},"traceparent":"' + OTHER.encode() + b'"}',
        _stamped({"key": "left out"}, JsonType(), OTHER),
        b'{"_meta":{"traceparent":17}}',
        b'"traceparent" is no message',
        _stamped({"key": "a"}, JsonType(), CONTEXT),
    ]
    batch = _batch(Payloads.of(lines), JsonType()).pick([0, 2, 3, 4])

    assert list(traceparents_in(batch)) == ["", CONTEXT]


def test_looks_are_bounded() -> None:
    """However many messages carry a context, as few of them are decoded."""
    lines = [_stamped({"n": n}, JsonType(), CONTEXT) for n in range(3 * LOOKS_MAX)]

    assert len(list(traceparents_in(_batch(Payloads.of(lines), JsonType())))) == LOOKS_MAX
    assert len(list(traceparents_in(_batch(lines, JsonType())))) == LOOKS_MAX


def test_arrow_messages_of_several_traces_are_one_table() -> None:
    """Metadata of schemas differ then, and columns do not."""
    kind = ArrowType()
    payloads = [
        _stamped(ArrowMessage(pa.record_batch({"key": [key]})), kind, context)
        for key, context in (("a", CONTEXT), ("b", OTHER))
    ]

    assert _batch(payloads, kind).to_arrow().column("key").to_pylist() == ["a", "b"]
