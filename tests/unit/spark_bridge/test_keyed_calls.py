"""Calls of a hosted processor: which work when, what they return, and the errors of those that do not.

The texts are Spark's, read from a running Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, StructField, StructType

from broadsheet.runtime.errors import ValidationError
from tests.support.hosted_runs import HostedLives

Step = Callable[[Any], Any]
_TWS = r"\[INTERNAL_ERROR_TWS\] Implicit key not found in state store for stateName={name} SQLSTATE: XX000$"
_HANDLE = (
    r"\[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE\] Failed to perform stateful processor "
    r"operation={operation} with invalid handle state={state}\. SQLSTATE: 42802$"
)
_NO_TIME = (
    r"\[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE\] Failed to perform stateful processor "
    r"operation={operation} with invalid timeMode=NoTime SQLSTATE: 42802$"
)
_LENGTH = r"\[STRUCT_ARRAY_LENGTH_MISMATCH\] "
_EMPTY = (
    r"^Error updating value state: \[ILLEGAL_STATE_STORE_VALUE\.EMPTY_LIST_VALUE\] Illegal value provided to the State "
    r"Store Cannot write empty list values to State Store for StateName l\. SQLSTATE: 42601$"
)


def nothing(_: Any) -> None:
    """Do nothing."""


class Scripted(StatefulProcessor):
    """Declares v, l and m, and does what a test says."""

    def __init__(
        self,
        rows: Step = nothing,
        *,
        init: Step = nothing,
        timer: Step = nothing,
        close: Step = nothing,
    ) -> None:
        self.steps = {"rows": rows, "init": init, "timer": timer, "close": close}
        self.key: tuple[Any, ...] = ()

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare state."""
        self.h = handle
        self.v = handle.getValueState("v", "x int")
        self.l = handle.getListState("l", StructType([StructField("x", IntegerType())]))
        self.m = handle.getMapState("m", "k int", "x int")
        self.steps["init"](self)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Do it for a key's rows; emit what it returns."""
        self.key, self.rows, self.times = key, rows, timerValues
        yield Row(r=repr(self.steps["rows"](self)))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        """Do it for a timer."""
        self.key, self.expiry = key, expiredTimerInfo.getExpiryTimeInMs()
        yield Row(r=repr(self.steps["timer"](self)))

    def close(self) -> None:
        """Do it at the end."""
        self.steps["close"](self)


def lives_of(
    directory: Path, processor: StatefulProcessor | Callable[[], StatefulProcessor], **query: Any
) -> HostedLives:
    """Return a shard that hosts a processor over (k string, n int), with output (r string)."""
    given = {"key": "k", "inputSchema": "k string, n int", "outputStructType": "r string", **query}
    if given.get("timeMode") == "EventTime":
        given |= {"inputSchema": "k string, n int, at timestamp", "eventTime": "at"}
    make = (lambda: processor) if isinstance(processor, StatefulProcessor) else processor
    return HostedLives(directory, processor=make, **given)


def outcome(directory: Path, rows: Step, **query: Any) -> Any:
    """Return what a step returns while a key's rows are handled."""
    kept: list[Any] = []
    lives = lives_of(directory, Scripted(lambda p: kept.append(rows(p))), **query)
    lives.batch(("a", 1))
    lives.end()
    return kept[0]


# -- which call works when


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (lambda p: p.v.get(), "Error getting value state: " + _TWS.format(name="v")),
        (lambda p: p.v.exists(), "Error checking value state exists: " + _TWS.format(name="v")),
        (lambda p: p.v.update((1,)), "Error updating value state: " + _TWS.format(name="v")),
        (lambda p: p.v.clear(), "Error clearing value state: " + _TWS.format(name="v")),
        (lambda p: p.l.exists(), "Error checking value state exists: " + _TWS.format(name="l")),
        (lambda p: p.l.put([(1,)]), "Error updating value state: " + _TWS.format(name="l")),
        (lambda p: p.l.appendValue((1,)), "Error updating value state: " + _TWS.format(name="l")),
        (lambda p: p.l.appendList([(1,)]), "Error updating value state: " + _TWS.format(name="l")),
        (lambda p: p.l.clear(), "Error clearing value state: " + _TWS.format(name="l")),
        (lambda p: p.m.exists(), "Error checking map state exists: " + _TWS.format(name="m")),
        (lambda p: p.m.getValue((1,)), "Error getting value: " + _TWS.format(name="m")),
        (
            lambda p: p.m.containsKey((1,)),
            "Error checking if map state contains key: " + _TWS.format(name="m"),
        ),
        (
            lambda p: p.m.updateValue((1,), (1,)),
            "Error updating map state value: " + _TWS.format(name="m"),
        ),
        (
            lambda p: p.m.removeKey((1,)),
            "Error removing key from map state: " + _TWS.format(name="m"),
        ),
        (lambda p: p.m.clear(), "Error clearing map state: " + _TWS.format(name="m")),
        (
            lambda p: p.h.registerTimer(1),
            "Error register timer: " + _HANDLE.format(operation="register_timer", state="CREATED"),
        ),
        (
            lambda p: p.h.deleteTimer(1),
            "Error deleting timer: " + _HANDLE.format(operation="delete_timer", state="CREATED"),
        ),
    ],
)
def test_state_and_timers_in_init_are_refused_in_sparks_words(
    tmp_path: Path, step: Step, error: str
) -> None:
    """In init there is no key: the shard does not start, with the error that the query would have."""
    with pytest.raises(PySparkRuntimeError, match=error):
        lives_of(tmp_path, Scripted(init=step), timeMode="ProcessingTime")


