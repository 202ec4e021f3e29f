"""Whole queries of hosted processors: Spark's own test cases, order, times, rows and output, in both modes."""

from __future__ import annotations

import math
import runpy
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd  # type: ignore[import-untyped]  # it ships no types
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError, PySparkTypeError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from broadsheet.consumer.keyed import EventTime
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.keyed import HostingOptions, InitialState
from tests.support.documents import REPOSITORY, blocks_of
from tests.support.hosted_runs import HostedLives
from tests.support.keyed_runs import SteppedClock
from tests.support.spark_processors import (
    Alarmed,
    Composite,
    Expiring,
    Grown,
    LatestTime,
    Listed,
    Mapped,
    Summed,
    TwoModes,
    Violations,
)

F1 = [("0", 123), ("0", 46), ("1", 146), ("1", 346)]
F2 = [("0", 123), ("0", 223), ("0", 323), ("1", 246), ("1", 6)]
F3 = [("0", 123), ("1", 6)]
both_modes = pytest.mark.parametrize("in_pandas", [False, True], ids=["rows", "pandas"])


def query(directory: Path, processor: TwoModes, **parts: Any) -> HostedLives:
    """Return a shard that hosts a processor of readings (id, temperature), with output (id, n)."""
    given = {
        "key": "id",
        "inputSchema": "id string, temperature int",
        "outputStructType": ", ".join(
            f"{name} {'string' if name in ('id', 'n') else 'int'}" for name in processor.columns
        ),
        "outputMode": "Update",
        "inPandas": processor.in_pandas,
        **parts,
    }
    return HostedLives(directory, processor=processor, **given)


@pytest.fixture
def ends() -> Iterator[list[HostedLives]]:
    """Lives that end with the test."""
    lives: list[HostedLives] = []
    yield lives
    for each in lives:
        each.end()


# -- Spark's own processors


@both_modes
@pytest.mark.parametrize("restarts", [False, True])
def test_counts_of_rows_and_violations_are_sparks(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool, restarts: bool
) -> None:
    """The first of Spark's own test processors, with a variable that it removes; also with a restart."""
    lives = query(tmp_path, Violations(in_pandas=in_pandas))
    ends.append(lives)
    assert lives.batch(*F1) == [("0", "2"), ("1", "2")]
    assert _committed(lives, "numViolations", "0") == (1,)
    assert _committed(lives, "numViolations", "1") == (2,)
    if restarts:
        lives.reopen()
    assert lives.batch(*F2) == [("0", "3"), ("1", "2")]
    assert _committed(lives, "numViolations", "0") == (4,)
    assert _committed(lives, "numViolations", "1") == (3,)


def _committed(lives: HostedLives, name: str, key: str) -> Any:
    return lives.run.committed(name, (key,))


@both_modes
def test_initial_state_comes_before_the_first_rows_and_once(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool
) -> None:
    """State begins with the given rows, also for keys without input; a later start goes on from its own state."""
    initial = [Row(id="0", initVal=789), Row(id="3", initVal=987)]
    lives = query(tmp_path, Summed(in_pandas=in_pandas), initialState=initial)
    ends.append(lives)
    assert lives.run.next_txn_after() == 0.0
    assert lives.batch(*F1) == [("0", "958"), ("1", "492")]
    lives.reopen()
    assert lives.run.next_txn_after() is None
    assert lives.batch(("0", 67), ("3", 12)) == [("0", "1025"), ("3", "999")]


@both_modes
def test_timers_of_initial_state_fire_in_the_first_batch(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool
) -> None:
    """A timer that initial state registers in the past fires after the rows of the same batch, and never later."""
    lives = query(
        tmp_path,
        Summed(in_pandas=in_pandas, with_timers=True),
        initialState=pd.DataFrame({"id": ["0", "3"], "initVal": [789, 987]}),
        timeMode="ProcessingTime",
    )
    ends.append(lives)
    expired = [("0", "0-expired"), ("3", "3-expired")]
    assert lives.batch(*F1) == [("0", "958"), ("1", "492"), *expired]
    lives.clock.now_ms += 1_000
    assert lives.batch(("0", 67), ("3", 12)) == [("0", "1025"), ("3", "999")]


