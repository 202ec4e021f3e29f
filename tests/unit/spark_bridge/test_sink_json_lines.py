"""Rows as JSON lines: every type of Spark's, escapes, nulls, and UUIDs that the reference agrees with."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType, VariantType

from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.journals.message.uuid import (
    CLOCK_UNITS_PER_MESSAGE,
    UNIX_EPOCH_TICKS,
    Flags,
    build_uuid,
    format_uuid,
    parse_uuid,
    uuid_bytes,
    uuid_texts,
)
from broadsheet.spark_bridge.content.json_lines import JsonLines
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.stamps import Stamper

PRODUCER = 0x0123456789AB
UTC = dt.UTC


def _lines(rows: pa.RecordBatch, *, ignore_null_fields: bool = True) -> list[bytes]:
    schema = from_arrow_schema(rows.schema)
    encoder = JsonLines(schema, ignore_null_fields=ignore_null_fields)
    encoded = encoder.encode(rows, [(0, rows.num_rows)], Stamper(PRODUCER))
    assert encoded.messages == [rows.num_rows]
    return bytes(encoded.contents[0]).splitlines(keepends=True)


def _messages(rows: pa.RecordBatch, *, ignore_null_fields: bool = True) -> list[dict[str, Any]]:
    messages = [
        msgspec.json.decode(line) for line in _lines(rows, ignore_null_fields=ignore_null_fields)
    ]
    for message in messages:
        del message["_meta"]
    return messages


def _column(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch({"c": pa.array(values, kind)})


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (pa.int8(), -7, -7),
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.float64(), 0.1, 0.1),
        (pa.float64(), 1e300, 1e300),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float64(), float("-inf"), "-Infinity"),
        (pa.bool_(), True, True),
        (pa.decimal128(10, 2), decimal.Decimal("-0.05"), -0.05),
        (pa.string(), 'say "\\ \n\t\x00\x1f é✈', 'say "\\ \n\t\x00\x1f é✈'),
        (pa.string(), "", ""),
        (pa.large_string(), "x", "x"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.date32(), dt.date(1969, 12, 31), "1969-12-31"),
        (
            pa.timestamp("us", "UTC"),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            "1969-12-31T23:59:59.999999Z",
        ),
        (
            pa.timestamp("us", "Asia/Tokyo"),
            dt.datetime(2024, 2, 29, 1, 2, 3, 45, UTC),
            "2024-02-29T01:02:03.000045Z",
        ),
        (
            pa.timestamp("us"),
            dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
            "9999-12-31T23:59:59.000000",
        ),
        (pa.list_(pa.string()), ["a", None, '"'], ["a", None, '"']),
        (pa.list_(pa.list_(pa.int32())), [[1], [], None], [[1], [], None]),
        (pa.map_(pa.string(), pa.float64()), [("k", 1.5), ("n", None)], {"k": 1.5, "n": None}),
        (pa.map_(pa.int32(), pa.string()), [(1, "x")], {"1": "x"}),
        (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": None}, {"x": 1}),
        (pa.struct([("x", pa.int64())]), {"x": None}, {}),
        (pa.list_(pa.struct([("x", pa.int64())])), [{"x": 1}, None], [{"x": 1}, None]),
    ],
)
def test_json_lines_each_type(kind: pa.DataType, value: Any, written: Any) -> None:
    """One value between two nulls, read back by another library: also where a null's place must not shift others."""
    rows = _column([None, value, None], kind)

    assert _messages(rows) == [{}, {"c": written}, {}]
    assert _messages(rows.slice(1, 1)) == [{"c": written}]


def test_json_lines_nulls_are_written_if_asked() -> None:
    """Consumers that look for every field get it."""
    rows = pa.record_batch(
        {
            "a": pa.array([1, None]),
            "s": pa.array([None, {"x": None}], pa.struct([("x", pa.int64())])),
        }
    )

    assert _messages(rows, ignore_null_fields=False) == [
        {"a": 1, "s": None},
        {"a": None, "s": {"x": None}},
    ]


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()])
@pytest.mark.parametrize("day", [2_932_897, -719_163])
def test_json_lines_years_of_more_digits_are_refused(kind: pa.DataType, day: int) -> None:
    """The years 10000 and 0, in a second row: no reader of JSON takes them, so they must not be committed."""
    days = pa.array([0, day], pa.int32()).cast(pa.date32())
    rows = pa.record_batch({"c": days if pa.types.is_date(kind) else days.cast(kind)})

    with pytest.raises(RowValueError, match="column c, row 1: a year"):
        _messages(rows)