@pytest.mark.parametrize(
    "step",
    [
        lambda p: p.l.get(),
        lambda p: p.m.iterator(),
        lambda p: p.m.keys(),
        lambda p: p.h.listTimers(),
    ],
)
def test_iterators_without_a_key_are_empty_and_fail_afterwards(tmp_path: Path, step: Step) -> None:
    """Spark's iterators swallow the error, and the query dies at the next call: here the shard does not start."""
    seen: list[Any] = []
    with pytest.raises(PySparkRuntimeError):
        lives_of(
            tmp_path,
            Scripted(init=lambda p: seen.append(list(step(p)))),
            timeMode="ProcessingTime",
        )
    assert seen == [[]]


@pytest.mark.parametrize(
    ("step", "doing", "operation"),
    [
        (lambda p: p.h.getValueState("z", "x int"), "initializing value state", "get_value_state"),
        (lambda p: p.h.getListState("z", "x int"), "initializing list state", "get_list_state"),
        (
            lambda p: p.h.getMapState("z", "k int", "x int"),
            "initializing map state",
            "get_map_state",
        ),
        (lambda p: p.h.deleteIfExists("v"), "deleting state", "delete_if_exists"),
    ],
)
def test_declarations_outside_init_are_refused(
    tmp_path: Path, step: Step, doing: str, operation: str
) -> None:
    """While rows are handled, timers fire or the processor closes, state cannot be declared."""
    error = f"Error {doing}: " + _HANDLE
    with pytest.raises(
        PySparkRuntimeError, match=error.format(operation=operation, state="INITIALIZED")
    ):
        outcome(tmp_path / "rows", step)
    lives = lives_of(
        tmp_path / "timer",
        Scripted(lambda p: p.h.registerTimer(1), timer=step),
        timeMode="ProcessingTime",
    )
    with pytest.raises(
        PySparkRuntimeError, match=error.format(operation=operation, state="DATA_PROCESSED")
    ):
        lives.batch(("a", 1))
    lives.end()
    lives = lives_of(tmp_path / "close", Scripted(close=step))
    with pytest.raises(
        PySparkRuntimeError, match=error.format(operation=operation, state="TIMER_PROCESSED")
    ):
        lives.run.close()
    lives.end()


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (lambda p: p.v.get(), "Error getting value state: " + _TWS.format(name="v")),
        (
            lambda p: p.h.registerTimer(1),
            "Error register timer: "
            + _HANDLE.format(operation="register_timer", state="TIMER_PROCESSED"),
        ),
        (
            lambda p: p.h.deleteTimer(1),
            "Error deleting timer: "
            + _HANDLE.format(operation="delete_timer", state="TIMER_PROCESSED"),
        ),
    ],
)
def test_state_and_timers_in_close_are_refused(tmp_path: Path, step: Step, error: str) -> None:
    """When a processor closes there is no key, and no timer can be registered."""
    lives = lives_of(tmp_path, Scripted(close=step), timeMode="ProcessingTime")
    with pytest.raises(PySparkRuntimeError, match=error):
        lives.run.close()
    lives.end()


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (
            lambda p: p.h.registerTimer(1),
            "Error register timer: " + _NO_TIME.format(operation="register_timer"),
        ),
        (
            lambda p: p.h.deleteTimer(1),
            "Error deleting timer: " + _NO_TIME.format(operation="delete_timer"),
        ),
        (lambda p: list(p.h.listTimers()), _NO_TIME.format(operation="list_timers")),
    ],
)
def test_timers_in_a_query_without_time_are_refused(tmp_path: Path, step: Step, error: str) -> None:
    """In mode None there are no timers; listing shows none, and the batch dies all the same, as in Spark."""
    with pytest.raises(PySparkRuntimeError, match=error):
        outcome(tmp_path, step)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (
            lambda p: p.h.getValueState("v", "x int"),
            r"^Error initializing value state: Value state v already exists$",
        ),
        (
            lambda p: p.h.getListState("l", "x int"),
            r"^Error initializing list state: List state l already exists$",
        ),
        (lambda p: p.h.getMapState("m", "k int", "x int"), r"Map state m already exists$"),
        (
            lambda p: p.h.getListState("v", "x int"),
            r"\[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED\]",
        ),
        (
            lambda p: p.h.getValueState("$z", "x int"),
            r"\[STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS\] .* character and name=\$z\. SQLSTATE",
        ),
        (
            lambda p: p.h.getValueState("z", "int"),
            r"^Error parsing string schema: \[PARSE_SYNTAX_ERROR\]",
        ),
        (
            lambda p: p.h.getValueState("z", ""),
            r"^Error parsing string schema: \[PARSE_EMPTY_STATEMENT\]",
        ),
        (
            lambda p: p.h.getValueState("z", "x foo"),
            r"^Error parsing string schema: \[UNSUPPORTED_DATATYPE\]",
        ),
        (
            lambda p: p.h.getValueState("z", IntegerType()),
            r"value state: \[FAILED_PARSE_STRUCT_TYPE\] ",
        ),
        (
            lambda p: p.h.getListState("z", "x int", -1),
            (
                r"list state: \[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE\] TTL duration must be greater than "
                r"zero for State store operation=update on state=z\. SQLSTATE: 42802$"
            ),
        ),
    ],
)
def test_declarations_that_spark_refuses_are_refused(
    tmp_path: Path, step: Step, error: str
) -> None:
    """Names twice, reserved names, schemas that are none and negative TTL end the start, in Spark's words."""
    with pytest.raises(PySparkRuntimeError, match=error):
        lives_of(tmp_path, Scripted(init=step), timeMode="ProcessingTime")


