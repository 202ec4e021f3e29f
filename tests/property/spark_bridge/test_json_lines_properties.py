"""Rows as JSON lines, whatever they hold, against the values that they were made of."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given, settings, strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from broadsheet.spark_bridge.content.json_lines import JsonLines
from broadsheet.spark_bridge.journal_sink.stamps import Stamper


def _whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), _whole(8)),
    (pa.int16(), _whole(16)),
    (pa.int32(), _whole(32)),
    (pa.int64(), _whole(64)),
    (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.string(), st.text()),
    (pa.string(), st.sampled_from(["one", 'tw"o', "thr\\ee", ""])),
]


@st.composite
def columns(draw: st.DrawFn) -> pa.RecordBatch:
    """Some rows of a few columns, some with nulls, cut out of more rows."""
    count = draw(st.integers(1, 40))
    found = {}
    for index, (kind, values) in enumerate(
        draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    ):
        some = st.none() | values if draw(st.booleans()) else values
        found[f"c{index}"] = pa.array(draw(st.lists(some, min_size=count, max_size=count)), kind)
    begin = draw(st.integers(0, count - 1))
    return pa.record_batch(found).slice(begin)


@given(rows=columns(), seed=st.none() | st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None)
def test_json_lines_hold_the_values_that_they_were_made_of(
    rows: pa.RecordBatch, seed: int | None
) -> None:
    """Every number is read back as the same one, of the width that it had, and every string; in any order."""
    count = rows.num_rows
    order = None if seed is None else np.random.default_rng(seed).permutation(count)

    encoded = JsonLines(from_arrow_schema(rows.schema)).encode(
        rows, [(0, count)], Stamper(1), order
    )
    messages = [msgspec.json.decode(line) for line in bytes(encoded.contents[0]).splitlines()]

    expected = rows if order is None else rows.take(pa.array(order))
    for message in messages:
        del message["_meta"]
    read = pa.Table.from_pylist(messages, schema=rows.schema)
    assert read.equals(pa.Table.from_batches([expected]))