@both_modes
def test_event_time_drops_late_rows_and_fires_by_the_watermark(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool
) -> None:
    """Spark's own case of event time: the row at 2 s is late when the watermark is 10 s, one batch behind."""
    lives = query(
        tmp_path,
        LatestTime(in_pandas=in_pandas),
        inputSchema="id string, at timestamp",
        timeMode="eventTime",
        eventTime="at",
        delay="10 seconds",
    )
    ends.append(lives)
    assert lives.batch(("a", _at(20))) == [("a", "20"), ("a-expired", "0")]
    assert lives.batch(("a", _at(4))) == [("a", "4"), ("a-expired", "10000")]
    rows = [("a", _at(each)) for each in (2, 11, 13, 15)]
    assert lives.batch(*rows) == [("a", "15"), ("a-expired", "10000")]


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@both_modes
@pytest.mark.parametrize(("mode", "watermark"), [("None", -1), ("ProcessingTime", 10_000)])
def test_other_modes_drop_nothing_though_there_is_a_watermark(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool, mode: str, watermark: int
) -> None:
    """Only event time drops late rows. In mode None handlers see -1 for both times."""
    seen: list[tuple[int, int]] = []

    class Earliest(TwoModes):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            times = (
                timerValues.getCurrentProcessingTimeInMs(),
                timerValues.getCurrentWatermarkInMs(),
            )
            seen.append(times)
            yield from self.emitted((key[0], str(min(row.at.second for row in self.taken(rows)))))

        def close(self) -> None:
            pass

    lives = HostedLives(
        tmp_path,
        processor=lambda: Earliest(in_pandas=in_pandas),
        key="id",
        inputSchema="id string, at timestamp",
        outputStructType="id string, n string",
        timeMode=mode,
        eventTime="at",
        delay="10 seconds",
        inPandas=in_pandas,
    )
    ends.append(lives)
    found = [lives.batch(*[("a", _at(each)) for each in batch]) for batch in ((20,), (4,), (2, 15))]
    assert found == [[("a", "20")], [("a", "4")], [("a", "2")]]
    assert seen[-1] == ((-1, -1) if mode == "None" else (1_000, watermark))


@both_modes
def test_processing_time_timers_fire_in_a_later_batch_than_their_own(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool
) -> None:
    """Spark's own case: a timer a millisecond ahead fires in the next batch, after its rows."""
    lives = query(tmp_path, Alarmed(in_pandas=in_pandas), timeMode="processingTime")
    ends.append(lives)
    assert lives.batch(*F3) == [("0", "1"), ("1", "1")]
    lives.clock.now_ms += 1_000
    assert lives.batch(*F1) == [("0", "3"), ("1", "3"), ("0", "-1")]
    lives.clock.now_ms += 1_000
    assert lives.batch(*F2) == [("0", "3"), ("1", "5"), ("0", "-1")]


@both_modes
def test_ttl_is_set_by_writes_and_never_by_reads(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool
) -> None:
    """Spark's own case of TTL: what was not written for ten seconds is gone, in a value, a list and a map alike."""
    lives = query(
        tmp_path,
        Expiring(in_pandas=in_pandas),
        timeMode="ProcessingTime",
        outputStructType="id string, n int, l int, m int, plain int",
    )
    ends.append(lives)
    assert lives.batch(("0", 1), ("1", 1)) == [("0", 1, 1, 1, 1), ("1", 1, 1, 1, 1)]
    lives.clock.now_ms += 6_000
    assert lives.batch(("0", 0), ("1", 1)) == [("0", 2, 2, 2, 2), ("1", 2, 2, 2, 2)]
    lives.clock.now_ms += 5_000
    assert lives.batch(("0", 1), ("1", 1)) == [("0", 1, 1, 1, 3), ("1", 3, 2, 3, 3)]
    lives.reopen()
    lives.clock.now_ms += 9_999
    assert lives.batch(("1", 1)) == [("1", 4, 2, 4, 4)]


