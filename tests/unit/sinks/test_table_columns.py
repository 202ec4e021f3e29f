"""Columns of rows as columns of lake tables: no value changes, whatever a table would do to it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from broadsheet.consumer.stores.table_columns import (
    adds_columns,
    require_names_beside,
    require_paths,
    table_rows,
    table_schema,
    united,
)
from broadsheet.consumer.stores.table_version import TableVersion, version_of
from broadsheet.runtime.errors import ValidationError

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("kind", "value", "kept", "stored"),
    [
        (pa.uint8(), 255, pa.int64(), 255),
        (pa.uint32(), 2**32 - 1, pa.int64(), 2**32 - 1),
        (pa.uint64(), 2**64 - 1, pa.decimal128(20, 0), Decimal(2**64 - 1)),
        (pa.int8(), -128, pa.int32(), -128),
        (pa.float16(), 0.5, pa.float32(), 0.5),
        (pa.timestamp("ns"), MOMENT, pa.timestamp("us"), MOMENT),
        (
            pa.timestamp("us", "Europe/Berlin"),
            MOMENT.replace(tzinfo=UTC),
            pa.timestamp("us", "UTC"),
            MOMENT.replace(tzinfo=UTC),
        ),
        (pa.duration("s"), timedelta(seconds=2), pa.int64(), 2_000_000),
        (pa.time32("s"), time(0, 0, 3), pa.int64(), 3_000_000),
        (pa.date64(), date(2026, 1, 2), pa.date32(), date(2026, 1, 2)),
        (pa.dictionary(pa.int8(), pa.string()), "a", pa.string(), "a"),
        (pa.large_string(), "a", pa.string(), "a"),
        (pa.string_view(), "a", pa.string(), "a"),
        (pa.binary(2), b"ab", pa.binary(), b"ab"),
        (pa.list_(pa.uint16()), [1, 2], pa.list_(pa.int64()), [1, 2]),
        (
            pa.struct([("a", pa.uint32())]),
            {"a": 1},
            pa.struct([("a", pa.int64())]),
            {"a": 1},
        ),
    ],
    ids=lambda each: str(each) if isinstance(each, pa.DataType) else "",
)
def test_value_is_kept_in_the_type_of_tables(
    kind: pa.DataType, value: Any, kept: pa.DataType, stored: Any
) -> None:
    """Largest values are tried, because tables take a type and refuse them later."""
    rows = table_rows(pa.table({"c": pa.array([value, None], kind)}))

    assert rows.schema.field("c").type == kept
    assert rows.column("c").to_pylist() == [stored, None]


def test_time_that_would_lose_digits_is_refused_with_its_column() -> None:
    """A nanosecond that vanishes silently is a wrong result somewhere else."""
    rows = pa.table({"at": pa.array([1], pa.timestamp("ns"))})

    with pytest.raises(ValidationError, match=r"at: expected values that fit timestamp\[us\]"):
        table_rows(rows)


def test_column_of_nulls_waits_for_its_type() -> None:
    """Neither format has a type for it, and a guess could not be taken back."""
    assert table_schema(pa.schema([("a", pa.null()), ("b", pa.int64())])).names == ["b"]


@pytest.mark.parametrize(
    ("had", "got", "value"),
    [
        (pa.int64(), pa.int32(), 1),
        (pa.float64(), pa.float32(), 0.5),
        (pa.float64(), pa.int64(), 3),
        (pa.int32(), pa.int64(), 7),
    ],
)
def test_narrower_value_fits_the_column_of_the_table(
    had: pa.DataType, got: pa.DataType, value: Any
) -> None:
    """Each batch suggests its own types; the table's stay."""
    rows = table_rows(pa.table({"c": pa.array([value], got)}), pa.schema([("c", had)]))

    assert rows.schema.field("c").type == had
    assert rows.column("c").to_pylist() == [value]


@pytest.mark.parametrize(
    ("had", "value"),
    [(pa.int64(), "text"), (pa.int32(), 2**40), (pa.string(), 1), (pa.int64(), 0.5)],
)
def test_value_that_does_not_fit_the_column_is_refused_with_its_column(
    had: pa.DataType, value: Any
) -> None:
    """The shard stops there, or the message goes to the dead letters."""
    with pytest.raises(ValidationError, match="c: expected"):
        table_rows(pa.table({"c": [value]}), pa.schema([("c", had)]))


def test_version_of_the_next_holder_is_above_all_of_the_one_before() -> None:
    """A table keeps one number: holders and their commits must not meet in it."""
    version = TableVersion()
    for _ in range(3):
        version = version.taken_over()
        taken = version
        for _ in range(5):
            version = version.followed()
            assert version_of(version.encoded) == version
            assert version.encoded < taken.taken_over().encoded
    assert version_of(None) == TableVersion()


_X, _Y = pa.field("x", pa.int64()), pa.field("y", pa.string())


