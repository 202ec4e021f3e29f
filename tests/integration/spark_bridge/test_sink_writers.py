"""What Spark does with the sink's writers, without Spark: pickles them, writes in tasks, commits elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructType

from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_sink import batch_writer, stream_writer
from tests.support.published import ids_of, messages_of
from tests.support.sink_queries import SINK_JOURNALS
from tests.support.spark import make_journals
from tests.support.spark_tasks import micro_batch, sent

pytestmark = pytest.mark.etcd

SCHEMA = StructType().add("id", LongType())
T = TypeVar("T")


@pytest.fixture
def options(sink_options: Mapping[str, str]) -> Mapping[str, str]:
    """Options for two journals, by the column `id`."""
    return {**sink_options, "key": "id"}


async def _elsewhere(function: Callable[[], T]) -> T:
    """Call a function where no event loop runs, as in Spark's processes."""
    return await asyncio.to_thread(function)


def _batches(ids: Sequence[int], *, null: bool = False) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"id": pa.array(list(ids), pa.int64())})
    if null:
        yield pa.record_batch({"id": pa.array([None], pa.int64())})


async def _committed(options: Mapping[str, str]) -> Counter[int]:
    return ids_of(await messages_of(options["address"], SINK_JOURNALS))


async def _written(options: Mapping[str, str]) -> int:
    return ids_of(await messages_of(options["address"], SINK_JOURNALS, committed=False)).total()


async def test_batch_writer_publishes_what_the_chosen_attempts_wrote(
    options: Mapping[str, str],
) -> None:
    """Three attempts of two tasks; Spark hands over the messages of two, and perhaps None."""

    def write() -> None:
        writer = batch_writer(options, SCHEMA, overwrite=False)
        tasks = [sent(writer).write(_batches(ids)) for ids in (range(10), range(10, 20))]
        sent(writer).write(_batches(range(10)))  # an attempt that lost
        sent(writer).commit([*map(sent, tasks), None])

    await _elsewhere(write)

    assert await _committed(options) == Counter(range(20))
    assert await _written(options) == 30


async def test_batch_writer_finishes_a_name_that_is_committed(options: Mapping[str, str]) -> None:
    """The second job's tasks append nothing, and its commit changes nothing."""

    def write() -> None:
        writer: Any = batch_writer({**options, "publication": "p"}, SCHEMA, overwrite=False)
        writer.commit([sent(writer).write(_batches(range(10)))])

    await _elsewhere(write)
    await _elsewhere(write)

    assert await _committed(options) == Counter(range(10))
    assert await _written(options) == 10


async def test_batch_writer_fails_on_the_driver_for_rows_that_no_attempt_can_write(
    options: Mapping[str, str],
) -> None:
    """The task succeeds, as Spark sees it, so that it is not tried again; the commit raises, and publishes nothing."""

    def write() -> None:
        writer = batch_writer(options, SCHEMA, overwrite=False)
        messages: list[WriterCommitMessage | None] = [
            sent(writer.write(_batches(range(10), null=null))) for null in (False, True)
        ]
        with pytest.raises(PublishError, match=r"column id: .* is null.*Nothing was published"):
            writer.commit(messages)
        writer.abort(messages)

    await _elsewhere(write)

    assert await _committed(options) == Counter()


async def test_stream_writer_commits_each_batch_of_a_query_once(
    options: Mapping[str, str],
) -> None:
    """Two batches, the second of which is run again after its commit; another query's first batch is another one."""

    def run(query: str, batch: int, ids: range) -> None:
        with micro_batch(query, batch):
            message = sent(stream_writer(options, SCHEMA, overwrite=False)).write(_batches(ids))
        stream_writer(options, SCHEMA, overwrite=False).commit([sent(message)], batch)

    for query, batch, ids in (
        ("q", 0, range(10)),
        ("q", 1, range(10, 20)),
        ("q", 1, range(10, 20)),
        ("other", 0, range(20, 30)),
    ):
        await _elsewhere(lambda query=query, batch=batch, ids=ids: run(query, batch, ids))  # type: ignore[misc]

    assert await _committed(options) == Counter(range(30))
    assert await _written(options) == 30


