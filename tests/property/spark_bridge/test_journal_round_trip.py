"""What the journal sink encodes, the journal source decodes: every content type, every type of column."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
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
from broadsheet.journals.message.uuid import Flags, new_producer_id
from broadsheet.spark_bridge.arrow_schema import arrow_schema_of
from broadsheet.spark_bridge.journal_sink.options import write_options
from broadsheet.spark_bridge.journal_sink.stamps import Stamper
from broadsheet.spark_bridge.journal_sink.writers import encoder_for
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.codecs import decoder_for, tables_for
from broadsheet.spark_bridge.journal_source.columns import RowColumns, with_metadata
from broadsheet.spark_bridge.journal_source.options import read_options

SOURCE = read_options({"address": "http://127.0.0.1:1", "selector": "name=a/b"})
SINK = write_options(
    {"address": "http://127.0.0.1:1", "selector": "name=a/b", "etcd": "127.0.0.1:2"}
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
longs = st.integers(-(2**63), 2**63 - 1)
times = st.datetimes(min_value=datetime(1600, 1, 1), max_value=datetime(2300, 1, 1))  # noqa: DTZ001
PLAIN: dict[str, tuple[DataType, st.SearchStrategy[Any]]] = {
    "n": (LongType(), longs),
    "i": (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "f": (DoubleType(), st.floats(allow_nan=False)),
    "s": (StringType(), texts),
    "b": (BooleanType(), st.booleans()),
    "d": (DateType(), st.dates(date(1600, 1, 1), date(2300, 1, 1))),
    "t": (TimestampType(), times.map(lambda t: t.replace(tzinfo=UTC))),
    "u": (TimestampNTZType(), times),
    "x": (BinaryType(), st.binary(max_size=8)),
    "m": (
        DecimalType(12, 3),
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n) / 1000),
    ),
}
NESTED: dict[str, tuple[DataType, st.SearchStrategy[Any]]] = {
    "l": (ArrayType(LongType()), st.lists(longs | st.none(), max_size=3)),
    "o": (
        StructType([StructField("s", StringType()), StructField("d", DateType())]),
        st.fixed_dictionaries({"s": texts | st.none(), "d": st.none() | st.just(date(2026, 3, 1))}),
    ),
    "k": (
        MapType(StringType(), DoubleType()),
        st.dictionaries(texts, st.floats(-9, 9), max_size=2).map(lambda d: list(d.items())),
    ),
}


@st.composite
def frames(draw: st.DrawFn, *, nested: bool) -> tuple[StructType, pa.RecordBatch]:
    """Some columns, some rows, some nulls."""
    kinds = PLAIN | (NESTED if nested else {})
    names = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=5, unique=True))
    schema = StructType([StructField(name, kinds[name][0]) for name in names])
    row = st.fixed_dictionaries({name: st.none() | kinds[name][1] for name in names})
    rows = draw(st.lists(row, min_size=1, max_size=6))
    return schema, pa.RecordBatch.from_pylist(rows, arrow_schema_of(schema))


@pytest.mark.parametrize("content_type", [NDJSON, CSV, ARROW_STREAM])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_source_reads_what_the_sink_writes(content_type: str, data: st.DataObject) -> None:
    """Plan: any rows, encoded in any order, found by the scan, decoded with metadata. Why: the two were written
    apart.
    """
    schema, rows = data.draw(frames(nested=content_type != CSV))
    producer = new_producer_id()
    stamper = Stamper(producer)
    encoder = encoder_for(content_type, schema, SINK)
    order = data.draw(st.none() | st.permutations(range(rows.num_rows)).map(np.array))
    encoded = encoder.encode(rows, [(0, rows.num_rows)], stamper, order)
    acknowledgement = encoder.acknowledgement(stamper.stamp_acknowledgement())
    messages = bytes(encoded.contents[0])

    table = tables_for("a/b", content_type, SOURCE).feed(messages + acknowledgement)
    columns = RowColumns(with_metadata(schema), include_metadata=True)
    decoder = decoder_for("a/b", content_type, options=SOURCE, columns=columns)
    content = FetchedContent("a/b", messages, np.array([0]), np.array([0]))
    found = decoder.decode(content)

    assert table.flags.tolist() == [Flags.CONTINUE_TXN] * encoded.messages[0] + [Flags.ACK_TXN]
    assert set(table.producers.tolist()) == {producer}
    assert decoder.whole_bytes(messages + acknowledgement[:3]) == len(messages)
    wanted = rows.to_pylist()
    if order is not None:
        wanted = [wanted[place] for place in order]
    assert found.select(schema.names).to_pylist() == wanted
    assert set(found.column("_producer").to_pylist()) == {f"{producer:012x}"}
    assert found.column("_end").to_pylist()[-1] == len(messages)