@pytest.mark.parametrize(("mode", "named"), [("None", "NoTime"), ("EventTime", "EventTime")])
def test_ttl_in_another_mode_than_processing_time_is_refused(
    tmp_path: Path, mode: str, named: str
) -> None:
    """State expires by processing time, so other modes have no TTL; a TTL of 0 is none, in any mode."""
    step: Step = lambda p: p.h.getValueState("z", "x int", 1000)  # noqa: E731
    error = (
        rf"_INCORRECT_TIME_MODE_TO_ASSIGN_TTL\] Cannot use TTL for state=z in timeMode={named}, "
    )
    with pytest.raises(PySparkRuntimeError, match=error):
        lives_of(tmp_path, Scripted(init=step), timeMode=mode)
    lives_of(
        tmp_path, Scripted(init=lambda p: p.h.getValueState("z", "x int", 0)), timeMode=mode
    ).end()


def test_a_removed_variable_is_refused_and_the_processor_goes_on(tmp_path: Path) -> None:
    """The one error that a handler survives in Spark: a variable was removed with deleteIfExists, and then used."""

    def use(processor: Any) -> list[str]:
        told = []
        steps: list[Callable[[], Any]] = [
            lambda: processor.v.exists(),
            lambda: processor.v.update((1,)),
            lambda: processor.l.put([(1,)]),
            lambda: processor.m.getValue((1,)),
        ]
        for step in steps:
            with pytest.raises(PySparkRuntimeError) as caught:
                step()
            told.append(str(caught.value))
        return [*told, str([*processor.l.get(), *processor.m.iterator()])]

    kept: list[Any] = []

    def remove(processor: Any) -> None:
        for name in ("v", "l", "m", "unknown"):
            processor.h.deleteIfExists(name)

    lives = lives_of(tmp_path, Scripted(lambda p: kept.extend(use(p)), init=remove))
    lives.batch(("a", 1))
    assert kept == [
        "Error checking value state exists: Value state v is not initialized.",
        "Error updating value state: Value state v is not initialized.",
        "Error updating value state: List state l is not initialized.",
        "Error getting value: Map state m is not initialized.",
        "[]",
    ]
    lives.end()


