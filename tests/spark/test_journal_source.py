"""Journals as DataFrames on a real cluster: every committed message once, through restarts and lost executors."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import pytest

from broadsheet.spark_bridge.cluster.shard_cluster import Services
from tests.support.eventually import eventually_sync
from tests.support.history_store import ROUNDS, ROWS, HistoryStore
from tests.support.journal_writers import JournalWriter
from tests.support.spark import executor_of, make_journals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

SCHEMA = "id BIGINT"


class Topic:
    """Some journals of one test, and the queries that read them."""

    def __init__(self, spark: SparkSession, services: Services, count: int) -> None:
        from broadsheet.spark_bridge.formats import register_formats

        register_formats(spark)
        self.spark = spark
        self.address = services.broker_address
        self.prefix = f"test/{uuid4().hex}/"
        self.journals = [f"{self.prefix}part-{index:03d}" for index in range(count)]
        make_journals(self.address, self.journals)

    def writer(self, index: int = 0) -> JournalWriter:
        """Return a new producer."""
        return JournalWriter(self.address, self.journals[index])

    def read(self, **options: object) -> DataFrame:
        """Return what is committed now."""
        return self._with(self.spark.read, **options)

    def read_stream(self, **options: object) -> DataFrame:
        """Return what is committed from now on."""
        return self._with(self.spark.readStream, **options)

    def _with(self, reader: Any, **options: object) -> DataFrame:
        base = {"address": self.address, "selector": f"name:prefix={self.prefix}", "schema": SCHEMA}
        frame: DataFrame = reader.format("journal").options(**{**base, **options}).load()
        return frame


@pytest.fixture
def topic(spark: SparkSession, services: Services) -> Callable[[int], Topic]:
    """Make journals that no other test uses."""
    return lambda count: Topic(spark, services, count)


def differences(found: DataFrame, expected: DataFrame) -> list[Any]:
    """Return ids that are missing, too many or more than once: a full outer join of the two."""
    from pyspark.sql import functions as F  # noqa: N812 - everyone calls it so

    counted = found.groupBy("id").agg(F.count("*").alias("times"))
    joined = counted.join(expected.select("id", F.lit(1).alias("wanted")), "id", "full_outer")
    return joined.where("times IS NULL OR wanted IS NULL OR times <> 1").collect()


def test_batch_reads_what_is_committed_by_many_tasks(topic: Callable[[int], Topic]) -> None:
    """Plan: a journal of 2,000 messages, one of 100 and an open transaction, in partitions of 64 KiB.

    Why: one large journal must be read in parallel, and what is not committed not at all.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everyone calls it so

    journals = topic(2)
    large, small, open_ = journals.writer(), journals.writer(1), journals.writer(1)
    large.uncommitted(range(2000))
    large.acknowledge()
    small.committed(range(2000, 2100))
    open_.uncommitted(range(-9, 0))

    frame = journals.read(maxBytesPerPartition=65536, includeMetadata="true")
    rows = frame.withColumn("task", F.spark_partition_id()).collect()

    assert sorted(row.id for row in rows) == list(range(2100))
    assert len({row.task for row in rows if row["_journal"] == journals.journals[0]}) >= 2
    first = next(row for row in rows if row.id == 2000)
    assert (first["_journal"], first["_begin"]) == (journals.journals[1], 0)
    assert first["_producer"] == f"{small.producer:012x}"


def test_batch_over_stored_history_asks_the_broker_for_a_list_alone(
    topic: Callable[[int], Topic], tmp_path: Path
) -> None:
    """Plan: a journal of some published fragments, read by tasks on executors; then one known read of the broker.

    Why: the broker's own count of what it sent then has that read alone.
    """
    from broadsheet.wire.journal_pb2 import ZSTANDARD

    spark = topic(1).spark  # which knows the format
    with HistoryStore.started(tmp_path) as store:
        history = store.history(ZSTANDARD)
        frame = spark.read.format("journal").options(
            address=store.broker.address,
            selector=f"name={history.journal}",
            schema=SCHEMA,
            end=json.dumps({history.journal: history.end}),
            fragmentRoots=str(store.root),
        )

        ids = sorted(row.id for row in frame.load().collect())
        read = store.read_through_the_broker(history)

        eventually_sync(lambda: store.sent_bytes() >= read)
        assert store.sent_bytes() == read
    assert ids == list(range((ROUNDS - 1) * ROWS))


class Collected:
    """A query that keeps the ids of each micro-batch."""

    def __init__(self, stream: DataFrame, checkpoint: Path) -> None:
        self.batches: dict[int, list[int]] = {}
        self._stream = stream
        self._checkpoint = checkpoint

    def run(self) -> StreamingQuery:
        """Start the query, or start it again where it was."""

        def keep(frame: DataFrame, number: int) -> None:
            ids = sorted(row.id for row in frame.collect())
            assert self.batches.setdefault(number, ids) == ids, "a repeated batch has other rows"

        return (
            self._stream.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._checkpoint))
            .start()
        )

    def ids(self) -> list[int]:
        """Return all ids so far, in the order of batches."""
        return [id_ for number in sorted(self.batches) for id_ in self.batches[number]]


