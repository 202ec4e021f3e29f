"""What users declare of keyed state: schemas, types, and later versions of them; and what they may not do with it."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from broadsheet.consumer.keyed import (
    EventTime,
    JournalOutput,
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    TxnTime,
)
from broadsheet.consumer.keyed.ddl import parse_ddl
from broadsheet.consumer.keyed.output_rows import output_table
from broadsheet.consumer.keyed.row_types import StateRowType
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.consumer.keyed.watermark import WatermarkRules
from broadsheet.journals import NDJSON, JsonType, MappedJournal
from broadsheet.runtime.errors import ValidationError
from tests.support.documents import REPOSITORY, blocks_of
from tests.support.keyed_runs import Lives, settings_of

ROWS = "key string, n int"


class Point(msgspec.Struct, frozen=True):
    """A value as a Struct."""

    x: int
    y: float | None = None


@dataclass(frozen=True)
class Line:
    """A value as a dataclass, with others in it."""

    ends: list[Point]
    name: str


class Doing(KeyedProcessor):
    """Does what a test says."""

    def __init__(
        self,
        declare: Callable[[StateHandle], Any],
        do: Callable[[Any], Any] = lambda _: None,
    ) -> None:
        self._declare = declare
        self._do = do

    def init(self, state: StateHandle) -> None:
        """Declare."""
        self.state = self._declare(state)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Do."""
        del key, rows, time
        yield self._do(self.state)


def done(
    directory: Path, declare: Callable[[StateHandle], Any], *doing: Callable[[Any], Any]
) -> list[Any]:
    """Return what each function returns, one transaction and one life each."""
    out: list[Any] = []
    todo = list(doing)
    lives = Lives(
        directory,
        lambda: Doing(declare, lambda state: todo[0](state)),
        settings_of(ROWS, "key string"),
    )
    try:
        while todo:
            out += lives.transact([("a", 1)])
            todo.pop(0)
            lives.reopen()
    finally:
        lives.end()
    return out


def test_ddl_of_every_type_is_the_schema_that_spark_makes_of_it() -> None:
    """Users paste the schemas of their Spark jobs."""
    schema = parse_ddl(
        "a INT NOT NULL, `b c`: string COMMENT 'a, b', d decimal(10,2), e array<struct<x:bigint,y:map<string,date>>>,"
        " f timestamp, g timestamp_ntz, h varchar(3), i decimal, j tinyint"
    )

    assert schema == pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            ("b c", pa.string()),
            ("d", pa.decimal128(10, 2)),
            (
                "e",
                pa.list_(pa.struct([("x", pa.int64()), ("y", pa.map_(pa.string(), pa.date32()))])),
            ),
            ("f", pa.timestamp("us", "UTC")),
            ("g", pa.timestamp("us")),
            ("h", pa.string()),
            ("i", pa.decimal128(10, 0)),
            ("j", pa.int8()),
        ]
    )


REQUIRED_ITEMS = pa.schema([("a", pa.list_(pa.field("item", pa.int32(), nullable=False)))])


@pytest.mark.parametrize(
    "text", ["", "int", "a", "a int,", "a int b int", "a array<int", "a foo", "a int, a int", "a ;"]
)
def test_ddl_that_is_none_is_refused_with_its_text(text: str) -> None:
    """The error is read far from the schema."""
    with pytest.raises(ValidationError, match="expected"):
        parse_ddl(text)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (int, 5),
        (list[str], ["a", ""]),
        (Point, Point(1, 2.5)),
        (Line, Line([Point(1), Point(2, 0.5)], "l")),
        ("x int, y string", (1, None)),
        (pa.schema([("x", pa.list_(pa.int32()))]), ([1, None],)),
    ],
)
def test_state_of_each_kind_of_declaration_is_read_back_in_another_life(
    tmp_path: Path, declared: Any, value: Any
) -> None:
    """A value, an element of a list and an entry of a map: the same object comes back, and is a fresh one."""

    def declare(state: StateHandle) -> Any:
        return (
            state.value("v", declared),
            state.list("l", declared),
            state.map("m", "k string", declared),
        )

    def write(state: Any) -> None:
        state[0].update(value)
        state[1].append(value)
        state[2].put(("k",), value)

    def read(state: Any) -> Any:
        return state[0].get(), list(state[1].get()), dict(state[2].items())

    assert done(tmp_path, declare, write, read)[1] == (value, [value], {("k",): value})