def test_json_lines_uuids_are_those_of_one_producer_in_order() -> None:
    """The vectorised UUIDs parse as uncommitted messages of the producer, with clocks that only grow."""
    rows = pa.record_batch({"c": pa.array(range(1000))})
    schema = from_arrow_schema(rows.schema)
    stamper = Stamper(PRODUCER, now=lambda: 1_700_000_000_000_000_000)
    encoder = JsonLines(schema)
    contents = [
        bytes(content)
        for _ in range(2)
        for content in encoder.encode(rows, [(0, 300), (300, 1000)], stamper).contents
    ]
    contents.append(encoder.acknowledgement(stamper.stamp_acknowledgement()))

    lines = b"".join(contents).splitlines()
    parsed = [parse_uuid(JsonType().uuid_of(line)) for line in lines]

    assert [len(content.splitlines()) for content in contents] == [300, 700, 300, 700, 1]
    assert {producer for producer, _, _ in parsed} == {PRODUCER}
    clocks = [clock for _, clock, _ in parsed]
    assert all(before < after for before, after in itertools.pairwise(clocks))
    assert [flags for _, _, flags in parsed] == [Flags.CONTINUE_TXN] * 2000 + [Flags.ACK_TXN]


def test_lines_over_the_low_part_of_the_time() -> None:
    """UUIDs whose first 8 digits are not all that differs within a batch: each line has its own, whole."""
    ticks = 0x1EC_0ABC_FFFF_FFF0
    stamper = Stamper(PRODUCER, now=lambda: (ticks - UNIX_EPOCH_TICKS) * 100)
    rows = _column(list(range(5)), pa.int64())

    encoded = JsonLines(from_arrow_schema(rows.schema)).encode(rows, [(0, 5)], stamper)

    uuids = [JsonType().uuid_of(line) for line in bytes(encoded.contents[0]).splitlines()]
    assert [parse_uuid(uuid) for uuid in uuids] == [
        (PRODUCER, (ticks << 4) + step * CLOCK_UNITS_PER_MESSAGE, Flags.CONTINUE_TXN)
        for step in range(1, 6)
    ]


def test_uuid_texts_over_the_low_part_of_the_time() -> None:
    """Clocks whose low 32 bits run over within a batch: the reference, one by one, says the same."""
    clocks = np.array([0x1EC_0ABC_FFFF_FFFE_0 + step * 0x10 for step in range(4)], dtype=np.uint64)
    clocks = np.append(clocks, np.array([0xABC_1234_5678_9ABC_F], dtype=np.uint64))

    texts = uuid_texts(uuid_bytes(PRODUCER, clocks, 1), before=b"<", after=b">")

    assert [text.tobytes().decode() for text in texts] == [
        f"<{format_uuid(build_uuid(PRODUCER, int(clock), 1))}>" for clock in clocks
    ]
    alike = uuid_texts(uuid_bytes(PRODUCER, clocks[:2], 1))
    assert [text.tobytes().decode() for text in alike] == [
        format_uuid(build_uuid(PRODUCER, int(clock), 1)) for clock in clocks[:2]
    ]
    assert uuid_texts(uuid_bytes(PRODUCER, clocks[:0], 1)).shape == (0, 36)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType([StructField("_meta", LongType())]), "column _meta: it holds the UUID"),
        (StructType([StructField("v", VariantType())]), "column v: JSON takes no variant"),
        (
            StructType([StructField("s", StructType([StructField("v", VariantType())]))]),
            "column s.v: JSON takes no variant",
        ),
        (
            StructType([StructField("a", LongType()), StructField("a", LongType())]),
            "column a: there are 2 of that name",
        ),
        (StructType([]), "at least one column"),
    ],
)
def test_json_lines_columns_that_cannot_be_written_are_named(
    schema: StructType, message: str
) -> None:
    """On the driver, before any task runs."""
    with pytest.raises(PublishError, match=message):
        JsonLines(schema)