async def test_stream_writers_of_a_copied_checkpoint_publish_into_their_own_journals(
    options: Mapping[str, str],
) -> None:
    """A checkpoint is copied, with the query's id in it, and both queries run, each into its own journal.

    Why: one query's record counted for the other, and rows of both were left out without an error.
    """

    def run(journal: str, batch: int, ids: range) -> None:
        own = {**options, "selector": f"name={journal}"}
        with micro_batch("q", batch):
            message = sent(stream_writer(own, SCHEMA, overwrite=False)).write(_batches(ids))
        stream_writer(own, SCHEMA, overwrite=False).commit([sent(message)], batch)

    for journal, batch, ids in (
        (SINK_JOURNALS[0], 0, range(10)),
        (SINK_JOURNALS[0], 1, range(10, 20)),
        (SINK_JOURNALS[1], 0, range(20, 30)),
        (SINK_JOURNALS[0], 2, range(30, 40)),
        (SINK_JOURNALS[1], 1, range(40, 50)),
        (SINK_JOURNALS[1], 1, range(40, 50)),
    ):
        await _elsewhere(lambda journal=journal, batch=batch, ids=ids: run(journal, batch, ids))  # type: ignore[misc]

    assert await _committed(options) == Counter(range(50))
    assert await _written(options) == 50


async def test_stream_writer_of_a_copied_checkpoint_fails_for_other_rows(
    options: Mapping[str, str],
) -> None:
    """The copy writes into the same journals: the batch that it did not commit fails on the driver, without a retry.

    The selector of the second run is a part of the first one's, or the same, or says the same in other words.
    """

    def run(selector: str, batch: int, ids: range) -> None:
        own = {**options, "selector": selector}
        with micro_batch("q", batch):
            message = sent(stream_writer(own, SCHEMA, overwrite=False)).write(_batches(ids))
        stream_writer(own, SCHEMA, overwrite=False).commit([sent(message)], batch)

    for batch in range(2):
        await _elsewhere(lambda batch=batch: run("name:prefix=sink/", batch, range(10)))  # type: ignore[misc]

    for selector, batch, reason in (
        ("name:prefix=sink/", 1, "are others"),
        ("name:prefix=sink/part-", 1, "are others"),
        ("name:prefix=sink/", 0, "batch 1 is committed"),
        (f"name={SINK_JOURNALS[0]}", 1, f"{SINK_JOURNALS[1]} are not among"),
    ):
        with pytest.raises(PublishError, match=f"of query q: .*{reason}.*copy.*root"):
            await _elsewhere(lambda s=selector, b=batch: run(s, b, range(90, 100)))  # type: ignore[misc]

    assert await _committed(options) == Counter([*range(10), *range(10)])
    assert await _written(options) == 20


async def test_stream_writer_abort_leaves_nothing_visible(options: Mapping[str, str]) -> None:
    """An aborted batch is written again by the restarted query."""

    def run(batch: int, *, commit: bool) -> None:
        writer = stream_writer(options, SCHEMA, overwrite=False)
        with micro_batch("q", batch):
            message = writer.write(_batches(range(10)))
        if commit:
            writer.commit([message], batch)
        else:
            writer.abort([message, None], batch)

    await _elsewhere(lambda: run(0, commit=False))
    assert await _committed(options) == Counter()

    await _elsewhere(lambda: run(0, commit=True))

    assert await _committed(options) == Counter(range(10))
    assert await _written(options) == 20


async def test_writers_refuse_what_a_journal_cannot_do(options: Mapping[str, str]) -> None:
    """The error names the mode, or the option."""

    def refuse() -> None:
        with pytest.raises(PublishError, match=r'mode: expected mode\("append"\)'):
            batch_writer(options, SCHEMA, overwrite=True)
        with pytest.raises(PublishError, match="outputMode: expected"):
            stream_writer(options, SCHEMA, overwrite=True)
        with pytest.raises(OptionError, match="option publication: expected nothing"):
            stream_writer({**options, "publication": "x"}, SCHEMA, overwrite=False)
        with pytest.raises(OptionError, match=r"option selector: .*matches journals"):
            stream_writer({**options, "selector": "name=no/where"}, SCHEMA, overwrite=False)
        with pytest.raises(OptionError, match="option authKeysFile: expected a file"):
            stream_writer({**options, "authKeysFile": "/no/where"}, SCHEMA, overwrite=False)

    await _elsewhere(refuse)


async def test_journals_of_two_content_types_are_refused(options: Mapping[str, str]) -> None:
    """The error names a journal of each."""
    await asyncio.to_thread(
        make_journals, options["address"], ["sink/other"], content_type="text/csv"
    )
    message = r"option selector: .*one content type.*part-001 has application/x-ndjson"

    def refuse() -> None:
        with pytest.raises(OptionError, match=message):
            batch_writer(options, SCHEMA, overwrite=False)

    await _elsewhere(refuse)