@pytest.mark.parametrize(
    ("declared", "value", "error"),
    [
        ("n int", (1 << 31,), "v.n: .*2147483647"),
        ("n int", ("5",), "v.n: Expected `int"),
        ("n int", (True,), "v.n: .*bool"),
        ("n int, s string", (1,), "v: expected 2 fields"),
        ("n int", 5, "v: expected a tuple"),
        ("n int NOT NULL", (None,), "v.n: "),
        (Point, Line([], ""), "v: expected a Point, got Line"),
        (int, 1.5, "v.value: "),
        ("s string", ("\ud800",), "v.s: "),
        ("d decimal(10,2)", (Decimal("1.234"),), "v.d: .*8 digits before the point and 2 behind"),
        ("d decimal(10,2)", (Decimal(123456789),), "v.d: .*8 digits before the point"),
        ("d decimal(10,2)", (Decimal("1E+8"),), "v.d: .*8 digits before the point"),
        ("d decimal(10,2)", (Decimal("NaN"),), "v.d: .*NaN"),
        ("d array<decimal(3,1)>", ([None, Decimal("0.25")],), "v.d: .*1 behind"),
        ("d map<decimal(3,1),int>", ({Decimal("0.25"): 1},), "v.d: .*1 behind"),
        ("d map<int,decimal(3,1)>", ({1: Decimal("0.25")},), "v.d: .*1 behind"),
        ("d struct<e:decimal(3,1)>", ({"e": Decimal("0.25")},), "v.d.e: .*1 behind"),
        (Decimal, Decimal("1e-19"), "v.value: .*18 behind"),
    ],
)
def test_value_that_does_not_fit_is_refused_where_it_is_written(
    tmp_path: Path, declared: Any, value: Any, error: str
) -> None:
    """A wrong type that was stored as something else would be found weeks later."""
    with pytest.raises(ValidationError, match=error):
        done(tmp_path, lambda state: state.value("v", declared), lambda v: v.update(value))


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("d decimal(10,2)", (Decimal("1.230"),)),
        ("d decimal(10,2)", (Decimal("-99999999.99"),)),
        ("d decimal(10,2)", (Decimal("1E+7"),)),
        ("d decimal(10,2)", (Decimal("0E-9"),)),
        ("d decimal(10,2)", (None,)),
        ("d array<decimal(3,1)>", ([None, Decimal("9.5")],)),
        (Decimal, Decimal("1e-18")),
        (timedelta, timedelta(seconds=90)),
        (set[int], {1, 2}),
    ],
)
def test_value_that_state_takes_is_shown_in_a_column(declared: Any, value: Any) -> None:
    """One value that columns do not take would hide the rows of all keys from a scan."""
    declaration = StateRowType(declared)
    declaration.encode(value)

    (shown,) = pa.array([declaration.shown(value)], declaration.shown_type).to_pylist()

    if isinstance(declared, str):
        assert tuple(shown.values()) == value
    else:
        assert shown == (value if declared is Decimal else declaration.shown(value))


