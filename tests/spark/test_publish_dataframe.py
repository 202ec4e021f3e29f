"""DataFrames into journals: each row once, whatever is retried or run again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.partitioning import MappedJournal, modulo_mapping
from broadsheet.journals.message.reader import read_batches, read_committed
from broadsheet.journals.message.uuid import Flags
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.row_mapping import key_indices
from broadsheet.spark_bridge.publish import PublishTarget, journal_index, publish_dataframe
from broadsheet.wire.key_range import GROUPS, group_of
from tests.support.dividing import close, divide, make_parts
from tests.support.spark import make_journals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

ROWS = 3_000


@pytest.fixture
def target(services: Services) -> PublishTarget:
    """Two journals that no other test uses."""
    name = uuid4().hex
    journals = (f"test/{name}/part-000", f"test/{name}/part-001")
    make_journals(services.broker_address, journals)
    return PublishTarget(
        broker_address=services.broker_address,
        etcd_endpoints=services.etcd.endpoints,
        root=f"/test/{name}",
        journals=journals,
    )


def _rows(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).selectExpr("concat('key-', id % 50) AS key", "id")


def _read(target: PublishTarget, *, committed: bool) -> list[list[dict[str, Any]]]:
    """Return the messages of each journal in their order, acknowledgements left out."""
    read = read_committed if committed else read_batches

    async def all_of(client: JournalClient, journal: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async for batch in read(client, journal, JsonType(), block=False):
            for flags, message in zip(batch.flags, batch.messages(), strict=True):
                if flags != Flags.ACK_TXN:
                    found.append(message)
        return found

    async def every_journal() -> list[list[dict[str, Any]]]:
        async with JournalClient(target.broker_address) as client:
            return [await all_of(client, journal) for journal in target.journals]

    return asyncio.run(every_journal())


def _ids(messages: Sequence[Sequence[dict[str, Any]]]) -> Counter[int]:
    return Counter(message["id"] for journal in messages for message in journal)


def _fail_once_in_the_middle(row: dict[str, Any]) -> dict[str, Any]:
    """Kill the task's process in its first attempt, when most of it is written already."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and row["id"] > ROWS - 100:
        os._exit(1)
    return row


def test_publish_dataframe_every_row_once_in_order(
    spark: SparkSession, target: PublishTarget
) -> None:
    """One task a journal, sorted: keys keep their journal, and a journal its order."""
    published = publish_dataframe(
        _rows(spark), target, publication="one", key="key", order_by=["id"]
    )

    read = _read(target, committed=True)
    assert published.messages == ROWS
    assert _ids(read) == Counter(range(ROWS))
    for journal in read:
        assert [message["id"] for message in journal] == sorted(m["id"] for m in journal)
    assert not {m["key"] for m in read[0]} & {m["key"] for m in read[1]}


