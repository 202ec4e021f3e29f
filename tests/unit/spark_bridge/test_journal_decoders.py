"""Messages into Arrow: types, holes, what the journal says of them, and what does not fit."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
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
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.uuid import build_uuid, clock_at, format_uuid
from broadsheet.spark_bridge.content.arrow import ArrowDecoder
from broadsheet.spark_bridge.content.csv import CsvDecoder
from broadsheet.spark_bridge.content.json import JsonDecoder, infer_json
from broadsheet.spark_bridge.content.protobuf import ProtobufDecoder
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.byte_runs import ContentBuffer, FetchedContent
from broadsheet.spark_bridge.journal_source.columns import METADATA_TYPES, RowColumns, with_metadata
from broadsheet.spark_bridge.journal_source.message_types import columns_of, load_message_class

SECOND = 1_700_000_000
UUID = build_uuid(0xA1B2C3D4E5F6, clock_at(SECOND * 10**9), 1)


def columns(**types: DataType) -> RowColumns:
    """Return columns by name."""
    schema = StructType([StructField(name, kind) for name, kind in types.items()])
    return RowColumns(schema, include_metadata=False)


def columns_and_metadata(**types: DataType) -> RowColumns:
    """Return columns by name, and those of the journal."""
    return RowColumns(with_metadata(columns(**types).schema), include_metadata=True)


def content(data: bytes, *, offset: int = 0) -> FetchedContent:
    """Return content that stands in one piece."""
    return FetchedContent("a/b", data, np.array([0]), np.array([offset]))


def decoded(text: str, kind: DataType, *, permissive: bool = False) -> Any:
    """Return the value of a column `x` of one JSON message."""
    decoder = JsonDecoder(columns(x=kind), permissive=permissive)
    return decoder.decode(content(b'{"x":%s}\n' % text.encode())).column(0)[0].as_py()


NESTED = StructType([StructField("a", LongType()), StructField("when", DateType())])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("12", LongType(), 12),
        ("12.0", IntegerType(), 12),
        ("1e3", IntegerType(), 1000),
        ("null", LongType(), None),
        ("1", DoubleType(), 1.0),
        ('"Infinity"', DoubleType(), float("inf")),
        ("true", BooleanType(), True),
        ('"12.345"', DecimalType(10, 2), Decimal("12.35")),
        ("12.3", DecimalType(10, 2), Decimal("12.30")),
        (r'"a\u00e9\n"', StringType(), "aé\n"),
        ("12.50", StringType(), "12.50"),
        ('{"a": [1]}', StringType(), '{"a": [1]}'),
        (
            '"2026-03-01T02:00:00.5+02:00"',
            TimestampType(),
            datetime(2026, 3, 1, 0, 0, 0, 500_000, UTC),
        ),
        ('"2026-03-01"', TimestampType(), datetime(2026, 3, 1, tzinfo=UTC)),
        ('"2026-03-01 10:00:00"', TimestampNTZType(), datetime(2026, 3, 1, 10)),  # noqa: DTZ001 - it has none
        ('"2026-03-01"', DateType(), date(2026, 3, 1)),
        ('"AAEC"', BinaryType(), b"\0\1\2"),
        ("[1,null]", ArrayType(LongType()), [1, None]),
        ('{"k":1.5,"l":null}', MapType(StringType(), DoubleType()), [("k", 1.5), ("l", None)]),
        ('{"a":1,"when":"2026-03-01","z":0}', NESTED, {"a": 1, "when": date(2026, 3, 1)}),
    ],
)
def test_json_value_becomes_the_columns_type(text: str, kind: DataType, value: object) -> None:
    """Plan: a value of each type, of both ways of reading. Why: what Spark's own JSON source reads must be read."""
    assert decoded(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("1.5", LongType(), "a whole number, got 1.5"),
        ("1e999999999", LongType(), "a whole number"),
        ("99999", ShortType(), "a whole number of 16 bits"),
        ('"x"', DoubleType(), "a number"),
        ('"x"', TimestampType(), "expected a timestamp"),
        ("1", BooleanType(), "bool"),
        ("12345", DecimalType(4, 1), "decimal"),
        ("[]", NESTED, "object"),
    ],
)
def test_value_that_does_not_fit_is_refused_or_null(text: str, kind: DataType, said: str) -> None:
    """Plan: strict and permissive. Why: one wrong message must be found, or passed over if so wished."""
    with pytest.raises(FramingError, match=f"column x: .*{said}"):
        decoded(text, kind)
    assert decoded(text, kind, permissive=True) is None
    assert decoded("{,}", kind, permissive=True) is None


values = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "f": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5) | st.none(),
        "s": st.text(st.characters(exclude_categories=["Cs"])) | st.none(),
        "b": st.booleans(),
        "t": st.datetimes(timezones=st.just(UTC), min_value=datetime(1700, 1, 1)).map(  # noqa: DTZ001
            lambda t: t.isoformat()
        ),
        "l": st.lists(st.integers(-9, 9) | st.none(), max_size=3),
        "o": st.fixed_dictionaries({}, optional={"s": st.text(max_size=3), "other": st.none()}),
    },
)


@given(st.lists(values, min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_both_ways_of_reading_json_agree(messages: list[dict[str, Any]]) -> None:
    """Plan: messages that Arrow reads, and the same with a map beside, which it does not read.

    Why: which way a batch goes depends on its other messages.
    """
    kinds: dict[str, DataType] = {
        "i": LongType(),
        "f": DoubleType(),
        "s": StringType(),
        "b": BooleanType(),
        "t": TimestampType(),
        "l": ArrayType(LongType()),
        "o": StructType([StructField("s", StringType())]),
    }
    lines = content(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))
    at_once = JsonDecoder(columns(**kinds), permissive=False).decode(lines)
    map_kind = MapType(StringType(), StringType())
    one_by_one = JsonDecoder(columns(**kinds, m=map_kind), permissive=False).decode(lines)

    assert at_once.to_pylist() == one_by_one.drop_columns(["m"]).to_pylist()


def _line(number: int) -> bytes:
    return b'{"_meta":{"uuid":"%s"},"n":%d}\n' % (format_uuid(UUID).encode(), number)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"x":1,"x":2}', 2.0),
        (b'{"x":1,"\\u0078":2}', 2.0),
        (b'{"x":NaN}', None),
        (b'{"x":-Infinity}', None),
        (b'\xef\xbb\xbf{"x":1}', None),
        (b'{"y":"\\ud800","x":1}', None),
    ],
)
def test_a_message_is_read_alike_whatever_its_neighbours(line: bytes, value: float | None) -> None:
    """Duplicate keys, NaN without quotes, a byte order mark: the way of reading depends on the other messages of a
    batch, and what is read must not.
    """
    # By columns; and value by value, which this text asks for.
    for more in (b"", b'{"x":"Infinity"}\n'):
        decoder = JsonDecoder(columns(x=DoubleType()), permissive=False)
        whole = content(line + b"\n" + more)
        if value is None:
            with pytest.raises(FramingError, match=r"byte order|surrogate|malformed"):
                decoder.decode(whole)
        else:
            assert decoder.decode(whole).column(0)[0].as_py() == value


def test_inferred_columns_round_no_integer() -> None:
    """Integers beyond BIGINT: as DOUBLE they would be read as other numbers, in silence."""
    lines = b'{"n":1,"of":{"big":9223372036854775809}}\n'

    with pytest.raises(OptionError, match=r"DECIMAL.* of\.big is the integer 9223372036854775809"):
        infer_json([lines], True)


