"""Values through publishers and readers: equal when they come back, by value and by column, or refused by place."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowMessage, ArrowType
from broadsheet.journals.content.csv import CsvType
from broadsheet.journals.content.json import NDJSON, JsonStructType, JsonType, Meta
from broadsheet.journals.content.protobuf import ProtobufType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import FramingError, PublishMessageError
from broadsheet.journals.message.batch import MessageBatch, MessageType, batch_of
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock
from tests.support.arrow_values import columns, with_bad_text
from tests.support.order_messages import Order

JOURNAL = "a/values"
NAMES = ["a", 'q"\\', "é"]


def published(publisher: Publisher, message_type: MessageType) -> MessageBatch:
    """Return what a publisher would append, as a reader finds it."""
    content = b"".join(piece for append in publisher.take_appends() for piece in append.content)
    unframer = framing_for(message_type.content_type).unframer(journal=JOURNAL, offset=0)
    frames = unframer.feed(content)
    assert unframer.pending_bytes == 0
    batch, error = batch_of(JOURNAL, frames, message_type)
    assert error is None
    return batch


def one_by_one(message_type: MessageType, messages: list[Any]) -> MessageBatch:
    """Return messages as they are read after they were published one by one."""
    publisher = Publisher(MessageClock(), 7)
    for message in messages:
        mapped = MappedJournal(JOURNAL, message_type.content_type)
        publisher.publish_uncommitted(mapped, message, message_type)
    return published(publisher, message_type)


def tried(message_type: MessageType, messages: list[Any]) -> tuple[MessageBatch | None, str]:
    """Return messages as they are read; None if one is refused, and the words of the error."""
    try:
        return one_by_one(message_type, messages), ""
    except PublishMessageError as error:
        return None, str(error)


def without_meta(messages: Any) -> list[Any]:
    """Return messages but for their UUID, as text that tells 1, 1.0 and -0.0 apart."""
    return [repr({n: v for n, v in each.items() if n != "_meta"}) for each in messages]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A few rows of a few columns of any types."""
    count = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
    return pa.table({name: draw(columns(count)) for name in names})


def first_refused(table: pa.Table) -> int | None:
    """Return the row at which publishing one by one ends; None if all rows are taken."""
    for row in range(table.num_rows):
        try:
            one_by_one(JsonType(), table.slice(row, 1).to_pylist())
        # Arrow's conversions to Python raise errors of any class.
        except Exception:
            return row
    return None


@given(tables())
@settings(max_examples=200, deadline=None)
def test_batch_makes_the_messages_that_rows_make_one_by_one(table: pa.Table) -> None:
    """Any types: nested, views, dictionaries, times of zones, numbers that are not finite, text that is no UTF-8. Both
    ways give equal messages, or both refuse, and the batch names column and row.
    """
    publisher = Publisher(MessageClock(), 7)
    mapped = MappedJournal(JOURNAL, NDJSON)
    refused = first_refused(table)
    if refused is not None:
        with pytest.raises(PublishMessageError) as caught:
            publisher.publish_batch(mapped, table, JsonType())
        found = re.search(r"column (.*), row (\d+):", str(caught.value))
        assert found is not None
        assert found.group(1) in table.column_names
        assert int(found.group(2)) >= refused
        assert not publisher.take_appends()
        return
    publisher.publish_batch(mapped, table, JsonType())
    batch = published(publisher, JsonType())

    expected = one_by_one(JsonType(), table.to_pylist())
    assert without_meta(batch.messages()) == without_meta(expected.messages())


DECLARED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.sampled_from([-(2**63), 2**63 - 1, 0]),
    pa.uint64(): st.sampled_from([2**64 - 1, 0]),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.large_binary(): st.binary(max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.decimal128(38, 18): st.sampled_from(
        [Decimal("12345678901234567890.123456789012345678"), Decimal("1E-18"), Decimal(-7)]
    ),
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(-9, 9), max_size=2),
    pa.struct({"x": pa.float64()}): st.fixed_dictionaries({"x": st.none() | st.just(0.5)}),
}