def test_a_variable_that_was_removed_is_empty_when_it_is_declared_again(tmp_path: Path) -> None:
    """DeleteIfExists purges: a later life that declares the name again, even as another kind, finds nothing."""
    lives_made = [Scripted(lambda p: p.v.update((7,)))]
    lives = lives_of(tmp_path, lambda: lives_made.pop())
    lives.batch(("a", 1))

    def replace(processor: Any) -> None:
        processor.h.deleteIfExists("v")
        processor.v = processor.h.getListState("v", "y string")

    kept: list[Any] = []

    def use(processor: Any) -> None:
        kept.append(list(processor.v.get()))
        processor.v.appendValue(("new",))
        kept.append(list(processor.v.get()))

    lives_made.append(Scripted(use, init=replace))
    lives.reopen()
    lives.batch(("a", 1))
    assert kept == [[], [("new",)]]
    lives.end()


def test_an_error_of_state_that_a_handler_catches_fails_the_transaction(tmp_path: Path) -> None:
    """Spark closes its server of state at the first error: a handler that catches it gets no further."""
    seen: list[str] = []

    def catch(processor: Any) -> None:
        steps: list[Callable[[], Any]] = [lambda: processor.l.put([]), lambda: processor.v.get()]
        for step in steps:
            with pytest.raises(PySparkRuntimeError) as caught:
                step()
            seen.append(str(caught.value))

    lives = lives_of(tmp_path, Scripted(catch))
    with pytest.raises(PySparkRuntimeError, match=_EMPTY):
        lives.batch(("a", 1))
    assert seen[1].startswith(
        "state is closed, because an earlier call failed: Error updating value state"
    )
    lives.restore()
    assert lives.store.meta(b"times") is None, "nothing of the transaction was committed"
    lives.end()


# -- what calls return


@pytest.mark.parametrize("step", [lambda p: p.l.put([]), lambda p: p.l.appendList([])])
def test_an_empty_list_is_refused(tmp_path: Path, step: Step) -> None:
    """Spark cannot store an empty list: the query ends."""
    with pytest.raises(PySparkRuntimeError, match=_EMPTY):
        outcome(tmp_path, step)


@pytest.mark.parametrize(
    ("step", "doing"),
    [
        (lambda p: p.v.update((1, 2)), "updating value state"),
        (lambda p: p.l.put([()]), "updating value state"),
        (lambda p: p.m.getValue((1, 2)), "getting value"),
    ],
)
def test_a_value_of_another_length_ends_the_query(tmp_path: Path, step: Step, doing: str) -> None:
    """A value with another number of fields than its schema, or such a user key, is Spark's error."""
    with pytest.raises(PySparkRuntimeError, match=f"^Error {doing}: " + _LENGTH):
        outcome(tmp_path, step)


def test_values_and_their_absence_read_as_in_spark(tmp_path: Path) -> None:
    """No value is None, and a value of null is a tuple; clear of nothing is no error; a new value replaces."""

    def use(p: Any) -> list[Any]:
        p.v.clear()
        seen = [p.v.exists(), p.v.get()]
        p.v.update((None,))
        seen += [p.v.exists(), p.v.get()]
        p.v.update([3])
        seen.append(p.v.get())
        p.v.clear()
        return [*seen, p.v.exists()]

    assert outcome(tmp_path, use) == [False, None, True, (None,), (3,), False]


def test_lists_and_their_iterators_read_as_in_spark(tmp_path: Path) -> None:
    """Iterators are independent, and show what was there at their first step; elements may be null."""

    def use(p: Any) -> list[Any]:
        seen: list[Any] = [p.l.exists(), list(p.l.get())]
        p.l.put((each,) for each in (120, None))
        one, two = p.l.get(), p.l.get()
        seen.append(next(one))
        p.l.appendValue([111])
        p.l.appendList(((20,), (21,)))
        seen += [list(one), list(two), p.l.exists()]
        p.l.clear()
        return [*seen, p.l.exists()]

    assert outcome(tmp_path, use) == [
        False,
        [],
        (120,),
        [(None,)],
        [(120,), (None,), (111,), (20,), (21,)],
        True,
        False,
    ]