@both_modes
@pytest.mark.parametrize("processor", [Listed, Mapped])
def test_lists_and_maps_are_sparks(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool, processor: type[TwoModes]
) -> None:
    """Spark's own cases of lists and maps, with several iterators at once; they assert what they read."""
    lives = query(tmp_path, processor(in_pandas=in_pandas))
    ends.append(lives)
    assert lives.batch(*F1) == [("0", "2"), ("1", "2")]
    lives.reopen()
    assert lives.batch(*F2) == [("0", "3"), ("1", "2")]


@both_modes
def test_a_large_list_grows_by_put_and_by_append(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool
) -> None:
    """A list beyond one fetch of Spark's, with null fields."""
    lives = query(tmp_path, Grown(in_pandas=in_pandas))
    ends.append(lives)
    assert lives.batch(*F3) == [("0", "100"), ("1", "100")]
    assert lives.batch(*F3) == [("0", "190"), ("1", "190")]


@both_modes
def test_composite_types_in_state_survive(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool
) -> None:
    """Structs, arrays and maps of maps in a value, a list and a map come back, also after a restart."""
    lives = query(tmp_path, Composite(in_pandas=in_pandas))
    ends.append(lives)
    lives.batch(*F3)
    lives.reopen()
    (found, _) = lives.batch(*F1)
    value = ([123, 169], [Row(k="t", v=0), Row(k="t", v=1)], {"c0": {"a": 1}, "c1": {"a": 1}})
    assert found == ("0", repr([value, [0, 1], {"key0": [123], "key1": [123, 46]}]))


def test_large_values_are_read_back(tmp_path: Path, ends: list[HostedLives]) -> None:
    """Half a megabyte in a value, in each element of a list and in a map."""

    class Large(TwoModes):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.v = handle.getValueState("v", "s string")
            self.l = handle.getListState("l", "s string")
            self.m = handle.getMapState("m", "k string", "s string")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            text = "v" * (512 << 10)
            if not self.v.exists():
                self.v.update((text,))
                self.l.put([(text,)] * 3)
                self.m.updateValue((text,), (text,))
            assert self.v.get() == (text,)
            assert list(self.l.get()) == [(text,)] * 3
            assert list(self.m.iterator()) == [((text,), (text,))]
            yield from self.emitted((key[0], "read"))

    lives = query(tmp_path, Large())
    ends.append(lives)
    assert [lives.batch(*F3) for _ in range(2)] == [[("0", "read"), ("1", "read")]] * 2


# -- order, keys and rows