@pytest.mark.parametrize(
    ("written", "wanted", "value", "read"),
    [
        ("a int, b string", "b string, a int", (1, "x"), ("x", 1)),
        ("a int", "a int, b string", (1,), (1, None)),
        ("a int, b string", "b string", (1, "x"), ("x",)),
        ("a int", "a long", (1,), (1,)),
        ("a long", "a double", (3,), (3.0,)),
        ("a int", "a float", ((1 << 24) + 1,), (float(1 << 24),)),
        ("a long", "a float", (-3,), (-3.0,)),
        ("a float", "a double", (0.5,), (0.5,)),
        ("a string", "a binary", ("é",), ("é".encode(),)),
        ("a binary", "a string", (b"\xc3\xa9\xff",), ("é\ufffd",)),
        ("a string, b int", "a binary, b int", (None, 1), (None, 1)),
        (REQUIRED_ITEMS, "a array<int>", ([1, 2],), ([1, 2],)),
        ("a int, b string", "c int, b string, a int", (1, "x"), (None, "x", 1)),
        (Point, "x long, y double", Point(1, 2.0), (1, 2.0)),
    ],
)
def test_state_of_an_earlier_declaration_is_read_by_name(
    tmp_path: Path, written: Any, wanted: Any, value: Any, read: Any
) -> None:
    """A job is deployed again with other fields: its state goes on, in values and in lists; appends to a list of before
    keep both.
    """
    declared = [written, wanted, wanted]

    def declare(state: StateHandle) -> Any:
        each = declared.pop(0) if len(declared) > 1 else declared[0]
        return state.value("v", each), state.list("l", each)

    def write(state: Any) -> None:
        state[0].update(value)
        state[1].put([value, value])

    def append(state: Any) -> Any:
        state[1].append(read)
        return state[0].get(), list(state[1].get())

    found = done(tmp_path, declare, write, append)

    assert found[1] == (read, [read, read, read])


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (lambda state: state.value("v", "a string"), "v.a: expected int32 as it is stored"),
        (lambda state: state.value("v", "a smallint"), "v.a: "),
        (lambda state: state.value("v", "a int, b int NOT NULL"), "v.b: expected a nullable type"),
        (lambda state: state.value("v", "b int"), "v.b: expected the name a, as this field is"),
        (lambda state: state.value("v", "b long"), "v.b: expected the name a, as this field is"),
        (lambda state: state.value("v", "a boolean"), "v.a: expected int32 as it is stored"),
        (lambda state: state.value("v", "a array<int>"), "v.a: expected int32 as it is stored"),
        (lambda state: state.map("v", "k int", "a int"), "v: expected a ValueState, as it is"),
        (lambda state: state.list("v", "a int"), "v: expected a ValueState, as it is stored"),
    ],
)
def test_declaration_that_cannot_read_what_is_stored_is_refused_at_the_start(
    tmp_path: Path, wanted: Any, error: str
) -> None:
    """The error names variable and field before a single row is handled."""
    declared = [lambda state: state.value("v", "a int"), wanted]

    def declare(state: StateHandle) -> Any:
        return (declared.pop(0) if len(declared) > 1 else declared[0])(state)

    with pytest.raises(ValidationError, match=error):
        done(tmp_path, declare, lambda v: v.update((1,)), lambda _: None)


def test_rename_in_two_steps_is_a_removal_and_an_addition(tmp_path: Path) -> None:
    """Rows of all three versions are read by name: what was removed before is another field, not a renamed one."""
    declared = ["a int, b int", "b int", "c int, b int"]

    def declare(state: StateHandle) -> Any:
        return state.value("v", declared.pop(0) if len(declared) > 1 else declared[0])

    found = done(
        tmp_path, declare, lambda v: v.update((1, 2)), lambda v: v.get(), lambda v: v.get()
    )
    assert found[1:] == [(2,), (None, 2)]


def test_stored_item_of_a_list_must_not_become_required(tmp_path: Path) -> None:
    """Nulls may be stored in it, which the new type could not hold."""
    declared: list[Any] = ["a array<int>", REQUIRED_ITEMS]

    def declare(state: StateHandle) -> Any:
        return state.value("v", declared.pop(0) if len(declared) > 1 else declared[0])

    with pytest.raises(ValidationError, match=r"v\.a: expected list"):
        done(tmp_path, declare, lambda v: v.update(([1, None],)), lambda _: None)


def test_keys_of_other_types_than_those_stored_are_refused(tmp_path: Path) -> None:
    """Rows of one kind of key would be read as another, or not at all; another name of the same type is none."""

    def lives_with(key: str, rows: str) -> Lives:
        return Lives(tmp_path / "lives", lambda: Doing(lambda state: state), settings_of(rows, key))

    lives = lives_with(key="key string", rows=ROWS)
    try:
        lives.transact([("a", 1)])
        for key, rows, fits in (("k string", "k string", True), ("key int", "key int", False)):
            lives.settings = settings_of(rows, key)
            if fits:
                lives.reopen()
                continue
            with pytest.raises(ValidationError, match="key: expected the types string, as state"):
                lives.reopen()
    finally:
        lives.end()


