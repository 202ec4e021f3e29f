"""Batches as tables: what of each message becomes a row, and what is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from broadsheet.journals.content.arrow import ArrowMessage, ArrowType
from broadsheet.journals.content.csv import CsvType
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import MessageBatch, MessageType, batch_of
from broadsheet.journals.message.framing import Payloads
from broadsheet.journals.message.uuid import build_uuid, format_uuid

UUID = build_uuid(7, 1 << 50, 0)


def batch_of_payloads(message_type: MessageType, *payloads: bytes) -> MessageBatch:
    """Return payloads as they are read from a journal."""
    framing = framing_for(message_type.content_type)
    content = b"".join(map(framing.frame, payloads))
    frames = framing.unframer(journal="a/b", offset=0).feed(content)
    batch, error = batch_of("a/b", frames, message_type)
    assert error is None
    return batch


def batch_of_lines(*payloads: bytes) -> MessageBatch:
    """Return JSON lines as they are read."""
    return batch_of_payloads(JsonType(), *payloads)


def test_arrow_table_of_any_part_is_of_its_messages() -> None:
    """A part in the middle, one with gaps, and parts of two reads joined: what lies between is of no row."""
    batch = batch_of_lines(*(b'{"k":"%d","v":%d}' % (n, n) for n in range(6)))
    other = batch_of_lines(b'{"k":"x","v":9}')

    assert batch.span(1, 4).to_arrow().to_pylist() == [{"k": str(n), "v": n} for n in (1, 2, 3)]
    assert batch.pick([0, 2, 5]).to_arrow()["v"].to_pylist() == [0, 2, 5]
    joined = MessageBatch.joined([batch.span(4, 6), other])
    assert joined.to_pandas()["v"].tolist() == [4, 5, 9]
    assert batch.span(0, 0).to_arrow().num_rows == 0


def test_arrow_table_with_a_schema_has_its_columns() -> None:
    """Fields that the schema does not name are left out, absent ones are null, and a wrong one is an error that names
    the place.
    """
    schema = pa.schema([("v", pa.float64()), ("w", pa.string())])
    batch = batch_of_lines(b'{"k":"a","v":1}', b'{"v":2.5,"w":"x"}')

    table = batch.to_arrow(schema)

    assert table.schema == schema
    assert table.to_pylist() == [{"v": 1.0, "w": None}, {"v": 2.5, "w": "x"}]
    with pytest.raises(FramingError, match=r"offset 0\b.*do not fit"):
        batch.to_arrow(pa.schema([("k", pa.int64())]))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("wrong", [b'{"v":"\xff"}', b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"])
def test_arrow_table_names_the_message_that_it_cannot_have(place: int, wrong: bytes) -> None:
    """Text that is not UTF-8, and what is nested so deep that Arrow's parser would end the process."""
    good = [json.dumps({"v": "x", "deep": [[1]] * 200}).encode() for _ in range(3)]
    good.insert(place, wrong)
    batch = MessageBatch(
        "a/b",
        begins=[*range(4)],
        ends=[*range(1, 5)],
        producers=[0] * 4,
        clocks=[0] * 4,
        flags=[0] * 4,
        payloads=Payloads.of(good),
        message_type=JsonType(),
    )

    with pytest.raises(FramingError, match=rf"offset {place}\b"):
        batch.to_arrow()


def test_csv_table_has_the_uuid_and_the_fields() -> None:
    """Quotes, a newline in a string and an empty field; with a schema, the fields have its names and types."""
    records = ('%s,"a ""b""\nc",1', "%s,,2", "%s,d,3")
    payloads = [(record % format_uuid(UUID)).encode() for record in records]
    batch = batch_of_payloads(CsvType(columns=2), *payloads)

    table = batch.to_arrow()

    assert table.column_names == ["uuid", "f1", "f2"]
    assert table["f1"].to_pylist() == ['a "b"\nc', "", "d"]
    schema = pa.schema([("name", pa.string()), ("n", pa.int16())])
    assert batch.to_arrow(schema).schema == schema
    assert batch.span(1, 3).to_arrow(schema)["n"].to_pylist() == [2, 3]
    with pytest.raises(FramingError, match="do not fit"):
        batch.to_arrow(pa.schema([("name", pa.int64()), ("n", pa.int64())]))


def arrow_payload(**columns: list[object]) -> bytes:
    """Return an Arrow message of these columns; without any, an acknowledgement."""
    rows = pa.RecordBatch.from_pydict(columns) if columns else None
    return ArrowType().encode(ArrowMessage(rows, UUID))


def test_arrow_messages_are_the_rows() -> None:
    """Two messages, an acknowledgement between them, and one with another column: all rows, in order."""
    batch = batch_of_payloads(
        ArrowType(),
        arrow_payload(k=["a", "b"]),
        arrow_payload(),
        arrow_payload(k=["c"]),
        arrow_payload(k=["d"], v=[1]),
    )

    assert batch.span(0, 3).to_arrow()["k"].to_pylist() == ["a", "b", "c"]
    assert batch.to_arrow().to_pylist()[-1] == {"k": "d", "v": 1}
    schema = pa.schema([("v", pa.int32()), ("k", pa.large_string())])
    assert batch.to_arrow(schema).schema == schema
    assert batch.to_arrow(schema)["v"].to_pylist() == [None, None, None, 1]
    assert batch.span(1, 2).to_arrow().num_rows == 0


def test_polars_frame_is_of_the_messages() -> None:
    """Plan: two messages. Why: polars is an extra that nothing else uses."""
    assert batch_of_lines(b'{"v":1}', b'{"v":2}').to_polars()["v"].to_list() == [1, 2]


def test_record_type_that_overrides_decode_is_asked_for_each_message() -> None:
    """A class of the application's own that only replaces `decode`: the quick way past it would lose what it does."""

    class Doubled(JsonType):
        def decode(self, payload: bytes) -> object:
            return {"v": 2 * super().decode(payload)["v"]}

    batch = batch_of_payloads(Doubled(), *(b'{"v":%d}' % n for n in range(100)))

    assert [message["v"] for message in batch.messages()] == [2 * n for n in range(100)]