class Echo(StatefulProcessor):
    """Emits what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, list[Any]]] = []

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Count over keys, in an attribute."""
        self.n = 0
        self.kept = handle.getValueState("kept", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        """Return a list, which Spark takes too."""
        self.n += 1
        return [Row(key=repr(key), rows=repr(list(rows)), n=self.n)]

    def close(self) -> None:
        """Nothing is open."""


ECHO: dict[str, Any] = {"outputStructType": "key string, rows string, n int"}


def test_keys_come_in_order_nulls_first_and_attributes_last_a_batch(
    tmp_path: Path, ends: list[HostedLives]
) -> None:
    """Keys ascend by bytes of UTF-8, null before all; rows keep their order; attributes last a batch."""
    lives = HostedLives(
        tmp_path, processor=Echo(), key=["b", "a"], inputSchema="a string, n int, b int", **ECHO
    )
    ends.append(lives)
    rows = [("é", 1, 2), ("z", 2, 2), (None, 3, 2), ("z", 4, 2), ("a", 5, None), ("", 6, -1)]
    found = lives.batch(*rows)
    keys = ["(None, 'a')", "(-1, '')", "(2, None)", "(2, 'z')", "(2, 'é')"]
    assert [row[0] for row in found] == keys
    assert found[3][1] == "[Row(a='z', n=2, b=2), Row(a='z', n=4, b=2)]"
    assert [row[2] for row in found] == [1, 2, 3, 4, 5]
    assert lives.batch(("a", 1, 1))[0][2] == 1, "what handlers set is gone with the batch"


def test_floating_point_keys_are_grouped_by_value(tmp_path: Path, ends: list[HostedLives]) -> None:
    """0.0 and -0.0 are one key, and all NaN are one call, which is one of the stated differences."""
    lives = HostedLives(tmp_path, processor=Echo(), key="x", inputSchema="x double", **ECHO)
    ends.append(lives)
    found = lives.batch((math.nan,), (0.0,), (-0.0,), (math.nan,), (-1.5,))
    assert [row[0] for row in found] == ["(-1.5,)", "(0.0,)", "(nan,)"]


def test_rows_have_the_types_of_sparks_workers(tmp_path: Path, ends: list[HostedLives]) -> None:
    """Rows are Spark's, by name and place; timestamps are aware, maps are pairs, structs dicts."""
    seen: list[Any] = []

    class Look(Echo):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            seen.append((key, list(rows)))
            return iter(())

    schema = (
        "k timestamp, t timestamp, z timestamp_ntz, d date, c decimal(10,2), b binary, a array<int>"
    )
    schema += ", m map<string,int>, s struct<x:int>, `odd name` boolean"
    options = HostingOptions(time_zone="Asia/Tokyo", clock=SteppedClock())
    lives = HostedLives(
        tmp_path, processor=lambda: Look(), key="k", inputSchema=schema, options=options, **ECHO
    )
    ends.append(lives)
    naive = datetime(2020, 1, 1)  # noqa: DTZ001
    row = (
        _at(0),
        _at(0),
        naive,
        date(2020, 1, 1),
        Decimal("1.50"),
        b"b",
        [1],
        {"a": 1},
        {"x": 1},
        True,
    )
    lives.batch(row)
    (key,), (found,) = seen[0]
    tokyo = _at(0).astimezone(ZoneInfo("Asia/Tokyo"))
    assert (key, found.t) == (tokyo, tokyo)
    assert found.t.utcoffset() == timedelta(hours=9)
    assert isinstance(found, Row)
    assert found[2:] == (
        naive,
        date(2020, 1, 1),
        Decimal("1.50"),
        b"b",
        [1],
        [("a", 1)],
        {"x": 1},
        True,
    )
    assert found["odd name"] is True
    assert found.asDict()["s"] == {"x": 1}


def test_frames_have_the_types_of_sparks_workers(tmp_path: Path, ends: list[HostedLives]) -> None:
    """Frames are as Spark makes them from rows: widest types, naive local timestamps, an index from 0, in chunks."""
    seen: list[Any] = []

    class Look(Echo):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            seen.append((key, list(rows)))
            return iter(())

    options = HostingOptions(time_zone="Asia/Tokyo", rows_max=2, clock=SteppedClock())
    lives = HostedLives(
        tmp_path,
        processor=lambda: Look(),
        key="k",
        inputSchema="k int, f float, n int, t timestamp, b boolean, m map<string,int>, a array<int>",
        inPandas=True,
        options=options,
        **ECHO,
    )
    ends.append(lives)
    lives.batch(
        (1, 0.5, 1, _at(0), True, {"a": 1}, [1]),
        (2, 0.5, None, None, None, None, None),
        (1, 0.5, 2, _at(1), False, {"b": 2}, [2]),
        (1, 0.5, 3, _at(2), True, {}, []),
    )
    (key, frames), (other, _) = seen
    assert (key, other, [len(each) for each in frames]) == ((1,), (2,), [2, 1])
    first, second = frames
    types = {name: str(type_) for name, type_ in first.dtypes.items()}
    assert types == {
        "k": "int64",
        "f": "float64",
        "n": "float64",
        "t": "datetime64[ns]",
        "b": "bool",
        "m": "object",
        "a": "object",
    }
    assert list(second.index) == [0]
    assert first.at[0, "t"] == pd.Timestamp("1970-01-01 09:00")
    assert first.at[1, "m"] == {"b": 2}


# -- output


class Emits(TwoModes):
    """Emits what a test gives it."""

    def __init__(self, *given: Any, in_pandas: bool = False) -> None:
        super().__init__(in_pandas=in_pandas)
        self.given = given

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        """Emit it; None itself if there is nothing."""
        return iter(self.given) if self.given else None


def emitted(directory: Path, *given: Any, in_pandas: bool = False, schema: str) -> Any:
    """Return the output of these rows or frames."""
    lives = query(directory, Emits(*given, in_pandas=in_pandas), outputStructType=schema)
    try:
        return lives.batch(("a", 1))
    finally:
        lives.end()


def test_rows_become_columns_by_name_as_in_spark(tmp_path: Path) -> None:
    """Order is free, a missing field is null, an unknown one is left out, a fraction is cut off; nothing is checked for
    null.
    """
    rows = [Row(n=1, s="a"), Row(s="b", n=2), Row(s="c"), Row(n=1.5, other=1), Row(n=None, s=None)]
    found = emitted(tmp_path, *rows, schema="s string, n long not null")
    assert found == [("a", 1), ("b", 2), ("c", None), (None, 1), (None, None)]
    nested = emitted(
        tmp_path / "b",
        Row(s=Row(a=1), l=[Row(a=2)]),
        schema="s struct<a:int>, l array<struct<a:int>>",
    )
    assert nested == [({"a": 1}, [{"a": 2}])]


@pytest.mark.parametrize(
    ("given", "raises", "error"),
    [
        (("a", 1), AttributeError, "asDict"),
        ({"s": "a"}, AttributeError, "asDict"),
        (Row("a", "1"), PySparkTypeError, "CANNOT_CONVERT_TYPE"),
        (Row(s=1), pa.ArrowTypeError, "Expected bytes"),
        (Row(n=2**31), pa.ArrowInvalid, "too large to fit"),
    ],
)
def test_rows_that_do_not_fit_the_output_fail_as_in_spark(
    tmp_path: Path, given: Any, raises: type[Exception], error: str
) -> None:
    """What Spark's worker raises, of the same class."""
    with pytest.raises(raises, match=error):
        emitted(tmp_path, given, schema="s string, n int")


@both_modes
def test_a_handler_that_returns_none_fails_as_in_spark(tmp_path: Path, in_pandas: bool) -> None:
    """A handler returns an iterable; one without a return statement fails at once, in both."""
    with pytest.raises(TypeError, match="'NoneType' object is not iterable"):
        emitted(tmp_path, in_pandas=in_pandas, schema="n int")


def test_frames_become_columns_by_name_or_position_as_in_spark(tmp_path: Path) -> None:
    """Labels of text go by name and others by place; more columns are dropped; a frame without any is nothing."""
    frames = [
        pd.DataFrame({"n": [1, 2], "s": ["a", "b"], "other": [0, 0]}),
        pd.DataFrame(),
        pd.DataFrame([["c", 3.0]]),
        pd.DataFrame({"s": [None], "n": [None]}),
    ]
    found = emitted(tmp_path, *frames, in_pandas=True, schema="s string, n long")
    assert found == [("a", 1), ("b", 2), ("c", 3), (None, None)]
    times = pd.DataFrame({"t": [pd.Timestamp("2020-01-01")], "z": [pd.Timestamp("2020-01-01")]})
    found = emitted(tmp_path / "b", times, in_pandas=True, schema="t timestamp, z timestamp_ntz")
    assert found == [(datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1))]  # noqa: DTZ001