def test_maps_and_their_iterators_read_as_in_spark(tmp_path: Path) -> None:
    """GetValue returns a Row and iterators tuples; a null is a value, and a user key; a truth value is a null key."""

    def use(p: Any) -> list[Any]:
        seen: list[Any] = [p.m.exists(), p.m.getValue((5,)), p.m.containsKey((5,))]
        p.m.removeKey((5,))
        p.m.updateValue((None,), (None,))
        seen += [p.m.getValue((None,)), p.m.containsKey((None,))]
        for key in (1000, -1, 0, 256, 3):
            p.m.updateValue((key,), [key + 1])
        entries = p.m.iterator()
        seen.append(next(entries))
        p.m.updateValue((True,), (9,))
        seen += [list(entries), list(p.m.keys()), next(iter(p.m.values()))]
        p.m.clear()
        return [*seen, p.m.exists(), type(p.m.getValue((0,)))]

    found = outcome(tmp_path, use)
    assert found[:6] == [False, None, False, Row(x=None), True, ((None,), (None,))]
    assert found[6] == [((key,), (key + 1,)) for key in (-1, 0, 3, 256, 1000)]
    assert found[7] == [(None,), (-1,), (0,), (3,), (256,), (1000,)], "ascending, nulls first"
    assert found[8:] == [(9,), False, type(None)]


def test_timers_take_what_protobuf_takes_and_are_a_set(tmp_path: Path) -> None:
    """Whole numbers of 64 bits, NumPy's and None as 0; registering twice is one, deleting none is no error."""

    def use(p: Any) -> list[Any]:
        for wrong in (1.5, "1"):
            with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
                p.h.registerTimer(wrong)
        with pytest.raises(ValueError, match="Value out of range: 9223372036854775808"):
            p.h.registerTimer(2**63)
        for each in (10**9, np.int64(5 * 10**9), True, None, 10**9):
            p.h.registerTimer(each)
        p.h.deleteTimer(77)
        seen = list(p.h.listTimers())
        p.h.deleteTimer(0)
        p.h.deleteTimer(1)
        return [seen, list(p.h.listTimers())]

    assert outcome(tmp_path, use, timeMode="ProcessingTime") == [
        [0, 1, 10**9, 5 * 10**9],
        [10**9, 5 * 10**9],
    ]


def test_the_handle_has_no_query_info_as_in_python(tmp_path: Path) -> None:
    """Python's handle has no getQueryInfo, which is Scala's: the same AttributeError, so that a processor that asks for
    it by `hasattr` goes the same way.
    """
    assert outcome(tmp_path, lambda p: hasattr(p.h, "getQueryInfo")) is False
    assert isinstance(outcome(tmp_path / "b", lambda p: p.h), StatefulProcessorHandle)


# -- the query's arguments


@pytest.mark.parametrize(
    ("query", "raises", "error"),
    [
        (
            {"timeMode": "Foo"},
            IllegalArgumentException,
            r"\[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE\] Unknown time mode Foo",
        ),
        (
            {"outputMode": "Complete"},
            AnalysisException,
            r"\[STREAMING_OUTPUT_MODE\.UNSUPPORTED_OPERATION\]",
        ),
        ({"outputMode": "Foo"}, IllegalArgumentException, r"\[STREAMING_OUTPUT_MODE\.INVALID\]"),
        ({"key": "z"}, ValidationError, r"^key: expected columns among \['k', 'n'\], got 'z'"),
        (
            {"inputSchema": "k strings"},
            ValidationError,
            r"^inputSchema: expected a type in the schema",
        ),
        ({"outputStructType": "int"}, ValidationError, "^outputStructType: "),
        (
            {"delay": "10 parsecs", "eventTime": "n"},
            ValidationError,
            "^delay: expected an interval such as",
        ),
        (
            {"eventTimeColumnName": "z"},
            ValidationError,
            r"^eventTimeColumnName: expected a column among \['r'\]",
        ),
        (
            {"eventTimeColumnName": "r"},
            ValidationError,
            "^eventTimeColumnName: expected r to be a timestamp",
        ),
    ],
)
def test_a_query_that_cannot_be_is_refused_with_the_argument(
    tmp_path: Path, query: dict[str, Any], raises: type[Exception], error: str
) -> None:
    """Modes that Spark refuses have Spark's errors; other arguments ours, which name the argument."""
    with pytest.raises(raises, match=error):
        lives_of(tmp_path, Scripted(), **query)


def test_modes_go_by_any_case_and_may_not_change_between_starts(tmp_path: Path) -> None:
    """A restart with another time mode is refused, as in Spark: its timers would be judged by another clock."""
    lives = lives_of(tmp_path, Scripted(), timeMode="PROCESSINGTIME", outputMode="update")
    lives.batch(("a", 1))
    other = lives_of(tmp_path / "other", Scripted(), outputMode="Update")
    with pytest.raises(
        IllegalArgumentException,
        match=r"^\[STATE_STORE_INVALID_CONFIG_AFTER_RESTART\] .* processing update",
    ):
        other.application.new_run(lives.shard, lives.store)
    lives.end()
    other.end()
