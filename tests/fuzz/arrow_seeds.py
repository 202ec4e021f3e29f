"""A record batch of every layout that Arrow has, as messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from broadsheet.journals.content.arrow import ArrowMessage, ArrowType

_UUID = b"U" * 16


def arrow_messages() -> list[bytes]:
    """Return a message of each layout, two of them compressed."""
    plain = [ArrowType().encode(ArrowMessage(batch, _UUID)) for batch in _batches()]
    numbers = pa.RecordBatch.from_pydict(
        {"n": list(range(200)), "s": [f"s{n}" for n in range(200)]}
    )
    return [*plain, *(_compressed(numbers, codec) for codec in ("lz4", "zstd"))]


def _batches() -> Iterator[pa.RecordBatch]:
    for name, columns in _columns().items():
        yield pa.RecordBatch.from_arrays(columns, names=[f"{name}{n}" for n in range(len(columns))])


def _columns() -> dict[str, list[Any]]:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    long = "a text that is longer than twelve bytes"
    union_kinds = pa.array([0, 1, 0], pa.int8())
    return {
        "texts": [
            pa.array([1, 2, None]),
            pa.array(["a", "bc", None]),
            pa.array([b"x", None, b"yz"]),
        ],
        "large": [
            pa.array(["a", None], pa.large_string()),
            pa.array([b"a", b"bcd"], pa.large_binary()),
        ],
        "views": [
            pa.array(["short", long, None], pa.string_view()),
            pa.array([b"q" * 40, b"", b"12"], pa.binary_view()),
        ],
        "fixed": [
            pa.array([b"abcd", b"efgh"], pa.binary(4)),
            pa.array([Decimal("1.10"), None], pa.decimal128(9, 2)),
            pa.array([Decimal("1.10"), None], pa.decimal256(40, 2)),
        ],
        "times": [
            pa.array([now, None], pa.timestamp("us", tz="UTC")),
            pa.array([date(2026, 1, 2), None]),
            pa.array([1, None], pa.duration("s")),
            pa.array([1, 2], pa.time32("s")),
            pa.array([1, 2], pa.time64("us")),
            pa.array([None, (1, 2, 3)], pa.month_day_nano_interval()),
        ],
        "lists": [
            pa.array([[1, 2], None, []], pa.list_(pa.int64())),
            pa.array([["a"], ["b", "c"], None], pa.large_list(pa.string())),
            pa.array([[1, 2], [3, 4], None], pa.list_(pa.int32(), 2)),
        ],
        "list_views": [
            pa.array([[1, 2], None, []], pa.list_view(pa.int64())),
            pa.array([["a"], ["b", "c"], None], pa.large_list_view(pa.string())),
        ],
        "nested": [
            pa.array([{"a": 1, "b": [{"c": "x"}]}, None, {"a": 2, "b": []}]),
            pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        ],
        "dictionaries": [
            pa.array(["a", "b", "a", None]).dictionary_encode(),
            pa.array(
                [["x"], ["y", "x"], [], None], pa.list_(pa.dictionary(pa.int8(), pa.string()))
            ),
        ],
        "sparse_union": [
            pa.UnionArray.from_sparse(union_kinds, [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
        ],
        "dense_union": [
            pa.UnionArray.from_dense(
                union_kinds,
                pa.array([0, 0, 1], pa.int32()),
                [pa.array([1, 2]), pa.array(["a"])],
            )
        ],
        "run_ends": [
            pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["a", "b"]))
        ],
        "flags": [pa.array([True, None, False]), pa.nulls(3), pa.array([1.5, None, 2.5])],
        "extensions": [
            pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None], pa.binary(16))),
            pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None])),
        ],
    }


def _compressed(batch: pa.RecordBatch, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return _UUID + bytes(sink.getvalue())


def look_at_all(batch: pa.RecordBatch | pa.Table) -> None:
    """Touch every value, as an application and Spark do."""
    for column in batch.columns:
        parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column, column]
        with suppress(pa.ArrowException):  # of types that cannot be joined
            pa.concat_arrays(parts)
        # A year, a decimal or a time zone that Python does not know: no value is wrong, there is none.
        with suppress(ValueError, ArithmeticError, LookupError):
            column.to_pylist()