@given(st.data(), st.sets(st.sampled_from(sorted(DECLARED, key=str)), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_rows_come_back_by_their_schema(data: st.DataObject, kinds: set[pa.DataType]) -> None:
    """A table that is published as JSON lines and read with its own schema is the same table: bytes are no base 64, NaN
    is a number, decimals keep their digits.
    """
    count = data.draw(st.integers(1, 4))
    drawn = {
        f"c{index}": pa.array(
            data.draw(st.lists(st.none() | DECLARED[kind], min_size=count, max_size=count)), kind
        )
        for index, kind in enumerate(sorted(kinds, key=str))
    }
    table = pa.table(drawn)
    publisher = Publisher(MessageClock(), 7)
    publisher.publish_batch(MappedJournal(JOURNAL, NDJSON), table, JsonType())

    found = published(publisher, JsonType()).to_arrow(table.schema)

    assert repr(found.to_pylist()) == repr(table.to_pylist())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.binary(), '"no base 64"'),
        (pa.date32(), '"1st of May"'),
        (pa.decimal128(4, 2), '"1.005"'),
        (pa.decimal128(4, 2), "true"),
        (pa.float64(), '"nan"'),
        (pa.float64(), "false"),
    ],
)
def test_texts_that_are_no_value_of_their_column_are_refused(kind: pa.DataType, text: str) -> None:
    """What looks like a value of the column and is none: it would be another value, or null, in silence."""
    payload = f'{{"_meta":{{"uuid":""}},"c":{text}}}'.encode()
    content = framing_for(NDJSON).frame(payload)
    frames = framing_for(NDJSON).unframer(journal=JOURNAL, offset=0).feed(content)
    batch, _ = batch_of(JOURNAL, frames, JsonType())

    with pytest.raises(FramingError, match=r"offset 0.*do not fit"):
        batch.to_arrow(pa.schema([("c", kind)]))


@given(tables())
@settings(max_examples=200, deadline=None)
def test_arrow_rows_come_back_equal_or_are_refused(table: pa.Table) -> None:
    """Any types as Arrow messages: a reader that validates them takes all that a publisher lets pass."""
    publisher = Publisher(MessageClock(), 7)
    mapped = MappedJournal(JOURNAL, ARROW_STREAM)
    try:
        publisher.publish_batch(mapped, table, ArrowType())
        said = ""
    except PublishMessageError as error:
        said = str(error)
    if said:
        assert re.search(r"column .*, row \d+: text that is not UTF-8", said)
        return
    batch = published(publisher, ArrowType())

    assert batch.to_arrow().combine_chunks().equals(table.combine_chunks()) or has_nan(table)
    assert [len(m.rows) for m in batch.messages()] == [table.num_rows]


def has_nan(table: pa.Table) -> bool:
    """Tell whether a table is unlike itself."""
    return not table.equals(table)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


def named(value: Any) -> Any:
    """Return a value as its message has it: numbers that are not finite are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: named(each) for name, each in value.items()}
    return [named(each) for each in value] if isinstance(value, list) else value


@given(st.lists(st.dictionaries(st.text(max_size=2), JSON_VALUES, max_size=3), max_size=3))
@settings(max_examples=150, deadline=None)
def test_json_messages_come_back_equal_or_are_refused(messages: list[dict[str, Any]]) -> None:
    """Any JSON: integers of any length, lone surrogates, numbers that are not finite. What is read is what was
    published, and a table of it has the same values.
    """
    expected = [named(message) for message in messages]
    batch, said = tried(JsonType(), messages)
    if batch is None:
        assert "surrogates not allowed" in said
        with pytest.raises(UnicodeEncodeError):
            msgspec.json.encode(messages)
        return
    assert without_meta(batch.messages()) == [repr(each) for each in expected]
    try:
        table = batch.to_arrow()
    except FramingError:
        return
    for row, message in zip(table.to_pylist(), expected, strict=True):
        assert {n: v for n, v in row.items() if n in message}.keys() == message.keys()


class Reading(msgspec.Struct):
    """A message of fields of fixed types."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    number: float = 0.0
    text: str = ""
    rest: list[float | None] = []


