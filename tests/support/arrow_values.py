"""Arrow columns of any type, with nulls, extremes and text that is no UTF-8, for properties of what is written."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import strategies as st

Values: TypeAlias = st.SearchStrategy[Any]

TEXTS = st.sampled_from(["", "a", 'q"\\', "é😀\u2028", "\x00\x1f\x7f", "\ufeff", "a\r\n,b", "NaN"])
BYTES = st.sampled_from([b"", b"\x00\xff", b"plain"])
FLOATS = st.sampled_from([0.1, -0.0, 1.0, 5e-324, 1.7976931348623157e308, 1e22, 123456789.123])
NOT_FINITE = st.sampled_from([float("nan"), float("inf"), float("-inf")])
MICROSECONDS = st.sampled_from(
    [0, 1, -1, 1_700_000_000_000_000, 1_700_000_000_000_001, -5_000_000_000_000_000]
)
FAR_MICROSECONDS = st.sampled_from([253_402_300_800_000_000, -62_135_596_800_000_001])
BAD_UTF8 = b"\xc3("
TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())


def whole(bits: int, *, signed: bool) -> Values:
    """Return integers of a width, its bounds among them."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.sampled_from([low, high, 0, 1])


def decimals(precision: int, scale: int) -> Values:
    """Return decimals of a type."""
    digits = st.sampled_from([0, 1, -1, 10**precision - 1, 1 - 10**precision])
    context = decimal.Context(prec=80)
    return digits.map(lambda each: decimal.Decimal(each).scaleb(-scale, context))


def _raw(values: Values, kind: pa.DataType) -> tuple[pa.DataType, Values]:
    """Return numbers as values of a type, as Python shows them."""
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind, values.map(lambda each: pa.scalar(each, width).cast(kind))


LEAVES: list[tuple[pa.DataType, Values]] = [
    *((pa.type_for_alias(f"int{b}"), whole(b, signed=True)) for b in (8, 16, 32, 64)),
    *((pa.type_for_alias(f"uint{b}"), whole(b, signed=False)) for b in (8, 16, 32, 64)),
    (pa.float16(), st.sampled_from([0.5, -0.0, 65504.0]) | NOT_FINITE),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), FLOATS | NOT_FINITE),
    (pa.bool_(), st.booleans()),
    (pa.null(), st.none()),
    *((kind, TEXTS) for kind in TEXT_TYPES),
    *((kind, BYTES) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(2), st.sampled_from([b"ab", b"\xff\x00"])),
    (pa.decimal128(38, 18), decimals(38, 18)),
    (pa.decimal128(10, -2), decimals(10, -2)),
    (pa.decimal256(60, 2), decimals(60, 2)),
    (
        pa.date32(),
        st.sampled_from([dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31)]),
    ),
    (pa.date64(), st.just(dt.date(2020, 2, 29))),
    *(
        _raw(MICROSECONDS | FAR_MICROSECONDS, pa.timestamp("us", zone))
        for zone in (None, "UTC", "America/New_York", "+05:30")
    ),
    _raw(st.sampled_from([0, 1_700_000_000]), pa.timestamp("s", "Europe/London")),
    _raw(st.sampled_from([0, 1_700_000_000_123]), pa.timestamp("ms")),
    _raw(st.sampled_from([0, 1_700_000_000_123_456_000, 1]), pa.timestamp("ns")),
    _raw(st.sampled_from([0, 86_399_999_999]), pa.time64("us")),
    _raw(st.sampled_from([0, 86_399]), pa.time32("s")),
    _raw(st.sampled_from([0, -1, 10**12]), pa.duration("us")),
]


def _nested(inner: tuple[pa.DataType, Values]) -> list[tuple[pa.DataType, Values]]:
    kind, values = inner
    some = st.none() | values
    lists = st.lists(some, max_size=3)
    keys: list[tuple[pa.DataType, Values]] = [
        (pa.string(), TEXTS),
        (pa.int32(), whole(32, signed=True)),
        (pa.float64(), FLOATS | NOT_FINITE),
    ]
    return [
        (pa.list_(kind), lists),
        (pa.large_list(kind), lists),
        (pa.list_(kind, 2), st.lists(some, min_size=2, max_size=2)),
        (pa.list_view(kind), lists),
        (pa.struct({"x": kind, "y": pa.string()}), st.fixed_dictionaries({"x": some, "y": TEXTS})),
        (pa.struct([]), st.just({})),
        *(
            (
                pa.map_(key, kind),
                st.lists(st.tuples(names, some), max_size=2, unique_by=lambda pair: repr(pair[0])),
            )
            for key, names in keys
        ),
    ]


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[pa.DataType, Values]:
    """A type, at most three levels deep, and its values."""
    found: tuple[pa.DataType, Values] = draw(st.sampled_from(LEAVES))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        found = draw(st.sampled_from(_nested(found)))
    return found


@st.composite
def columns(draw: st.DrawFn, count: int) -> pa.Array:
    """A column of a type, cut out of a longer one, maybe encoded by a dictionary, maybe with bad text."""
    kind, values = draw(typed_values())
    some = st.none() | values if draw(st.booleans()) else values
    drawn = draw(st.lists(some, min_size=count + 1, max_size=count + 1))
    column = pa.array(drawn, kind)
    if kind in (pa.string(), pa.int32()) and draw(st.booleans()):
        column = column.dictionary_encode()
    elif kind == pa.string() and draw(st.sampled_from([False, False, True])):
        column = with_bad_text(column, draw(st.integers(0, count)))
    return column.slice(1)


def with_bad_text(column: pa.Array, row: int) -> pa.Array:
    """Return strings of which one is no UTF-8."""
    values = [None if each is None else each.encode() for each in column.to_pylist()]
    values[row] = BAD_UTF8
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())