def test_metadata_says_where_each_message_stands() -> None:
    """Plan: two runs apart, in three pieces, one of them cut within a line. Why: a join uses these places as keys."""
    lines = [_line(1), _line(22), _line(333)]
    rest = lines[1] + lines[2]
    buffer = ContentBuffer("a/b", JsonDecoder.whole_bytes)
    buffer.add(50, lines[0])
    buffer.add(1000, rest[:70])
    decoder = JsonDecoder(columns_and_metadata(n=LongType()), permissive=False)

    batches = [decoder.decode(buffer.take())]
    buffer.add(1070, rest[70:])
    batches.append(decoder.decode(buffer.take()))

    assert buffer.size_bytes == 0
    rows = [row for batch in batches for row in batch.to_pylist()]
    ends = [50 + len(lines[0]), 1000 + len(lines[1]), 1000 + len(rest)]
    assert [(row["n"], row["_begin"], row["_end"]) for row in rows] == [
        (1, 50, ends[0]),
        (22, 1000, ends[1]),
        (333, ends[1], ends[2]),
    ]
    assert {row["_journal"] for row in rows} == {"a/b"}
    assert {row["_uuid"] for row in rows} == {format_uuid(UUID)}
    assert {row["_producer"] for row in rows} == {"a1b2c3d4e5f6"}
    assert {row["_published_at"] for row in rows} == {datetime.fromtimestamp(SECOND, UTC)}


def test_message_without_uuid_has_no_metadata_of_one() -> None:
    """Plan: two lines, one without. Why: whoever opts out of sequencing has neither producer nor time."""
    decoder = JsonDecoder(columns_and_metadata(), permissive=False)
    rows = decoder.decode(content(b"{}\n" + _line(1))).to_pylist()
    assert [row["_uuid"] is None for row in rows] == [True, False]
    assert [row["_published_at"] is None for row in rows] == [True, False]
    assert [row["_producer"] for row in rows] == [None, "a1b2c3d4e5f6"]


def test_error_names_the_messages_offset() -> None:
    """Plan: the third message is wrong. Why: it must be found among millions."""
    lines = [b'{"x":1}\n', b'{"x":2}\n', b'{"x":"a"}\n', b'{"x":3}\n']
    decoder = JsonDecoder(columns(x=LongType()), permissive=False)
    with pytest.raises(FramingError, match=r"a/b.*116.*column x"):
        decoder.decode(content(b"".join(lines), offset=100))


def test_metadata_must_have_its_columns() -> None:
    """Plan: asked for beside a schema without them, and with a wrong type. Why: Spark only says that they differ."""
    with pytest.raises(OptionError, match="includeMetadata: expected columns _begin"):
        RowColumns(StructType([StructField("x", LongType())]), include_metadata=True)
    with pytest.raises(OptionError, match="column _begin of type bigint"):
        RowColumns(StructType([StructField("_begin", StringType())]), include_metadata=False)
    with pytest.raises(OptionError, match="no column _end"):
        with_metadata(StructType([StructField("_end", LongType())]))


def test_protobuf_messages_become_columns() -> None:
    """Plan: a class with nested, repeated and unset fields. Why: its columns are found by themselves."""
    name = "broadsheet.wire.journal_pb2:AppendRequest"
    found = load_message_class(name)
    kinds = {f.name: f.dataType for f in columns_of(found, uuid_field="content")}
    assert kinds["journal"] == StringType()
    assert isinstance(kinds["header"], StructType)
    from broadsheet.wire.journal_pb2 import AppendRequest, Header, Label, Route

    messages = [
        AppendRequest(journal="a/one", offset=3),
        AppendRequest(journal="a/two", header=Header(route=Route(endpoints=["x", "y"]))),
    ]
    messages[0].union_registers.labels.append(Label(name="k", value="v"))
    frames = b"".join(FixedFraming().frame(each.SerializeToString()) for each in messages)
    wanted = columns(**kinds, absent=LongType())
    decoder = ProtobufDecoder(wanted, AppendRequest, uuid_field="content")

    rows = decoder.decode(content(frames)).to_pylist()

    assert [row["journal"] for row in rows] == ["a/one", "a/two"]
    assert rows[0]["union_registers"]["labels"][0]["value"] == "v"
    assert rows[0]["header"] is None
    assert rows[1]["header"]["route"]["endpoints"] == ["x", "y"]
    assert rows[1]["absent"] is None


