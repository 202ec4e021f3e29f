"""Values of JSON messages beside those of Spark's own JSON reader, over a table of texts and types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest

from broadsheet.journals.message.uuid import Flags
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.formats import register_formats
from tests.support.journal_writers import JournalWriter
from tests.support.spark import make_journals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

ZONE = "America/New_York"
INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
DECIMALS = ("DECIMAL(10,2)", "DECIMAL(38,18)")
TIMES = ("TIMESTAMP", "TIMESTAMP_NTZ")
TYPES = (
    *("STRING", "BOOLEAN", "FLOAT", "DOUBLE", "DATE", "ARRAY<TIMESTAMP>"),
    *("STRUCT<a: TIMESTAMP_NTZ>", "MAP<STRING, DECIMAL(4,1)>"),
    *(*INTEGERS, *DECIMALS, *TIMES),
)
TEXTS = (
    *("2024-07-01", "2024-7-1", "2024-07", "2024", "20240701", " 2024-07-01 ", "2024-02-30"),
    *("2024-07-01T12:00:00", "2024-07-01 12:00:00", "2024-07-01T12:00", "2024-07-01T12"),
    *("2024-07-01T1200", "2024-07-01T12:00:00Z", "2024-07-01T12:00:00+05:30"),
    *("2024-07-01T12:00:00+0530", "2024-07-01T12:00:00-5", "2024-07-01T12:00:00 Europe/Paris"),
    *("2024-07-01T12:00:00.123456789", "2024-07-01T12:00:00.1Z", "2024-07-01T24:00:00"),
    *("2024-03-10T02:30:00", "2024-11-03T01:30:00", "1883-01-01T00:00:00", "0001-01-01"),
    *("9999-12-31T23:59:59.999999", "2024-07-01T12:00:00Zx", "T12:00:00", "12:00"),
    *("2024-07-01T", "2024-07-01Z", "", "1", "1.005", " 1", "1 ", "1_000", "1,000", "1e2"),
    *("-1.005", "+1", ".5", "5.", "NaN", "Infinity", "+INF", "-INF", "INF", "inf", "nan"),
    *("true", "null", "x"),
)
OTHERS = (
    *("null", "true", "false", "0", "-0", "1", "-1", "127", "128", "32768", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "1.0", "1.5", "1e2", "1.005", "-1.005"),
    *("1.0050000000000001", "123456789.125", "99999999.995", "1e400", "1e-400", "16777217"),
    *("0.1", "1e39", "{}", "[]", '["2024-07-01T12:00:00",null]', '{"a":"2024-07-01T12:00:00"}'),
    *('{"a":1.25,"b":"1.35"}', '{"a" : [1, 2.50]}', "1720000000", "1720000000.5"),
)
VALUES = (*map(json.dumps, TEXTS), *OTHERS)
REFORMATTED = (
    *("-0", "1e2", "123456789.125", "99999999.995", "1e400", "1e-400", "1e39"),
    *('{"a" : [1, 2.50]}', "1720000000.5"),
)
DIFFERENCES = {
    *(("STRING", value) for value in REFORMATTED),
    *((kind, value) for kind in INTEGERS for value in ("1.0", "1e2")),
    *(("TINYINT", "128"), ("FLOAT", "-0"), ("DOUBLE", "-0")),
    *(("DATE", '"20240701"'), ("DATE", '"1"'), ("DATE", '"+1"')),
    *((kind, '"2024-07-01T1200"') for kind in TIMES),
    *(("TIMESTAMP", value) for value in ('"9999-12-31T23:59:59.999999"', '"T12:00:00"', '"12:00"')),
    ("TIMESTAMP", "9223372036854775807"),
    *(("STRUCT<a: TIMESTAMP_NTZ>", v) for v in ('{"a":1.25,"b":"1.35"}', '{"a" : [1, 2.50]}')),
}
"""Listed in docs/spark.md, except that Spark tells a struct of nulls from a null struct where a field is damaged."""


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[None]:
    """A zone of the session that is neither UTC nor the machine's."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", before)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type whose values Python can hold: times as numbers, because Spark knows years beyond 9999."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in kind])
    return kind


def _values(frame: DataFrame) -> dict[int, dict[str, Any]]:
    table = frame.toArrow()
    plain = pa.schema([pa.field(each.name, _plain(each.type)) for each in table.schema])
    return {row["n"]: row for row in table.cast(plain).to_pylist()}


@pytest.mark.usefixtures("zone")
def test_json_texts_become_the_values_of_sparks_own_reader(
    spark: SparkSession, services: Services
) -> None:
    """Each text as each type, by both readers, in a session with a zone: they differ where the docs say so.

    Why: a pipeline that moves from files to journals must get the same values, and a wrong one is not noticed.
    """
    register_formats(spark)
    names = {f"c{index}": kind for index, kind in enumerate(TYPES)}
    schema = ", ".join(["n INT", *(f"{name} {kind}" for name, kind in names.items())])
    bodies = ["".join(f', "{name}": {value}' for name in names) + "}" for value in VALUES]
    journal = f"test/{uuid4().hex}"
    make_journals(services.broker_address, [journal])
    writer = JournalWriter(services.broker_address, journal)
    lines = [writer.line(Flags.OUTSIDE_TXN, n=n).rstrip(b"}\n") + b"}}" for n in range(len(bodies))]
    messages = [line[:-1].decode() + body for line, body in zip(lines, bodies, strict=True)]
    writer.append("".join(f"{message}\n" for message in messages).encode())
    reader = spark.read.format("journal").option("address", services.broker_address)
    options = {"selector": f"name={journal}", "mode": "PERMISSIVE"}

    ours = _values(reader.options(**options).schema(schema).load())
    theirs = _values(spark.read.schema(schema).json(spark.sparkContext.parallelize(messages, 1)))

    found = {
        (kind, value)
        for name, kind in names.items()
        for n, value in enumerate(VALUES)
        if repr(ours[n][name]) != repr(theirs[n][name])
    }
    assert found == DIFFERENCES
