"""Rows of extreme values through the sink's encoders: the source reads equal ones, or they are refused by place."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from broadsheet.journals.content.arrow import ARROW_STREAM
from broadsheet.journals.content.csv import CSV
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.spark_bridge.arrow_schema import arrow_schema_of
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.options import write_options
from broadsheet.spark_bridge.journal_sink.stamps import Stamper
from broadsheet.spark_bridge.journal_sink.writers import encoder_for
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.codecs import decoder_for, tables_for
from broadsheet.spark_bridge.journal_source.columns import RowColumns
from broadsheet.spark_bridge.journal_source.options import read_options
from tests.support.arrow_values import with_bad_text

ADDRESS = {"address": "http://127.0.0.1:1", "selector": "name=a/b"}
ORDER = {"messageType": "tests.support.order_messages:Order"}
SOURCE = read_options(ADDRESS | ORDER)
SINK = write_options(ADDRESS | ORDER | {"etcd": "127.0.0.1:2"})

TEXTS = st.sampled_from(["", "a", "\x00", 'q"\\', "\ufeff", "a\r\n,b", "NaN", "null", " ", "é😀"])
NUMBERS = st.sampled_from(
    [0.0, -0.0, 0.1, 1e300, 5e-324, float("nan"), float("inf"), float("-inf")]
)
NARROW = st.sampled_from([0.5, float(np.float32(0.1)), float(np.float32(3e38)), float("nan")])
TIMES = st.sampled_from(
    [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999), datetime(1969, 12, 31, 23)]  # noqa: DTZ001
)
DATES = st.sampled_from([date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1)])
LONGS = st.sampled_from([2**63 - 1, -(2**63), 0])
KINDS: dict[str, tuple[DataType, st.SearchStrategy[Any]]] = {
    "n": (LongType(), LONGS),
    "f": (DoubleType(), NUMBERS),
    "w": (FloatType(), NARROW),
    "s": (StringType(), TEXTS),
    "d": (DateType(), DATES),
    "t": (TimestampType(), TIMES.map(lambda each: each.replace(tzinfo=UTC))),
    "u": (TimestampNTZType(), TIMES),
    "x": (BinaryType(), st.sampled_from([b"", b"\x00\xff"])),
    "m": (DecimalType(38, 18), st.sampled_from([Decimal("1E-18"), Decimal(10**19), Decimal(0)])),
}
NESTED: dict[str, tuple[DataType, st.SearchStrategy[Any]]] = {
    "l": (ArrayType(DoubleType()), st.lists(st.none() | NUMBERS, max_size=2)),
    "o": (
        StructType([StructField("a", StringType()), StructField("b", FloatType())]),
        st.fixed_dictionaries({"a": st.none() | TEXTS, "b": st.none() | NARROW}),
    ),
    "k": (
        MapType(StringType(), ArrayType(StringType())),
        st.dictionaries(TEXTS, st.none() | st.lists(TEXTS, max_size=2), max_size=2).map(
            lambda found: list(found.items())
        ),
    ),
}
OF_ORDER: dict[str, tuple[DataType, st.SearchStrategy[Any]]] = {
    "id": (LongType(), LONGS),
    "name": (StringType(), TEXTS),
    "at": (TimestampType(), TIMES.map(lambda each: each.replace(tzinfo=UTC))),
    "tags": (ArrayType(StringType()), st.lists(TEXTS, max_size=2)),
}


@st.composite
def frames(draw: st.DrawFn, kinds: dict[str, Any], *, nulls: bool) -> tuple[StructType, Any]:
    """Some columns, some rows; maybe one text that is no UTF-8."""
    names = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=4, unique=True))
    schema = StructType([StructField(name, kinds[name][0]) for name in names])
    drawn = {n: st.none() | kinds[n][1] if nulls else kinds[n][1] for n in names}
    rows = draw(st.lists(st.fixed_dictionaries(drawn), min_size=1, max_size=5))
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema_of(schema))
    for index, name in enumerate(names):
        if isinstance(kinds[name][0], StringType) and draw(st.sampled_from([False, False, True])):
            bad = with_bad_text(batch.column(name), draw(st.integers(0, len(rows) - 1)))
            batch = batch.set_column(index, name, bad)
    return schema, batch


def bad_rows(rows: pa.RecordBatch) -> set[tuple[str, int]]:
    """Return column and row of each text that is no UTF-8."""
    found = set()
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_string(column.type):
            values = column.cast(pa.binary()).to_pylist()
            found |= {(name, at) for at, each in enumerate(values) if each == b"\xc3("}
    return found


@pytest.mark.parametrize("content_type", [NDJSON, CSV, ARROW_STREAM, PROTOBUF_FIXED])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_rows_come_back_equal_or_are_refused(content_type: str, data: st.DataObject) -> None:
    """Extremes of every type in any order: what an encoder lets pass, the scan finds and the source decodes; what it
    refuses is a text that is no UTF-8, named by column and row.
    """
    kinds = {CSV: KINDS, PROTOBUF_FIXED: OF_ORDER}.get(content_type, KINDS | NESTED)
    schema, rows = data.draw(frames(kinds, nulls=content_type != PROTOBUF_FIXED))
    encoder = encoder_for(content_type, schema, SINK)
    order = data.draw(st.none() | st.permutations(range(rows.num_rows)).map(np.array))
    bad = bad_rows(rows)
    if bad:
        with pytest.raises(RowValueError, match=r"UTF-8|utf-8") as caught:
            encoder.encode(rows, [(0, rows.num_rows)], Stamper(1), order)
        assert (caught.value.column, caught.value.row) in bad
        return
    encoded = encoder.encode(rows, [(0, rows.num_rows)], Stamper(1), order)
    messages = bytes(encoded.contents[0])

    table = tables_for("a/b", content_type, SOURCE).feed(messages)
    columns = RowColumns(schema, include_metadata=False)
    decoder = decoder_for("a/b", content_type, options=SOURCE, columns=columns)
    found = decoder.decode(FetchedContent("a/b", messages, np.array([0]), np.array([0])))

    assert len(table) == encoded.messages[0]
    wanted = rows.take(pa.array(range(rows.num_rows) if order is None else order)).to_pylist()
    assert repr(found.to_pylist()) == repr(wanted)


@pytest.mark.parametrize("content_type", [NDJSON, CSV])
@given(
    kind=st.sampled_from([pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")]),
    day=st.integers(-(2**20), 2**23),
)
@example(kind=pa.date32(), day=2_932_897)
@settings(max_examples=60, deadline=None)
def test_years_without_a_text_are_refused(content_type: str, kind: pa.DataType, day: int) -> None:
    """Any day: those of the years 1 to 9999 are written and read, others are refused, because no reader takes them."""
    days = pa.array([0, day], pa.int32()).cast(pa.date32())
    column = days if pa.types.is_date(kind) else days.cast(pa.timestamp("us")).cast(pa.int64())
    rows = pa.record_batch({"c": column.cast(kind)})
    spark = {"date32[day]": DateType(), "timestamp[us]": TimestampNTZType()}
    schema = StructType([StructField("c", spark.get(str(kind), TimestampType()))])
    encoder = encoder_for(content_type, schema, SINK)
    if not -719_162 <= day <= 2_932_896:
        with pytest.raises(RowValueError, match="column c, row 1: a year"):
            encoder.encode(rows, [(0, 2)], Stamper(1))
        return
    messages = bytes(encoder.encode(rows, [(0, 2)], Stamper(1)).contents[0])
    columns = RowColumns(schema, include_metadata=False)
    decoder = decoder_for("a/b", content_type, options=SOURCE, columns=columns)
    found = decoder.decode(FetchedContent("a/b", messages, np.array([0]), np.array([0])))
    assert found.column("c").equals(rows.column("c"))


def test_keys_of_maps_are_texts_that_json_has() -> None:
    """Numbers that are not finite, whose quotes were written twice, so that nothing could read the line. Keys without a
    text are refused when the write is planned.
    """
    keys = [float("nan"), float("inf"), float("-inf"), 0.5]
    kind = pa.map_(pa.float64(), pa.int32())
    rows = pa.record_batch({"m": pa.array([[(key, 1)] for key in keys], kind)})
    schema = StructType([StructField("m", MapType(DoubleType(), LongType()))])

    encoded = encoder_for(NDJSON, schema, SINK).encode(rows, [(0, 4)], Stamper(1))

    lines = bytes(encoded.contents[0]).splitlines()
    found = [list(msgspec.json.decode(line)["m"]) for line in lines]
    assert found == [["NaN"], ["Infinity"], ["-Infinity"], ["0.5"]]
    nested = StructType([StructField("m", MapType(ArrayType(LongType()), LongType()))])
    with pytest.raises(PublishError, match="column m: a key becomes a text, which array<bigint>"):
        encoder_for(NDJSON, nested, SINK)


def test_numbers_that_a_protobuf_field_would_round_are_refused() -> None:
    """A whole number beyond 2**53 for a field of type double: the message would hold another one."""
    rows = pa.record_batch({"price": pa.array([1, 2**53 + 1])})
    options = write_options(
        ADDRESS | {"etcd": "127.0.0.1:2", "messageType": "tests.support.order_messages:Price"}
    )
    schema = StructType([StructField("price", LongType())])
    encoder = encoder_for(PROTOBUF_FIXED, schema, options)

    with pytest.raises(
        RowValueError, match=r"column price, row 1: 9007199254740993 would be rounded"
    ):
        encoder.encode(rows, [(0, 2)], Stamper(1))


@pytest.mark.parametrize("content_type", [NDJSON, CSV, ARROW_STREAM, PROTOBUF_FIXED])
@pytest.mark.parametrize("order", [None, np.array([1, 2, 0])])
def test_rows_beyond_the_frame_are_refused(content_type: str, order: Any) -> None:
    """66 MiB of text in one of three rows: every reader would stop at it, lose it, or make rows of nulls of it."""
    rows = pa.record_batch({"id": [1, 2, 3], "name": ["x", "y", "z" * (66 << 20)]})
    schema = StructType([StructField("id", LongType()), StructField("name", StringType())])
    encoder = encoder_for(content_type, schema, SINK)

    with pytest.raises(RowValueError, match=r"bytes; readers take 67108864 at most") as caught:
        encoder.encode(rows, [(0, 1), (1, 3)], Stamper(1), order)

    assert (caught.value.column, caught.value.row) == ("name", 2)


def test_more_nulls_than_readers_take_are_several_messages() -> None:
    """Rows of nulls take no bytes, and readers of Arrow messages bound the values without bytes."""
    rows = pa.record_batch({"v": pa.nulls((1 << 20) + 5)})
    schema = StructType([StructField("v", StringType())])
    encoder = encoder_for(ARROW_STREAM, schema, SINK)

    encoded = encoder.encode(rows, [(0, rows.num_rows)], Stamper(1))

    decoder = decoder_for(
        "a/b", ARROW_STREAM, options=SOURCE, columns=RowColumns(schema, include_metadata=False)
    )
    messages = bytes(encoded.contents[0])
    found = decoder.decode(FetchedContent("a/b", messages, np.array([0]), np.array([0])))
    assert found.num_rows == rows.num_rows