@pytest.mark.parametrize(
    ("given", "raises", "error"),
    [
        (Row(s="a", n=1), PySparkValueError, "Invalid return type"),
        (pd.DataFrame({"s": ["a"]}), KeyError, "n"),
        (
            pd.DataFrame({"s": ["a"], "n": [1.5]}),
            PySparkValueError,
            "Failed to convert the value of the column 'n'",
        ),
        (
            pd.DataFrame({"s": [1], "n": [1]}),
            PySparkTypeError,
            "Cannot convert the output value of the column 's'",
        ),
    ],
)
def test_frames_that_do_not_fit_the_output_fail_as_in_spark(
    tmp_path: Path, given: Any, raises: type[Exception], error: str
) -> None:
    """What Spark's worker raises, of the same class."""
    with pytest.raises(raises, match=error):
        emitted(tmp_path, given, in_pandas=True, schema="s string, n long")


@both_modes
def test_output_before_the_watermark_is_refused_where_it_is_event_time(
    tmp_path: Path, ends: list[HostedLives], in_pandas: bool
) -> None:
    """`eventTimeColumnName` promises that no row of output is older than the watermark: Spark's error otherwise."""

    class Times(TwoModes):
        columns = ("at",)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            yield from self.emitted(*((row.at,) for row in self.taken(rows)))

    lives = query(
        tmp_path,
        Times(in_pandas=in_pandas),
        inputSchema="id string, at timestamp",
        outputStructType="at timestamp",
        timeMode="EventTime",
        eventTime=EventTime(column="at", delay_ms=5_000),
        eventTimeColumnName="at",
    )
    ends.append(lives)
    assert lives.batch(("a", _at(20)), ("b", _at(16))) == [(_at(20),), (_at(16),)]
    with pytest.raises(
        PySparkRuntimeError,
        match=r"\[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED\] .*=14000 .*=15000",
    ):
        lives.batch(("a", _at(14)))


