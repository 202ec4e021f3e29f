"""`df.write` and `df.writeStream` into journals: every row once, in each encoding, under any name, or a clear error."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowType
from broadsheet.journals.content.csv import CSV, CsvType
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED, ProtobufType
from broadsheet.journals.message.partitioning import MappedJournal, modulo_mapping
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.formats import register_formats
from broadsheet.wire.key_range import GROUPS, group_of
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.dividing import divide
from tests.support.published import ids_of, messages_of
from tests.support.sink_queries import (
    SinkTopic,
    rows_of_files,
    start_query,
    write_input_files,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

ROWS = 2_000


@pytest.fixture
def topic(spark: SparkSession, services: Services) -> SinkTopic:
    """Two journals of JSON lines."""
    register_formats(spark)
    return SinkTopic(services)


def _rows(spark: SparkSession, rows: int = ROWS) -> DataFrame:
    return spark.range(0, rows, 1, 3).selectExpr("concat('key-', id % 50) AS key", "id")


def _write(df: DataFrame, topic: SinkTopic, mode: str = "append", **options: str) -> None:
    df.write.format("journal").options(**{**topic.options, **options}).mode(mode).save()


def _read(topic: SinkTopic, **how: Any) -> list[list[Any]]:
    return asyncio.run(messages_of(topic.address, topic.journals, **how))


def test_write_every_row_once_and_keys_where_others_look_for_them(
    spark: SparkSession, topic: SinkTopic
) -> None:
    """Three tasks, two journals: a publisher in Python would choose the same journal for each key."""
    _write(_rows(spark), topic)

    published = _read(topic)
    targets = [MappedJournal(journal, "application/x-ndjson") for journal in topic.journals]
    mapping = modulo_mapping(lambda key: str(key).encode(), lambda: targets)
    assert ids_of(published) == Counter(range(ROWS))
    for journal, messages in zip(topic.journals, published, strict=True):
        assert {mapping(message["key"]).journal for message in messages} == {journal}


def test_write_again_under_a_name_publishes_nothing(spark: SparkSession, topic: SinkTopic) -> None:
    """A job that is run again finds its name, and does not even append; without a name it publishes again."""
    _write(_rows(spark), topic, publication="orders-2024")
    written = _read(topic, committed=False)

    _write(_rows(spark), topic, publication="orders-2024")

    assert _read(topic, committed=False) == written
    assert ids_of(_read(topic)) == Counter(range(ROWS))
    _write(_rows(spark, 10), topic)
    assert ids_of(_read(topic)).total() == ROWS + 10


def test_write_csv(spark: SparkSession, services: Services, topic: SinkTopic) -> None:
    """The journals' label says what the messages are."""
    topic = SinkTopic(services, content_type=CSV)
    _write(_rows(spark, 100), topic, mapping="rendezvous")

    records = [r for journal in _read(topic, message_type=CsvType(columns=2)) for r in journal]

    assert sorted(int(record[2]) for record in records) == list(range(100))
    assert all(record[1] == f"key-{int(record[2]) % 50}" for record in records)


def test_write_arrow(spark: SparkSession, services: Services, topic: SinkTopic) -> None:
    """A message holds many rows; together they are all."""
    topic = SinkTopic(services, content_type=ARROW_STREAM)
    _write(_rows(spark), topic)

    messages = [m for journal in _read(topic, message_type=ArrowType()) for m in journal]

    ids = [id_ for message in messages for id_ in message.rows.column("id").to_pylist()]
    assert Counter(ids) == Counter(range(ROWS))
    assert len(messages) < ROWS / 10


def test_write_protobuf(spark: SparkSession, services: Services, topic: SinkTopic) -> None:
    """A class that is generated from a schema, with a nested message; an entry's id serves as the UUID's field."""
    topic = SinkTopic(services, content_type=PROTOBUF_FIXED)
    rows = spark.range(100).selectExpr("named_struct('begin', id) AS state")
    entry = Checkpoint.Source.ProducerEntry

    _write(
        rows.selectExpr("state", "state.begin AS key").drop("key"),
        topic,
        selector=f"name={topic.journals[0]}",
        key="",
        messageType="broadsheet.wire.shard_pb2:Checkpoint.Source.ProducerEntry",
        uuidField="id",
    )

    found = _read(topic, message_type=ProtobufType(entry, uuid_field="id"))[0]
    assert sorted(message.state.begin for message in found) == list(range(100))


def _stream(spark: SparkSession, topic: SinkTopic, directory: Path, **options: str) -> None:
    query = start_query(
        rows_of_files(spark, directory / "input"),
        {**topic.options, **options},
        checkpoint=directory / "checkpoint",
    )
    query.awaitTermination()


def test_stream_every_row_once_over_restarts(
    spark: SparkSession, topic: SinkTopic, tmp_path: Path
) -> None:
    """Two micro-batches, a restart with nothing new, and one with a third."""
    write_input_files(tmp_path / "input", 2, rows_per_file=500)
    _stream(spark, topic, tmp_path)
    _stream(spark, topic, tmp_path)
    assert ids_of(_read(topic)) == Counter(range(1000))

    write_input_files(tmp_path / "input", 3, rows_per_file=500)
    _stream(spark, topic, tmp_path)

    assert ids_of(_read(topic)) == Counter(range(1500))