def test_variables_and_timers_are_refused_outside_of_their_time(tmp_path: Path) -> None:
    """Without a key there is no state; without a kind of time no timers; and init is where variables are declared."""
    handles: list[StateHandle] = []

    def declare(state: StateHandle) -> Any:
        handles.append(state)
        value = state.value("v", int)
        with pytest.raises(ValidationError, match="there is no key"):
            value.get()
        with pytest.raises(ValidationError, match="no other variable has"):
            state.map("v", str, int)
        with pytest.raises(ValidationError, match="ttl_ms: expected a positive time"):
            state.value("w", int, ttl_ms=0)
        return state.timers

    def do(timers: Any) -> None:
        with pytest.raises(ValidationError, match="declared in init"):
            handles[0].value("late", int)
        with pytest.raises(ValidationError, match="time='processing'"):
            timers.register(5)

    assert done(tmp_path, declare, do) == [None]


def test_processor_attributes_of_a_transaction_do_not_outlive_it(tmp_path: Path) -> None:
    """What a handler remembers on the object would be lost at a fail-over, so it is lost at the next transaction."""

    class Remembering(KeyedProcessor):
        def init(self, state: StateHandle) -> None:
            del state
            self.seen = 0

        def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
            del rows, time
            self.seen += 1
            yield (*key, self.seen)

    lives = Lives(tmp_path, Remembering, settings_of(ROWS, "key string"))
    try:
        assert lives.transact([("b", 1), ("a", 1)]) == [("a", 1), ("b", 2)]
        assert lives.transact([("c", 1)]) == [("c", 1)]
    finally:
        lives.end()


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"key": "user string"}, "key.user: expected a column of the rows"),
        ({"key": "n string"}, "key.n: expected a column of the rows, of type string"),
        ({"key": "key text"}, "key: expected a type"),
        ({"time": "event"}, "event_time: expected one"),
        ({"event_time": EventTime(column="key")}, "event_time.column: expected a timestamp"),
        ({"rows": "tags array<string>", "key": "tags array<string>"}, "key.tags: expected a key"),
    ],
)
def test_application_whose_parts_do_not_fit_is_refused_when_it_is_made(
    parts: dict[str, Any], error: str
) -> None:
    """In the driver, where the user sees it, and not in a member's log."""
    described: dict[str, Any] = {"key": "key string", "rows": ROWS, **parts}
    with pytest.raises(ValidationError, match=error):
        KeyedApplication(lambda: Doing(lambda state: state), **described)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([("a", 1), ("b",)], "output: expected 2 fields"),
        ([("a", 1.5)], "output.n: expected int64"),
        ([("a", 1), (None, 2)], "output.key: expected no null"),
        (["a"], "output: expected a tuple"),
    ],
)
def test_output_that_does_not_fit_names_its_column(rows: list[Any], error: str) -> None:
    """The handler is the user's: the error says which column of its output is wrong."""
    with pytest.raises(ValidationError, match=error):
        output_table(rows, StateRowType("key string NOT NULL, n long"))


def test_output_of_a_class_is_columns_of_its_fields() -> None:
    """Handlers may yield objects of the declared class."""
    table = output_table([Point(1), Point(2, 0.5)], StateRowType(Point))

    assert table.to_pydict() == {"x": [1, 2], "y": [None, 0.5]}
    assert JournalOutput(MappedJournal("out", NDJSON), JsonType(), Point).schema is Point


def test_application_of_the_document_ends_a_visit_half_an_hour_after_its_last_click(
    tmp_path: Path,
) -> None:
    """Somebody copies it: its processor and its declarations must work as they stand."""
    (block,) = blocks_of(REPOSITORY / "docs" / "keyed.md")
    source = tmp_path / "visits.py"
    source.write_text(block.code)
    document = runpy.run_path(str(source))
    assert isinstance(document["application"], KeyedApplication)
    rules = WatermarkRules(delay_ms=60_000, max_future_ms=1 << 62)
    parts = settings_of(
        "user string, at timestamp", "user string", mode=TimeMode.EVENT, rules=rules
    )
    lives = Lives(tmp_path / "log", document["Visits"], parts)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    minutes = [timedelta(minutes=each) for each in (0, 20, 40, 72)]
    try:
        assert lives.transact([("a", noon + minutes[0]), ("a", noon + minutes[1])]) == []
        assert lives.transact([("a", noon + minutes[2])]) == []
        assert lives.transact([("b", noon + minutes[3])]) == []
        assert lives.transact() == [("a", 3)]
    finally:
        lives.end()