@pytest.mark.parametrize(
    ("had", "value", "kept"),
    [
        (pa.struct([_X]), {"x": 1, "y": "a"}, pa.struct([_X, _Y])),
        (pa.struct([_X, _Y]), {"x": 1}, pa.struct([_X, _Y])),
        (pa.struct([_Y, _X]), {"x": 1, "y": "a"}, pa.struct([_Y, _X])),
        (pa.list_(pa.struct([_X])), [{"x": 1, "y": "a"}], pa.list_(pa.struct([_X, _Y]))),
        (
            pa.struct([pa.field("deep", pa.struct([_X]))]),
            {"deep": {"x": 1, "y": "a"}},
            pa.struct([pa.field("deep", pa.struct([_X, _Y]))]),
        ),
    ],
)
def test_nested_field_that_a_table_lacks_is_added(
    had: pa.DataType, value: object, kept: pa.DataType
) -> None:
    """A cast to the table's type alone would drop what that does not have, in silence."""
    before = pa.schema([("c", had)])
    rows = table_rows(pa.table({"c": [value]}), before)
    assert rows.schema.field("c").type == kept
    assert adds_columns(before, rows.schema) == (kept != had)
    (found,) = rows.to_pylist()
    wanted = pa.array([value], kept).to_pylist()
    assert found["c"] == wanted[0]


def test_field_of_a_map_that_a_table_lacks_is_added() -> None:
    """So it is in values of maps."""
    narrow = pa.map_(pa.string(), pa.struct([_X]))
    wide = pa.map_(pa.string(), pa.struct([_X, _Y]))
    value = [("k", {"x": 1, "y": "a"})]
    before = pa.schema([("c", narrow)])
    rows = table_rows(pa.table({"c": pa.array([value], wide)}), before)
    assert adds_columns(before, rows.schema)
    assert rows.to_pylist() == [{"c": value}]


def test_nested_value_of_another_type_is_named() -> None:
    """Text that happens to be digits is no number."""
    had = pa.schema([("c", pa.struct([_X]))])
    with pytest.raises(ValidationError, match=r"^c\.x: expected int64, .* got string"):
        table_rows(pa.table({"c": [{"x": "12"}]}), had)


def test_nested_times_have_the_unit_of_others() -> None:
    """Seconds and milliseconds would be kept as they are, and read as microseconds."""
    kind = pa.struct(
        [("t", pa.time32("s")), ("d", pa.duration("ms")), ("l", pa.list_(pa.time32("ms")))]
    )
    value = {"t": time(0, 0, 1), "d": timedelta(milliseconds=2), "l": [time(0, 0, 0, 3000)]}
    rows = table_rows(pa.table({"c": pa.array([value], kind)}))
    assert rows.to_pylist() == [{"c": {"t": 1_000_000, "d": 2_000, "l": [3_000]}}]


def test_rows_of_one_transaction_have_types_that_hold_all() -> None:
    """A column that the table lacks becomes wide enough, or is named before anything is committed."""
    whole, broken = pa.schema([("c", pa.int64())]), pa.schema([("c", pa.string())])
    assert united(whole, pa.schema([("c", pa.float64())])).field("c").type == pa.float64()
    with pytest.raises(ValidationError, match=r"^c: expected int64, .* got string"):
        united(whole, broken)


def test_names_that_differ_in_their_case_are_refused_where_they_are_one() -> None:
    """Delta would refuse the commit, again and again."""
    require_names_beside(["a"], ["a", "b"])
    with pytest.raises(ValidationError, match=r"^A: expected a name that differs from column 'a'"):
        require_names_beside(["a"], ["b", "A"])


@pytest.mark.parametrize(
    ("columns", "path", "problem"),
    [
        ({"": pa.int64()}, "''", "expected a name"),
        ({"a": pa.struct([("", pa.int64())])}, "a.''", "expected a name"),
        ({"a": pa.list_(pa.struct([("", pa.int64())]))}, "a.element.''", "expected a name"),
        ({"a.b": pa.int64(), "a": pa.struct([("b", pa.int64())])}, "a.b", "one field of this path"),
        (
            {"a.element": pa.int64(), "a": pa.list_(pa.int64())},
            "a.element",
            "one field of this path",
        ),
        (
            {"a": pa.map_(pa.string(), pa.int64()), "a.key": pa.int64()},
            "a.key",
            "one field of this path",
        ),
    ],
    ids=["empty", "in-struct", "in-list", "struct", "element", "map"],
)
def test_field_that_iceberg_could_not_name_is_refused(
    columns: dict[str, pa.DataType], path: str, problem: str
) -> None:
    """The client says "Can not validate empty avro name" for the first, and no column for any."""
    with pytest.raises(ValidationError, match=problem) as refused:
        require_paths(pa.schema(columns))
    assert refused.value.field_path == path


def test_names_with_dots_are_taken_as_long_as_they_are_paths_of_their_own() -> None:
    """Iceberg keeps them; only two fields of one path are ambiguous."""
    require_paths(
        pa.schema({"a.b": pa.int64(), "a": pa.struct([("c", pa.int64())]), "a.": pa.int64()})
    )