# -- lives


def test_a_handler_is_called_with_sparks_keywords_for_timers(
    tmp_path: Path, ends: list[HostedLives]
) -> None:
    """Timers' handler is called by keyword: other names of parameters fail, as in Spark."""

    class Other(TwoModes):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            self.h.registerTimer(0)
            return iter(())

        def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Any:
            return iter(())

    lives = query(tmp_path, Other(), timeMode="ProcessingTime")
    ends.append(lives)
    with pytest.raises(TypeError, match="unexpected keyword argument 'timerValues'"):
        lives.batch(*F3)


def test_an_instance_is_copied_when_the_query_is_defined(
    tmp_path: Path, ends: list[HostedLives]
) -> None:
    """What becomes of the user's object later does not reach the shard, and each life has a copy, closed at its end."""
    told = tmp_path / "told"

    class Closing(TwoModes):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            yield from self.emitted((key[0], str(self.in_pandas)))

        def close(self) -> None:
            told.write_text("closed")

    processor = Closing()
    lives = query(tmp_path / "log", processor)
    ends.append(lives)
    processor.in_pandas = True
    assert lives.batch(("a", 1)) == [("a", "False")]
    lives.run.close()
    assert told.read_text() == "closed"


def test_initial_state_of_a_shard_is_that_of_its_journals(tmp_path: Path) -> None:
    """Rows without a column of the key, or of another type, are refused with its name."""
    with pytest.raises(
        ValidationError, match=r"^initialState\.id: expected a column of the key among \['x'\]"
    ):
        query(tmp_path, Summed(), initialState=InitialState(rows=[Row(x=1)]))
    with pytest.raises(ValidationError, match=r"^initialState\.id: expected string, as in the key"):
        query(tmp_path / "b", Summed(), initialState=pa.table({"id": [[1]]}))


def test_the_documented_processor_works_as_it_stands(tmp_path: Path) -> None:
    """Readers copy it: visits end half an hour after their last click, in the timer phase of a batch."""
    block, *_ = blocks_of(REPOSITORY / "docs" / "spark-processors.md")
    source = tmp_path / "visits.py"
    source.write_text(block.code)
    document = runpy.run_path(str(source))
    lives = HostedLives(
        tmp_path / "log",
        processor=document["Visits"],
        key="user",
        inputSchema="user string, at timestamp",
        outputStructType="user string, clicks long",
        timeMode="EventTime",
        eventTime="at",
        delay="1 minute",
        options=HostingOptions(clock=SteppedClock(1 << 41)),
    )
    clicks = [("ann", 1), ("ann", 20), ("ann", 40), ("bob", 72)]
    assert [lives.batch((user, _at(60 * minute))) for user, minute in clicks] == [[]] * 4
    assert lives.batch() == [("ann", 3)]
    lives.end()
