"""Tables of JSON messages, made by columns, beside the same messages decoded one by one."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from broadsheet.journals.content.json import JsonType
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.framing import Payloads

INTEGERS = st.integers(-9, 9) | st.sampled_from(
    [2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63, 2**64 + 1, 10**30]
)
FLOATS = st.sampled_from([0.5, -0.0, 1e300, 9007199254740993.0, 5e-324, 2.0**63])
TEXTS = st.sampled_from(
    ["", "a", 'q"\\', "é😀", "2026-03-01", "2026-03-01T04:05:06Z", "NaN", "\x00"]
)
SCALARS = st.one_of(st.none(), st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(st.none() | inner, max_size=4),
        st.dictionaries(st.sampled_from(["x", "y", ""]), inner, max_size=3),
    ),
    max_leaves=8,
)
KINDS = [st.none() | INTEGERS, st.none() | FLOATS | INTEGERS, st.none() | TEXTS, VALUES]


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages, of which a field mostly has one type, so that most make a table."""
    fields: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)):
        kind = draw(st.sampled_from(KINDS))
        fields[name] = draw(
            st.sampled_from([kind, st.none() | st.lists(kind, max_size=4)])
            | st.just(st.none() | st.fixed_dictionaries({}, optional={"x": kind, "y": kind}))
        )
    return draw(st.lists(st.fixed_dictionaries({}, optional=fields), min_size=1, max_size=5))


def batch_of_texts(texts: list[bytes]) -> MessageBatch:
    """Return payloads as a batch that no one has looked into."""
    count = len(texts)
    zeros = [0] * count
    return MessageBatch(
        "a/b",
        [*range(count)],
        [*range(1, count + 1)],
        zeros,
        zeros,
        zeros,
        Payloads.of(texts),
        JsonType(),
    )


def filled(value: Any, kind: pa.DataType) -> Any:
    """Return a value with its absent fields as nulls, which columns do not tell apart."""
    if isinstance(value, dict):
        return {field.name: filled(value.get(field.name), field.type) for field in kind}
    if isinstance(value, list):
        return [filled(each, kind.value_type) for each in value]
    return value


def plain(value: Any) -> Any:
    """Return a value of a data frame without what pandas puts in the place of nulls and lists."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def has_fields(kind: pa.DataType) -> bool:
    """Tell whether every struct has a field: polars has none without."""
    if pa.types.is_struct(kind):
        return bool(kind.num_fields) and all(has_fields(field.type) for field in kind)
    return not pa.types.is_list(kind) or has_fields(kind.value_type)


def check_tables(batch: MessageBatch) -> pa.Table | None:
    """Check that each form of a batch has the values of its messages; None if the table is refused."""
    try:
        table = batch.to_arrow()
    except FramingError:
        return None
    table.validate(full=True)
    whole = pa.struct(list(table.schema))
    wanted = [filled(message, whole) for message in batch.messages()]
    assert table.to_pylist() == wanted
    if not table.num_columns:
        return table  # Data frames have no rows without columns; messages of a journal have at least `_meta`.
    assert [plain(row) for row in batch.to_pandas().to_dict("records")] == wanted
    if has_fields(whole):
        assert [plain(row) for row in batch.to_polars().to_dicts()] == wanted
    return table


@given(documents())
@settings(max_examples=300, deadline=None)
@example([{"u": "ann", "p": [None, 10]}, {"u": "bob", "p": [20]}, {"u": "cy", "p": [30, 40]}])
@example([{"a": [None, None]}])
@example([{"a": {"x": [None, {"y": [None, 1]}]}}, {"a": None}])
@example([{"a": 2**53 + 1}, {"a": None}])
@example([{"a": 2**53 + 1}, {"a": 0.5}])
@example([{"a": "2026-03-01"}])
@example([{"a": 2**63}])
def test_tables_without_a_schema_have_the_values_of_messages(messages: list[Any]) -> None:
    """Nested lists and structs with nulls first, integers that no double holds, texts like times: as Arrow, pandas and
    polars each row has its message's values, or the batch is refused.
    """
    check_tables(batch_of_texts([msgspec.json.encode(each) for each in messages]))


LINES = st.sampled_from(
    [
        b'{"a":1}',
        b'{"a":1}\r',
        b' {"a":2} ',
        b'{"a":1,"a":2}',
        b'{"a":{"x":1},"a":{"y":2}}',
        b'{"a":1,"\\u0061":null}',
        b'{"a":NaN}',
        b'{"a":[-Infinity]}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":1}{"a":2}',
        b"",
        b" ",
        b"{}",
        b'{"a":{}}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":\n1}',
        b"[1]",
        b"null",
        b'{"a":1e999}',
    ]
)


@given(st.lists(LINES, min_size=1, max_size=3), st.sampled_from([0, 20]))
@settings(max_examples=300, deadline=None)
@example([b'{"a":1}{"a":2}', b" "], 0)
@example([b'\xef\xbb\xbf{"a":1}'], 0)
@example([b'{"a":NaN}'], 20)
def test_tables_and_messages_agree_on_what_is_json(lines: list[bytes], more: int) -> None:
    """Duplicate keys, byte order marks, NaN, two objects in one payload, white space: a batch whose messages cannot be
    decoded has no table, and one whose messages can has theirs, with and without a schema.
    """
    batch = batch_of_texts([*lines, *[b'{"a":3}'] * more])
    try:
        messages: list[Any] | None = [JsonType().decode(each) for each in batch.payloads]
    except ValueError:
        messages = None

    table = check_tables(batch) if messages is not None else None
    declared = [pa.schema([("a", kind)]) for kind in (pa.int64(), pa.float64())]
    for schema in declared:
        try:
            found = batch.to_arrow(schema)
        except FramingError:
            found = None
        if messages is None:
            with pytest.raises(FramingError):
                batch.to_arrow()
            assert found is None
        elif found is not None:
            assert [row["a"] for row in found.to_pylist()] == [m.get("a") for m in messages]
    simple = messages is not None and all(isinstance(m, dict) for m in messages)
    if simple and len({type(m.get("a")) for m in messages or () if m.get("a") is not None}) <= 1:
        assert table is not None


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([b'{"v":1}', b'{"v":9223372036854775808}'], r"offset 1\b.*v is the integer 92233.*schema"),
        ([b'{"v":[0.5,9007199254740993]}'], r"v\[1\] is the integer 9007199254740993"),
        ([b'{"v":"\\ud83d"}'], r"the escape \\ud83d is half of a surrogate pair"),
        ([b'\xef\xbb\xbf{"v":1}'], "byte order mark"),
    ],
)
def test_refused_tables_say_what_to_change(lines: list[bytes], says: str) -> None:
    """Integers beyond a column, half a surrogate pair and a byte order mark: a library's own words name no remedy."""
    with pytest.raises(FramingError, match=says):
        batch_of_texts(lines).to_arrow()


def test_large_integers_are_read_exactly_with_a_schema() -> None:
    """Unsigned and decimal columns: the remedy that the error names works."""
    batch = batch_of_texts([json.dumps({"v": 2**63 + 1}).encode()])

    for kind in (pa.uint64(), pa.decimal128(38, 0)):
        assert batch.to_arrow(pa.schema([("v", kind)]))["v"].to_pylist() == [2**63 + 1]