@given(
    st.builds(
        Reading,
        number=st.floats(),
        text=st.text(st.characters(codec=None), max_size=3),
        rest=st.lists(st.none() | st.floats(), max_size=2),
    )
)
@settings(max_examples=200, deadline=None)
def test_struct_messages_come_back_equal_or_are_refused(message: Reading) -> None:
    """Numbers that are not finite would come back as null, which their field refuses: a shard would stop there."""
    wanted = (message.number, message.text, message.rest)
    batch, said = tried(JsonStructType(Reading), [message])
    if batch is None:
        assert re.search(r"number is not finite|rest\[\d\] is not finite|surrogates", said)
        return
    [found] = batch.messages()
    assert (found.number, found.text, found.rest) == wanted


@given(st.lists(st.lists(st.text(max_size=4), min_size=2, max_size=2), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_csv_records_come_back_equal_or_are_refused(records: list[list[str]]) -> None:
    """Quotes, line ends, NUL, texts like numbers and nulls: by value, and as columns of text."""
    csv_type = CsvType(columns=2)
    batch, said = tried(csv_type, [["", *record] for record in records])
    if batch is None:
        assert "surrogates" in said
        return
    assert [message[1:] for message in batch.messages()] == records
    table = batch.to_arrow()
    assert [[row["f1"], row["f2"]] for row in table.to_pylist()] == records


def test_long_fields_of_csv_come_back_equal() -> None:
    """Above 131,072 characters Python's module refuses a field, at which a shard would stop: with quotes, line ends and
    empty fields around it.
    """
    record = ["", 'a"\r\n,' * 50_000, "", "b" * 200_000]

    [found] = one_by_one(CsvType(columns=3), [["", *record[1:]]]).messages()

    assert found[1:] == record[1:]


class Part(msgspec.Struct):
    """A Struct within a dict."""

    number: float | None = None


@dataclass
class Other:
    """An object within a dict."""

    number: float | None = None


@pytest.mark.parametrize("part", [Part, Other, lambda number: {number}, lambda number: (number,)])
@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_numbers_that_are_not_finite_are_found_in_whatever_holds_them(
    part: Any, number: float
) -> None:
    """Structs, data classes, sets and tuples in a dict: the encoder makes null of such a number wherever it is."""
    [found] = one_by_one(JsonType(), [{"of": part(number), "none": None}]).messages()

    value = found["of"]["number"] if isinstance(found["of"], dict) else found["of"][0]
    assert value == named(number)


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=4),
    st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=2),
)
@settings(max_examples=100, deadline=None)
def test_protobuf_messages_come_back_equal(
    number: int, text: str, prices: dict[str, float]
) -> None:
    """Every field kind that the class has."""
    [found] = one_by_one(
        ProtobufType(Order), [Order(id=number, name=text, prices=prices)]
    ).messages()
    assert (found.id, found.name, dict(found.prices)) == (number, text, prices)


@pytest.mark.parametrize(
    ("message_type", "message", "says"),
    [
        (JsonType(), {"a": {"b": ["x", "\ud800"]}}, r"a\.b\[1\]: .*surrogates"),
        (JsonType(), {"a": [{1: object()}]}, r"a\[0\]\.1: JSON has nothing for objects of type"),
        (JsonStructType(Reading), Reading(rest=[1.0, math.nan]), r"rest\[1\] is not finite"),
        (JsonStructType(Reading), Reading(text="\ud800"), "surrogates"),
        (
            ArrowType(),
            ArrowMessage(pa.record_batch({"t": with_bad_text(pa.array(["a", "b"]), 1)})),
            "column t, row 1: text that is not UTF-8",
        ),
        (
            ArrowType(),
            ArrowMessage(pa.record_batch({"n": pa.nulls((1 << 20) + 1)})),
            "1048577 values without bytes",
        ),
        (CsvType(columns=2), ["", "a"], "expected the UUID and 2 fields, got 2 in all"),
    ],
)
def test_refused_messages_name_the_path(message_type: MessageType, message: Any, says: str) -> None:
    """One bad value deep in a message: without its path it is hard to find."""
    with pytest.raises(PublishMessageError, match=says):
        one_by_one(message_type, [message])