def test_stream_gives_straddling_transactions_whole_over_restarts(
    topic: Callable[[int], Topic], tmp_path: Path
) -> None:
    """Plan: a transaction begun in one trigger, acknowledged two triggers and a restart later, others between.

    Then the last batch's commit is taken from the checkpoint, so that Spark repeats it. Why: exactly once is only worth
    its name if it holds over these.
    """
    journals = topic(2)
    long, short = journals.writer(), journals.writer(1)
    collected = Collected(journals.read_stream(maxRowsPerTrigger=50), tmp_path / "checkpoint")
    query = collected.run()
    try:
        long.uncommitted(range(30))
        short.committed(range(100, 160))
        query.processAllAvailable()
        assert sorted(collected.ids()) == list(range(100, 160))
        long.uncommitted(range(30, 70))
        query.processAllAvailable()
        query.stop()
        query = collected.run()
        short.committed(range(160, 170))
        query.processAllAvailable()
        long.acknowledge()
        query.processAllAvailable()
        assert list(range(70)) in collected.batches.values()
        assert sorted(collected.ids()) == [*range(70), *range(100, 170)]

        query.stop()
        last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        query = collected.run()
        query.processAllAvailable()
        assert sorted(collected.ids()) == [*range(70), *range(100, 170)]
    finally:
        query.stop()


def test_available_now_reads_a_topic_and_ends(
    topic: Callable[[int], Topic], tmp_path: Path
) -> None:
    """Plan: 2 journals, 120 rows a trigger, run it twice. Why: this is how a nightly job reads a stream."""
    journals = topic(2)
    writers = [journals.writer(index) for index in range(2)]
    for index, writer in enumerate(writers):
        writer.committed(range(1000 * index, 1000 * index + 100))
    stream = journals.read_stream(maxRowsPerTrigger=120)
    found: list[int] = []
    for _ in range(2):
        query = (
            stream.writeStream.foreachBatch(
                lambda frame, _: found.extend(row.id for row in frame.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600), "the stream did not end"
        writers[0].committed([9999])
    assert sorted(found) == sorted([*range(100), *range(1000, 1100), 9999])


def test_executor_killed_in_a_read_loses_and_repeats_nothing(
    topic: Callable[[int], Topic], tmp_path: Path
) -> None:
    """Plan: tasks say where they run and wait; kill one's executor; join what was read with what was written.

    Why: a task that runs again must get the very same rows.
    """
    journals = topic(1)
    writer = journals.writer()
    writer.uncommitted(range(4000))
    writer.acknowledge()
    frame = journals.read(maxBytesPerPartition=100_000)
    release = tmp_path / "go"
    killed = threading.Thread(target=_kill_an_executor, args=(tmp_path, release))
    killed.start()
    found = frame.mapInArrow(_Held(str(tmp_path), str(release)), "id BIGINT").persist()
    try:
        assert differences(found, journals.spark.range(4000)) == []
    finally:
        killed.join()
        found.unpersist()
    assert (tmp_path / "killed").exists()


class _Held:
    """Runs in each task: says which process it is, and goes on once it may."""

    def __init__(self, directory: str, release: str) -> None:
        self._directory = directory
        self._release = release

    def __call__(self, batches: Any) -> Any:
        import time

        for batch in batches:
            with open(f"{self._directory}/worker-{os.getpid()}", "w"):  # noqa: PTH123 - no imports in tasks
                pass
            deadline = time.monotonic() + 60
            while not os.path.exists(self._release) and time.monotonic() < deadline:  # noqa: PTH110
                time.sleep(0.02)
            yield batch


def _kill_an_executor(directory: Path, release: Path) -> None:
    """Kill the executor of the first task that read something, and let the others go on."""
    try:
        told = eventually_sync(lambda: list(directory.glob("worker-*")))
        pid = int(told[0].name.partition("-")[2])
        executor_of(psutil.Process(pid)).send_signal(signal.SIGKILL)
        (directory / "killed").touch()
    finally:
        release.touch()


def test_wrong_option_is_named_where_the_query_fails(topic: Callable[[int], Topic]) -> None:
    """Plan: a misspelt option, a wrong value. Why: the error crosses three processes to its reader."""
    from pyspark.errors import PySparkException

    journals = topic(1)
    with pytest.raises(PySparkException, match="option maxrowspertriger: expected one of"):
        journals.read(maxRowsPerTriger="5").collect()
    with pytest.raises(PySparkException, match="option start: expected earliest, latest, a time"):
        journals.read(start="yesterday").collect()
