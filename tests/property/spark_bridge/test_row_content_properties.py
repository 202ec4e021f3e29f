"""The fingerprint of rows: the same in any order and any batches, another for other rows."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from broadsheet.spark_bridge.journal_sink.row_content import RowContent, content_of_rows

_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("text", pa.string()),
        ("large", pa.large_string()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("real", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(20, 2)),
        ("list", pa.list_(pa.int32())),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("nested", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ("nothing", pa.null()),
    ]
)


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def list_of_items(pairs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return a map as Arrow takes it."""
    return list(pairs.items())


_INT = st.integers(-(2**31), 2**31 - 1)
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": _or_null(st.integers(-(2**63), 2**63 - 1)),
            "small": _or_null(st.integers(-128, 127)),
            "text": _or_null(st.text(max_size=5)),
            "large": _or_null(st.text(max_size=5)),
            "raw": _or_null(st.binary(max_size=5)),
            "flag": _or_null(st.booleans()),
            "real": _or_null(st.floats()),
            "at": _or_null(st.datetimes(timezones=st.just(UTC))),
            "price": _or_null(st.decimals(-999, 999, places=2)),
            "list": _or_null(st.lists(_or_null(_INT), max_size=3)),
            "map": _or_null(
                st.dictionaries(st.text(max_size=2), _or_null(_INT), max_size=2).map(list_of_items)
            ),
            "nested": _or_null(
                st.fixed_dictionaries({"a": _or_null(_INT), "b": st.lists(st.text(max_size=2), max_size=2)})
            ),
            "nothing": st.none(),
        }
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


@settings(max_examples=40)
@given(_ROWS, st.randoms(use_true_random=False), st.integers(0, 12))
def test_content_of_rows_in_another_order_and_in_other_batches_is_the_same(
    rows: list[dict[str, Any]], random: Any, cut: int
) -> None:
    """A repeated batch's rows come in any order, from other tasks: a restart must not be taken for another query."""
    whole = content_of_rows(_batch(rows))
    random.shuffle(rows)
    shuffled = _batch(rows)

    parts = (shuffled.slice(0, cut), shuffled.slice(cut))

    assert sum(map(content_of_rows, parts), RowContent()) == whole
    assert whole.rows == len(rows)


def test_content_of_other_rows_is_another() -> None:
    """One value is another one, or stands in another column, or is null: each tells two batches apart."""
    rows = [
        {"a": 1, "b": 2, "t": "x"},
        {"a": 2, "b": 1, "t": "x"},
        {"a": 1, "b": 3, "t": "x"},
        {"a": 1, "b": None, "t": "x"},
        {"a": 1, "b": 2, "t": "y"},
        {"a": 1, "b": 2, "t": None},
        {"a": 1, "b": 2, "t": "xx"},
    ]
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("t", pa.string())])

    contents = {content_of_rows(pa.RecordBatch.from_pylist([row], schema=schema)) for row in rows}

    assert len(contents) == len(rows)
