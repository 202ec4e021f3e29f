"""Rows as CSV, protobuf and Arrow messages, read back by the message types that consumers use."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    NullType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from broadsheet.journals.content.arrow import ArrowType
from broadsheet.journals.content.csv import CsvType
from broadsheet.journals.content.protobuf import ProtobufType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.message.batch import MessageType
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.journals.message.uuid import Flags, parse_uuid
from broadsheet.spark_bridge.content.arrow import ArrowFrames
from broadsheet.spark_bridge.content.csv import CsvLines
from broadsheet.spark_bridge.content.encoder import Encoder, check_arrow_columns
from broadsheet.spark_bridge.content.protobuf import ProtobufFrames
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_sink.stamps import Stamper
from tests.support.order_messages import Order

PRODUCER = 0x0123456789AB
ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "name": pa.array(['two\n"lines"', "", None]),
        "at": pa.array([dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC)] * 3, pa.timestamp("us")),
    }
)


def _payloads(encoder: Encoder, rows: pa.RecordBatch, message_type: MessageType) -> list[bytes]:
    """Encode rows in two stretches and their acknowledgement; return unframed payloads, UUIDs checked."""
    stamper = Stamper(PRODUCER)
    encoded = encoder.encode(rows, [(0, 1), (1, rows.num_rows)], stamper)
    acknowledgement = encoder.acknowledgement(stamper.stamp_acknowledgement())
    unframer = framing_for(encoder.content_type).unframer(journal="a", offset=0)
    # Cut in the middle of a frame, as a broker may.
    content = b"".join([*encoded.contents, acknowledgement])
    middle = len(content) // 3
    parts = (unframer.feed(content[:middle]), unframer.feed(content[middle:]))
    payloads = [payload for part in parts for payload in part.payloads]
    parsed = [parse_uuid(message_type.uuid_of(payload)) for payload in payloads]
    assert unframer.pending_bytes == 0
    assert sum(encoded.messages) == len(payloads) - 1
    assert {producer for producer, _, _ in parsed} == {PRODUCER}
    assert all(before[1] < after[1] for before, after in pairwise(parsed))
    assert [flags for _, _, flags in parsed] == [Flags.CONTINUE_TXN] * (len(parsed) - 1) + [
        Flags.ACK_TXN
    ]
    return payloads


def test_csv_lines_are_records_with_the_uuid_first() -> None:
    """Quotes and newlines in a string, an empty string and null: all records have as many fields."""
    csv_type = CsvType(columns=3)
    payloads = _payloads(CsvLines(from_arrow_schema(ROWS.schema)), ROWS, csv_type)

    records = [csv_type.decode(payload)[1:] for payload in payloads]

    at = "2024-02-29T01:02:03.000000"
    assert records == [
        ["1", 'two\n"lines"', at],
        ["2", "", at],
        ["", "", at],
        ["", "", ""],
    ]
    assert b',2,"",' in payloads[1]
    assert b",,," in payloads[2]


def test_csv_lines_refuse_nested_columns() -> None:
    """On the driver; the error names the column and its type."""
    rows = pa.record_batch({"tags": pa.array([["a"]])})
    with pytest.raises(PublishError, match=r"column tags: CSV takes no array<string>"):
        CsvLines(from_arrow_schema(rows.schema))


def test_arrow_frames_keep_the_rows_as_they_are() -> None:
    """A message a stretch; a reader gets the same batch back, nulls and types included."""
    payloads = _payloads(ArrowFrames(), ROWS, ArrowType())

    first, second, acknowledgement = (ArrowType().decode(payload) for payload in payloads)

    assert first.rows.equals(ROWS.slice(0, 1))
    assert second.rows.equals(ROWS.slice(1))
    assert acknowledgement.rows is None


def test_arrow_frames_cut_large_stretches() -> None:
    """Readers refuse frames of 64 MiB, so rows of 20 MiB are several messages."""
    rows = pa.record_batch({"blob": pa.array([b"x" * (1 << 20)] * 20)})
    encoded = ArrowFrames().encode(rows, [(0, 20)], Stamper(PRODUCER))
    unframer = framing_for(ArrowFrames.content_type).unframer(journal="a", offset=0)

    payloads = unframer.feed(bytes(encoded.contents[0])).payloads

    assert encoded.messages == [len(payloads)]
    assert len(payloads) > 1
    assert sum(ArrowType().decode(payload).rows.num_rows for payload in payloads) == 20


ORDER = "tests.support.order_messages:Order"


def _protobuf(rows: pa.RecordBatch, *, uuid_field: str = "uuid") -> ProtobufFrames:
    return ProtobufFrames(from_arrow_schema(rows.schema), ORDER, uuid_field=uuid_field)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (None, "expected at least one column"),
        (NullType(), "column x: Arrow messages take no void"),
        (ArrayType(YearMonthIntervalType()), "column x.element: Arrow messages take no interval"),
        (StructType([StructField("a", NullType())]), "column x.a: Arrow messages take no void"),
    ],
)
def test_columns_that_arrow_messages_cannot_hold_are_refused_when_planned(
    kind: DataType | None, said: str
) -> None:
    """The driver names the column; without any, the rows would be lost, as a message without one is empty."""
    fields = [] if kind is None else [StructField("n", IntegerType()), StructField("x", kind)]
    schema = StructType(fields)

    with pytest.raises(PublishError, match=said):
        check_arrow_columns(schema)


def test_protobuf_frames_fill_the_field_of_each_column() -> None:
    """Structs, lists, maps and timestamps; null leaves a field unset."""
    rows = pa.record_batch(
        {
            "id": pa.array([7, None]),
            "name": pa.array([None, "n"]),
            "at": pa.array([dt.datetime(2024, 2, 29, tzinfo=dt.UTC)] * 2),
            "tags": pa.array([["a", "b"], None]),
            "items": pa.array([[{"sku": "s", "count": None}], []]),
            "prices": pa.array([[("eur", 1.5)], None], pa.map_(pa.string(), pa.float64())),
        }
    )
    order_type = ProtobufType(Order)

    payloads = _payloads(_protobuf(rows), rows, order_type)
    first, second, acknowledgement = (order_type.decode(payload) for payload in payloads)

    assert (first.id, first.name, list(first.tags)) == (7, "", ["a", "b"])
    assert first.at.ToDatetime(dt.UTC) == dt.datetime(2024, 2, 29, tzinfo=dt.UTC)
    assert [(item.sku, item.count) for item in first.items] == [("s", 0)]
    assert dict(first.prices) == {"eur": 1.5}
    assert (second.id, second.name, len(second.tags), len(second.prices)) == (0, "n", 0, 0)
    assert not acknowledgement.HasField("at")


def test_protobuf_frames_value_that_does_not_fit_names_its_column() -> None:
    """A task's error says which column and value it was, of a row with many."""
    rows = pa.record_batch({"name": pa.array(["n"]), "id": pa.array(["seven"])})
    with pytest.raises(
        RowValueError, match=r"column id, row 0: 'seven' does not fit the field of Order"
    ):
        _protobuf(rows).encode(rows, [(0, 1)], Stamper(PRODUCER))


def test_protobuf_frames_column_without_a_field_is_named() -> None:
    """On the driver; the error lists the fields that there are."""
    rows = pa.record_batch({"colour": pa.array(["red"])})
    with pytest.raises(PublishError, match=r"column colour: .* no such field.*at, id, items, name"):
        _protobuf(rows)


@pytest.mark.parametrize(
    ("name", "uuid_field", "message"),
    [
        (None, "uuid", r"option messageType: expected module:Class .*it is not set"),
        ("tests.support.order_messages", "uuid", r"option messageType: expected module:name"),
        ("tests.support.order_messages:Nothing", "uuid", r"option messageType: .*no attribute"),
        ("tests.support.nowhere:Order", "uuid", r"option messageType: .*No module named"),
        (ORDER, "name", r"option messageType: expected .*Order needs a field `bytes name`"),
    ],
)
def test_protobuf_frames_class_that_cannot_be_used_is_named(
    name: str | None, uuid_field: str, message: str
) -> None:
    """On the driver; the error names the option."""
    schema = from_arrow_schema(pa.schema([("id", pa.int64())]))
    with pytest.raises(OptionError, match=message):
        ProtobufFrames(schema, name, uuid_field=uuid_field)