def test_stream_goes_on_in_the_parts_of_a_journal_that_is_divided(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    """One of two journals is divided between two runs of a query, of messages that hold many rows: the parts have
    the rows of its keys, each part its own, and no key of the other journal moves.
    """
    topic = SinkTopic(services, content_type=ARROW_STREAM)
    write_input_files(tmp_path / "input", 1, rows_per_file=500)
    _stream(spark, topic, tmp_path)
    parts = divide(topic.address, topic.journals[0], message_type=ArrowType())
    write_input_files(tmp_path / "input", 2, rows_per_file=500)
    _stream(spark, topic, tmp_path)

    journals = (*topic.journals, *parts)
    found = asyncio.run(messages_of(topic.address, journals, message_type=ArrowType()))
    whole, other, low, high = [pa.concat_tables(_tables(each)).to_pylist() for each in found]
    assert Counter(row["id"] for row in (*whole, *other, *low, *high)) == Counter(range(1_000))
    assert {row["id"] < 500 for row in whole} == {True}
    assert {row["id"] < 500 for row in other} == {True, False}
    for rows, is_low in ((low, True), (high, False)):
        assert {row["id"] < 500 for row in rows} == {False}
        assert {group_of(row["key"].encode()) < GROUPS // 2 for row in rows} == {is_low}
    assert {row["key"] for row in (*low, *high)} == {row["key"] for row in whole}


def _tables(messages: list[Any]) -> list[pa.Table]:
    return [pa.Table.from_batches([each.rows.select(["id", "key"])]) for each in messages]


def test_stream_batch_that_spark_repeats_is_written_once(
    spark: SparkSession, topic: SinkTopic, tmp_path: Path
) -> None:
    """Spark's own note of the commit is lost, as when the driver dies between the sink's commit and that: the batch
    is run again, but its tasks find it committed and append nothing.
    """
    write_input_files(tmp_path / "input", 2, rows_per_file=500)
    _stream(spark, topic, tmp_path)
    written = _read(topic, committed=False)
    for note in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        note.unlink()

    _stream(spark, topic, tmp_path)

    assert _read(topic, committed=False) == written
    assert ids_of(_read(topic)) == Counter(range(1000))


@pytest.mark.parametrize(
    ("mode", "changed", "message"),
    [
        ("overwrite", {}, r'mode: expected mode\("append"\): a journal only grows'),
        ("append", {"etcd": ""}, r"option etcd: expected endpoints .*publish its rows again"),
        ("append", {"selector": "name=no/where"}, r"option selector: .* matches journals"),
        ("append", {"key": "colour"}, r"option key: expected one of the columns"),
        ("append", {"mapping": "nowhere:choose"}, r"option mapping: .*No module named"),
    ],
)
def test_write_with_options_that_do_not_fit_is_refused(
    spark: SparkSession, topic: SinkTopic, mode: str, changed: dict[str, str], message: str
) -> None:
    """Before any task runs; the error that Spark shows names the option."""
    with pytest.raises(Exception, match=message):
        _write(_rows(spark), topic, mode, **changed)


def test_write_null_key_is_refused_without_retries(spark: SparkSession, topic: SinkTopic) -> None:
    """A session that hosts members lets a task fail 100,000 times: rows that no attempt can write must not be tried
    again. What other tasks wrote stays uncommitted.
    """
    rows = _rows(spark).selectExpr("nullif(key, 'key-7') AS key", "id")

    with pytest.raises(Exception, match=r"column key: the key of \d+ rows is null.*Nothing was"):
        _write(rows, topic)

    assert ids_of(_read(topic)) == Counter()


def test_write_values_come_back_equal_or_are_refused_by_column_and_row(
    spark: SparkSession, topic: SinkTopic
) -> None:
    """Extremes that Spark's SQL makes, read back by Spark. Text that is no UTF-8 and a row beyond the frame's limit, at
    which every reader would stop: the write fails, names column and row, and nothing more is there.
    """
    made = spark.range(1).selectExpr(
        "'key' AS key",
        "0 AS id",
        "DOUBLE('NaN') AS x",
        "CAST(0.1 AS FLOAT) AS y",
        "9223372036854775807 AS n",
        "CAST('12345678901234567890.123456789012345678' AS DECIMAL(38, 18)) AS m",
        "TIMESTAMP '1600-01-01 00:00:00.000001 UTC' AS t",
        "map('NaN', 1, '', 2) AS k",
        "array(NULL, 'é\\u2028') AS l",
    )
    _write(made, topic)

    options = {"address": topic.address, "selector": topic.options["selector"]}
    reader = spark.read.format("journal").options(**options).schema(made.schema)
    # As text, because NaN is unlike itself.
    assert [str(row) for row in reader.load().collect()] == [str(row) for row in made.collect()]
    for broken, says in (
        ("CAST(unhex('C328') AS STRING)", "column s: text that is not UTF-8"),
        ("repeat('x', 68000000)", "column s: a message of 68000[0-9]+ bytes; readers take"),
    ):
        text = f"CASE id WHEN 3 THEN {broken} ELSE 'fine' END AS s"
        rows = spark.range(0, 5, 1, 1).selectExpr("'key' AS key", "id", text)
        with pytest.raises(Exception, match=rf"(?s){says}.*row 3 of a partition.*Nothing was pub"):
            _write(rows, topic)
    assert ids_of(_read(topic)) == Counter([0])


def test_stream_in_complete_mode_is_refused(
    spark: SparkSession, topic: SinkTopic, tmp_path: Path
) -> None:
    """A journal cannot be replaced by the whole result of every batch."""
    write_input_files(tmp_path / "input", 1, rows_per_file=10)
    counted = rows_of_files(spark, tmp_path / "input").groupBy("key").count()
    writer = counted.writeStream.format("journal").options(**topic.options).outputMode("complete")
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )

    with pytest.raises(Exception, match="outputMode: expected outputMode"):
        query.awaitTermination()