def test_publish_dataframe_rows_of_a_divided_journal_go_to_its_parts(
    spark: SparkSession, target: PublishTarget
) -> None:
    """The caller names the parts, too, as in a listing: no key of the other journal moves. A second publication of the
    name, by a caller who names the first journals alone, is the same.
    """
    parts = divide(target.broker_address, target.journals[0], is_told=True)
    whole = replace(target, journals=(*target.journals, *parts))
    for to in (whole, target):
        published = publish_dataframe(
            _rows(spark), to, publication="one", key="key", order_by=["id"]
        )
        assert published.messages == ROWS
    _, other, *halves = _read(whole, committed=True)

    assert _ids([other, *halves]) == Counter(range(ROWS))
    for journal in (other, *halves):
        assert [message["id"] for message in journal] == sorted(m["id"] for m in journal)
    mapped = key_indices(pa.array([m["key"] for m in other]), target.journals, name="key")
    assert set(mapped.tolist()) == {1}
    groups = [{group_of(m["key"].encode()) < GROUPS // 2 for m in half} for half in halves]
    assert groups == [{True}, {False}]


def test_publish_dataframe_whose_tasks_learn_of_a_division_is_committed_in_the_parts(
    spark: SparkSession, target: PublishTarget, tmp_path: Path
) -> None:
    """The parts are there when the job begins, and the caller lists them; their journal, and a part of it, are divided
    before its task's first append. No key of the other journal moves, and the name stays that publication's.
    """
    address, journal = target.broker_address, target.journals[0]
    low, high = make_parts(address, journal)
    whole = replace(target, journals=(*target.journals, low, high))
    mapped = key_indices(
        pa.array([f"key-{id_ % 50}" for id_ in range(ROWS)]), target.journals, name="key"
    ).tolist()
    first = mapped.index(0)

    def message_of(row: dict[str, Any]) -> dict[str, Any]:
        # Rows are encoded before they are appended; refused ones are encoded again.
        if row["id"] == first and not closed.exists():
            closed.touch()
            close(address, journal)
            divide(address, low, GROUPS // 4)
        return row

    closed = tmp_path / "closed"
    for to in (whole, target):
        published = publish_dataframe(
            _rows(spark), to, publication="one", key="key", order_by=["id"], message_of=message_of
        )
        assert published.messages == ROWS
    parts = (f"{low}-0000", f"{low}-0400", high)
    read = _read(replace(target, journals=(*target.journals, low, *parts)), committed=True)
    none, other, divided, *taking = [[each for each in found if "id" in each] for found in read]

    assert not none
    assert not divided
    assert all(taking)
    assert _ids([other, *taking]) == Counter(range(ROWS))
    assert {mapped[message["id"]] for message in other} == {1}


def test_publish_dataframe_names_with_dots_and_backticks_are_columns(
    spark: SparkSession, target: PublishTarget
) -> None:
    """A column `a.b` beside a struct `a` with a field `b` that sorts the other way, and a key with a backtick.

    Why: an unquoted name means the struct's field, by which the rows were sorted in silence.
    """
    rows = spark.range(100).selectExpr(
        "id",
        "id AS `a.b`",
        "named_struct('b', -id) AS a",
        "concat('key-', id % 7) AS `k``.x`",
        "0 AS __journal_index",
    )

    publish_dataframe(rows, target, publication="one", key="k`.x", order_by=["a.b"])

    read = _read(target, committed=True)
    assert _ids(read) == Counter(range(100))
    assert all(journal for journal in read)
    for journal in read:
        assert [message["id"] for message in journal] == sorted(m["id"] for m in journal)
        assert all(message["__journal_index"] == 0 for message in journal)


def test_publish_dataframe_task_dies_and_is_retried_every_row_once(
    spark: SparkSession, target: PublishTarget
) -> None:
    """The dead attempt's messages are in the journals, but never acknowledged: readers of committed ones miss them.

    Arrow hands over whole batches, so small ones make sure that some were appended before the task dies.
    """
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        publish_dataframe(
            _rows(spark),
            target,
            publication="one",
            key="key",
            order_by=["id"],
            message_of=_fail_once_in_the_middle,
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert _ids(_read(target, committed=True)) == Counter(range(ROWS))
    assert _ids(_read(target, committed=False)).total() > ROWS


def test_publish_dataframe_same_name_again_publishes_nothing(
    spark: SparkSession, target: PublishTarget
) -> None:
    """A driver that died after the commit and runs again finds the publication, whatever the DataFrame now holds."""
    first = publish_dataframe(_rows(spark), target, publication="one", key="key", order_by=["id"])

    again = publish_dataframe(
        _rows(spark).where("id < 10"), target, publication="one", key="key", order_by=["id"]
    )

    assert again == first
    assert _ids(_read(target, committed=True)) == Counter(range(ROWS))


def test_publish_dataframe_unknown_column_is_named(
    spark: SparkSession, target: PublishTarget
) -> None:
    """Before any task runs, the error names the column and those that there are."""
    with pytest.raises(PublishError, match=r"no column nokey; there are \['key', 'id'\]"):
        publish_dataframe(_rows(spark), target, publication="x", key="nokey", order_by=["id"])


def test_journal_index_agrees_with_modulo_mapping(spark: SparkSession) -> None:
    """Other publishers of the same journals, in Python or Go, must choose the same one for each key."""
    keys = ["", "N14228", "unassigned-9E", "ünïcödé ✈", "x" * 300]
    targets = [MappedJournal(str(index), "application/x-ndjson") for index in range(7)]
    mapping = modulo_mapping(lambda key: str(key).encode(), lambda: targets)

    rows = spark.createDataFrame([(key,) for key in keys], "key string")
    found = [row[0] for row in rows.select(journal_index("key", 7)).collect()]

    assert found == [int(mapping(key).journal) for key in keys]


def test_spark_runs_on_the_jre_of_pypi(tmp_path: Path) -> None:
    """On a machine without Java the wheel's trimmed JRE must do: a real job, Python worker included."""
    program = (
        "from broadsheet.spark_bridge.session import start_session\n"
        "s = start_session('local[1]', app_name='jre', conf={'spark.ui.enabled': 'false'})\n"
        "print(s.sparkContext.parallelize(range(10), 1).map(lambda x: x * x).sum())\n"
        "s.stop()\n"
    )
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON")
    }
    # Spark's scripts need the base tools, none of which is java.
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "ps", "cat", "uname", "env"):
        if found := subprocess.run(["which", tool], capture_output=True, text=True).stdout.strip():
            (tools / tool).symlink_to(found)
    environ.update(PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache"))

    ran = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )

    assert ran.stdout.strip().endswith("285"), ran.stderr[-2000:]
    assert list((tmp_path / "cache" / "broadsheet" / "java").iterdir())