class Leg(msgspec.Struct):
    """Part of a message."""

    origin: str
    minutes: int | None = None


class Trip(msgspec.Struct):
    """A message."""

    legs: list[Leg] = []
    fares: dict[str, float] = {}
    when: datetime | None = msgspec.field(name="at", default=None)
    meta: dict[str, str] = msgspec.field(name="_meta", default_factory=dict)


def test_struct_messages_have_columns() -> None:
    """Plan: nested, optional and renamed fields. Why: columns are named as in JSON, and the UUID is none of them."""
    assert columns_of(Trip, uuid_field="uuid").simpleString() == (
        "struct<legs:array<struct<origin:string,minutes:bigint>>,fares:map<string,double>,at:timestamp>"
    )


@pytest.mark.parametrize(
    "name", ["no.such.module:X", "json:nothing", "json:dumps", "json:JSONDecoder"]
)
def test_wrong_message_type_is_refused(name: str) -> None:
    """Plan: absent modules, absent names, other things. Why: the error comes out of another process."""
    assert callable(json.dumps)
    with pytest.raises(OptionError, match="messageType: expected module:attribute"):
        load_message_class(name)


def test_arrow_messages_become_rows() -> None:
    """Plan: two messages of two rows and one, with a column less. Why: a message holds as many rows as it likes."""
    payloads = []
    for rows in ({"n": [1, 2], "s": ["a", "b"]}, {"n": [3]}):
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_pydict(rows)
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        payloads.append(UUID + sink.getvalue().to_pybytes())
    frames = [FixedFraming().frame(payload) for payload in payloads]
    decoder = ArrowDecoder(columns_and_metadata(n=LongType(), s=StringType()))

    rows = decoder.decode(content(b"".join(frames), offset=10)).to_pylist()

    first = 10 + len(frames[0])
    assert [(r["n"], r["s"], r["_begin"], r["_end"]) for r in rows] == [
        (1, "a", 10, first),
        (2, "b", 10, first),
        (3, None, first, first + len(frames[1])),
    ]
    assert {row["_uuid"] for row in rows} == {format_uuid(UUID)}
    assert METADATA_TYPES.keys() <= rows[0].keys()


def test_csv_records_become_rows() -> None:
    """Plan: quotes, a line end within a string, an empty string, null, and each type. Why: so the sink writes them."""
    uuid = format_uuid(UUID)
    records = [
        f'{uuid},1,"a, ""b""\nc",1.5,true,2026-03-01,"2026-03-01T00:00:00.500000Z","AAEC",1.20\n',
        f'{uuid},,"",,,,,,\n',
    ]
    decoder = CsvDecoder(
        columns_and_metadata(
            n=LongType(),
            s=StringType(),
            f=DoubleType(),
            b=BooleanType(),
            d=DateType(),
            t=TimestampType(),
            x=BinaryType(),
            m=DecimalType(10, 2),
        )
    )
    data = "".join(records).encode()
    assert decoder.whole_bytes(data + b'x,"\n') == len(data)

    rows = decoder.decode(content(data, offset=7)).to_pylist()

    assert list(rows[0].values())[:8] == [
        1,
        'a, "b"\nc',
        1.5,
        True,
        date(2026, 3, 1),
        datetime(2026, 3, 1, 0, 0, 0, 500_000, UTC),
        b"\0\1\2",
        Decimal("1.20"),
    ]
    assert list(rows[1].values())[:8] == [None, "", None, None, None, None, None, None]
    assert [row["_begin"] for row in rows] == [7, 7 + len(records[0])]
    assert {row["_uuid"] for row in rows} == {uuid}
    with pytest.raises(FramingError, match="there or after"):
        decoder.decode(content(f"{uuid},1,2\n".encode()))
    with pytest.raises(OptionError, match="no lists, maps or structs"):
        CsvDecoder(columns(x=ArrayType(LongType())))
