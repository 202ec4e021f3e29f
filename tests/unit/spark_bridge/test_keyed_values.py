"""Values of state in a hosted processor: what Spark stores of them, which was read from a running Spark 4.3."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, StructField, StructType
from structlog.testing import capture_logs

from broadsheet.consumer.keyed.row_types import StateRowType
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.keyed.losses import ValueLosses
from broadsheet.spark_bridge.keyed.schemas import arrow_schema, as_nullable, struct_of
from broadsheet.spark_bridge.keyed.state_values import StateValues
from tests.support.documents import REPOSITORY
from tests.support.spark_state_values import TYPES, VALUES

VECTORS = REPOSITORY / "tests/data/spark/state_values.jsonl"
TOKYO = ZoneInfo("Asia/Tokyo")


def vectors() -> dict[str, dict[str, str]]:
    """Return by type what Spark stored of the values."""
    lines = Path(VECTORS).read_text().splitlines()
    return {each["type"]: each["spark"] for each in map(json.loads, lines)}


class Stored:
    """A schema's way through the store."""

    def __init__(self, ddl: str, *, zone: str = "UTC", strict: bool = False) -> None:
        struct = struct_of(ddl, "x")
        self.losses = ValueLosses(strict=strict)
        self._values = StateValues(struct, ZoneInfo(zone), self.losses.of("v"))
        self._rows = StateRowType(as_nullable(arrow_schema(struct, "x")))

    def __call__(self, *value: Any) -> tuple[Any, ...]:
        """Write a value, and read it back."""
        return self.of(value)

    def of(self, value: Any) -> tuple[Any, ...]:
        """Write a value of any form, and read it back."""
        return self._values.shown(self._rows.decode(self._rows.encode(self._values.stored(value))))


@pytest.mark.parametrize("declared", TYPES)
def test_a_value_of_any_type_reads_back_as_in_spark(declared: str) -> None:
    """Sixty values of all kinds are written to a field of each type, and read back, or fail, as they did in Spark.

    A processor that relies on it must not see other values here; Spark stores null for most that do not fit.
    """
    through = Stored(f"x {declared}")
    for place, spark in vectors()[declared].items():
        value = VALUES[int(place)]
        try:
            ours = repr(through(value))
        except Exception as error:
            ours = f"UPDATE! {type(error).__name__}: {error}"
        if spark == "ends the query":
            assert ours.startswith("UPDATE! "), f"{value!r}: Spark's query ends, got {ours}"
        else:
            assert ours == spark, f"{value!r}"


@pytest.mark.parametrize("declared", TYPES)
def test_a_strict_processor_refuses_what_spark_stores_as_something_else(declared: str) -> None:
    """With `strict`, a value either reads back as it is, or is refused with the field: nothing becomes null unseen."""
    through, lenient = Stored(f"x {declared}", strict=True), Stored(f"x {declared}")
    for place in vectors()[declared]:
        value = VALUES[int(place)]
        if vectors()[declared][place].startswith(("UPDATE! ", "ends ")):
            continue
        stored = lenient(value)
        if lenient.losses.count:
            lenient.losses.count = 0
            with pytest.raises(PySparkTypeError, match=r"state v\.x.*: expected .*, got "):
                through(value)
        else:
            assert repr(through(value)) == repr(stored)
            assert stored != (None,) or value is None or declared == "double not null"


def test_values_that_change_are_counted_and_told_at_each_power_of_two() -> None:
    """The default stores what Spark stores, but says so, with the field; a processor that always does fills no log."""
    through = Stored("n int")
    with capture_logs() as logs:
        for _ in range(5):
            assert through("5") == (None,)
    assert through.losses.count == 5
    told = [(each["event"], each["field"], each["count"]) for each in logs]
    assert told == [("keyed.value_changed", "v.n", count) for count in (1, 2, 4)]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ((1, "a"), (1, "a")),
        ([1, "a"], (1, "a")),
        (Row(b="x", a=1), (None, "1")),
        (Row("1", "a"), (None, "a")),
        ({"n": 1, "s": "a"}, (None, "s")),
        ((each for each in (np.int32(1), np.str_("a"))), (1, "a")),
    ],
)
def test_a_value_is_taken_by_position(given: Any, read: tuple[Any, ...]) -> None:
    """Tuples, lists, Rows and iterables go by position, whatever their names; a dict gives its keys, as in Spark."""
    assert Stored("n int, s string").of(given) == read


@pytest.mark.parametrize("given", [None, 3])
def test_a_value_that_is_no_row_raises_type_error(given: Any) -> None:
    """A single value is no row: Python's own error, after which the processor goes on, as in Spark."""
    with pytest.raises(TypeError, match="is not iterable"):
        Stored("n int").of(given)


def test_a_value_of_another_length_is_refused() -> None:
    """Too few or too many fields end the query, in Spark's words."""
    with pytest.raises(
        PySparkRuntimeError, match=r"^\[STRUCT_ARRAY_LENGTH_MISMATCH\].* 1 fields .* while 2 "
    ):
        Stored("n int").of((1, 2))


def test_nested_values_read_back_as_spark_gives_them() -> None:
    """Structs are Rows with names, wherever they are; lists and dicts are plain; each read is a fresh object."""
    through = Stored(
        "s struct<a:int,t:timestamp>, m map<string,struct<q:array<int>>>, l array<array<string>>"
    )
    at = datetime(2020, 1, 1, tzinfo=UTC)
    value = ((7, at), {"k": {"q": (1, 2)}}, [["a"], ("b", None)])
    read = through(*value)
    assert read == (Row(a=7, t=datetime(2020, 1, 1)), {"k": Row(q=[1, 2])}, [["a"], ["b", None]])  # noqa: DTZ001
    assert read[0].a == 7
    read[2].append("changed")
    assert through(*value)[2] == [["a"], ["b", None]]


def test_timestamps_without_a_zone_are_of_the_sessions_zone() -> None:
    """A naive time is the session's clock, an aware one its instant; both read back naive, on the session's clock."""
    through = Stored("at timestamp, wall timestamp_ntz", zone="Asia/Tokyo")
    naive = datetime(2020, 1, 1, 9)  # noqa: DTZ001
    assert through(naive, naive) == (naive, naive)
    assert through(datetime(2020, 1, 1, tzinfo=UTC), None) == (naive, None)
    offset = datetime(2020, 1, 1, 9, tzinfo=TOKYO) + timedelta(hours=1)
    assert through(offset, offset) == (datetime(2020, 1, 1, 10), datetime(2020, 1, 1, 10))  # noqa: DTZ001


def test_schemas_are_spark_types_or_text_and_others_are_refused() -> None:
    """Text and StructType declare the same; a type alone is an error that names the field."""
    declared = StructType([StructField("n", IntegerType(), False)])
    assert struct_of("n int not null", "x") == declared
    assert struct_of(declared, "x") is declared
    with pytest.raises(
        ValidationError, match=r"^x: expected a StructType or a table schema, got IntegerType"
    ):
        struct_of(IntegerType(), "x")  # type: ignore[arg-type]  # what a user may write
