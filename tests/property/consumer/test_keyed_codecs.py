"""Keys and rows of keyed state as bytes: what is equal, what comes first, and what comes back."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from broadsheet.consumer.keyed.grouping import RowMaker, grouped, rows_by_key
from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.row_types import StateRowType
from broadsheet.wire.key_range import GROUPS, group_of

_texts = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(["", "\x00", "\x00a"])
_decimals = st.decimals(-(10**12), 10**12, places=3, allow_nan=False)
_VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), _texts),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "bool": (pa.bool_(), st.booleans()),
    "float": (pa.float64(), st.floats(allow_nan=False).map(lambda value: value or 0.0)),
    "date": (pa.date32(), st.dates()),
    "naive": (pa.timestamp("us"), st.datetimes()),
    "aware": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "decimal": (pa.decimal128(18, 3), _decimals),
    "wide decimal": (pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
}


def _order(one: tuple[Any, ...], other: tuple[Any, ...]) -> int:
    """Compare keys field by field; null is first."""
    for mine, theirs in zip(one, other, strict=True):
        a, b = (each.encode() if isinstance(each, str) else each for each in (mine, theirs))
        if a == b:
            continue
        if a is None or b is None:
            return -1 if a is None else 1
        return -1 if a < b else 1
    return 0


@pytest.mark.parametrize("kind", _VALUES)
def test_keys_as_bytes_have_the_order_of_their_values_and_come_back(kind: str) -> None:
    """Keys are processed in the order of bytes, and a timer has its key as bytes only; fields follow each other."""
    type_, values = _VALUES[kind]
    codec = KeyCodec(pa.schema([("a", type_), ("b", pa.string()), ("c", type_)]))
    keys = st.tuples(st.none() | values, st.none() | _texts, st.none() | values)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(keys, max_size=8))
    def check(found: list[tuple[Any, ...]]) -> None:
        by_value = sorted(found, key=cmp_to_key(_order))
        encoded = sorted(map(codec.encode, found))
        assert encoded == [codec.encode(key) for key in by_value]
        assert [codec.decode(b"xx" + each, 2) for each in encoded] == [
            (key, len(each) + 2) for key, each in zip(by_value, encoded, strict=True)
        ]
        assert codec.encode_all(list(zip(*found, strict=True)) or [(), (), ()]) == list(
            map(codec.encode, found)
        )

    check()


def test_keys_that_spark_groups_together_are_the_same_bytes() -> None:
    """−0 and 0 are one key, and so are all NaN, which come last; the same instant of two zones is one key."""
    floats = KeyCodec(pa.schema([("x", pa.float64())]))
    times = KeyCodec(pa.schema([("x", pa.timestamp("us", "UTC"))]))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    assert floats.encode((-0.0,)) == floats.encode((0.0,))
    assert floats.encode((math.nan,)) == floats.encode((-math.nan,))
    assert floats.encode((math.nan,)) > floats.encode((math.inf,))
    assert times.encode((noon,)) == times.encode((noon.astimezone(tz=None),))


def test_groups_of_keys_are_spread_over_all() -> None:
    """A split gives each half of the groups half of the keys."""
    codec = KeyCodec(pa.schema([("x", pa.int64())]))

    groups = {group_of(codec.encode((number,))) for number in range(20_000)}

    assert min(groups) >= 0
    assert max(groups) < GROUPS
    assert len(groups) > 0.98 * GROUPS


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | _texts,
            st.none() | st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.inf]),
            st.integers(0, 99),
        ),
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_grouped_rows_are_those_of_each_key_in_order_of_arrival(
    rows: list[tuple[str | None, float | None, int]], chunks: int
) -> None:
    """Grouping by columns gives what a loop over rows gives, with keys in order, over any chunks of a table."""
    schema = pa.schema([("a", pa.string()), ("b", pa.float64()), ("n", pa.int32())])
    codec = KeyCodec(pa.schema(list(schema)[:2]))
    size = max(1, len(rows) // chunks)
    parts = [rows[at : at + size] for at in range(0, len(rows), size)]
    tables = [
        pa.table(
            [pa.array(c, f.type) for c, f in zip(zip(*part, strict=True), schema, strict=True)],
            schema=schema,
        )
        for part in parts
    ]
    table = pa.concat_tables([schema.empty_table(), *tables])
    expected: dict[bytes, list[int]] = {}
    for *key, number in rows:
        expected.setdefault(codec.encode(key), []).append(number)

    found = list(rows_by_key(grouped(table, codec), RowMaker(schema.names)))

    assert [(key, [row.n for row in of]) for key, _, of in found] == sorted(expected.items())
    assert all(of.to_arrow().num_rows == len(of) for _, _, of in found)
    assert [codec.encode(value) for _, value, _ in found] == sorted(expected)


_ROWS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "tinyint": ("x tinyint", st.integers(-128, 127)),
    "long": ("x long", st.integers(-(2**63), 2**63 - 1)),
    "double": ("x double", st.floats(allow_nan=False)),
    "string": ("x string", _texts),
    "binary": ("x binary", st.binary(max_size=9)),
    "boolean": ("x boolean", st.booleans()),
    "date": ("x date", st.dates()),
    "timestamp": ("x timestamp", st.datetimes(timezones=st.just(UTC))),
    "timestamp_ntz": ("x timestamp_ntz", st.datetimes()),
    "decimal": ("x decimal(18,3)", _decimals),
    "array": ("x array<int>", st.lists(st.none() | st.integers(-9, 9), max_size=3)),
    "map": (
        "x map<string, double>",
        st.dictionaries(_texts, st.integers(0, 9).map(float), max_size=3),
    ),
    "struct": (
        "x struct<a: int, b: array<string>>",
        st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.lists(_texts, max_size=2)}),
    ),
}


@pytest.mark.parametrize("kind", _ROWS)
def test_rows_of_every_type_come_back_as_they_were(kind: str) -> None:
    """A value that is committed must be the one that is read: null, in a row, and as an element that expires."""
    declared, values = _ROWS[kind]
    row_type = StateRowType(declared)

    @settings(max_examples=40, deadline=None)
    @given(st.none() | values, st.none() | st.integers(-(2**63), 2**63 - 1))
    def check(value: Any, expiry: int | None) -> None:
        assert row_type.value_of(row_type.decode(row_type.encode((value,)))) == (value,)
        element = row_type.encode_element((value,), expiry)
        assert row_type.decode_elements(b"\x91" + element) == [(expiry, value)]

    check()


def test_days_at_the_ends_of_the_calendar_are_keys() -> None:
    """Sentinels such as the year 9999 are common in data."""
    codec = KeyCodec(pa.schema([("d", pa.date32()), ("t", pa.timestamp("us", "UTC"))]))
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    for key in ((date.min, first), (date.max, last)):
        assert codec.decode(codec.encode(key))[0] == key
