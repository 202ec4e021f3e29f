"""The journal source as Spark drives it, without Spark: a real broker, readers pickled, made again and asked again."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from structlog.testing import capture_logs

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.errors import FramingError
from broadsheet.journals.transport import PATIENCE_SECONDS
from broadsheet.spark_bridge.errors import (
    JournalBytesGoneError,
    QuerySourceGoneError,
    QuerySourceReplacedError,
)
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source import stream_plan
from broadsheet.spark_bridge.journal_source.columns import with_metadata
from broadsheet.spark_bridge.journal_source.partition_reader import JournalPartition
from broadsheet.spark_bridge.journal_source.readers import stream_reader
from broadsheet.spark_bridge.journal_source.schema_inference import infer_schema
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.labels import CONTENT_TYPE, SEALED_AT, SPLIT_OF, label_set, union
from tests.support.broker import journal_spec
from tests.support.journal_reads import IDS, Query, Topic, kept
from tests.support.journal_writers import JournalWriter
from tests.support.spark import make_journals

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker for all tests, which keep to their own journals."""
    with EmbeddedBrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.address


def test_batch_reads_each_committed_message_once_in_parallel(address: str) -> None:
    """Plan: two journals; a large transaction, an open one between its messages; partitions of 4 KiB.

    Why: what is not committed must not be seen, and one journal is read by many tasks.
    """
    topic = Topic(address, 2)
    first, open_, second = topic.writer(), topic.writer(), topic.writer(1)
    for begin in range(0, 1000, 100):
        first.uncommitted(range(begin, begin + 100))
        open_.uncommitted([-begin - 1])
    first.acknowledge()
    second.committed(range(1000, 1100))

    partitions, rows = topic.batch(maxBytesPerPartition=4096)

    assert Counter(row["id"] for row in rows) == Counter(range(1100))
    assert partitions >= 15


def test_batch_is_as_many_partitions_as_it_must_be(address: str) -> None:
    """Plan: 0.7 MB in one journal and some messages in another, read with and without `minPartitions`.

    Why: a batch smaller than a partition would leave all cores but one idle.
    """
    topic = Topic(address, 2)
    topic.writer().committed(range(8000))
    topic.writer(1).committed(range(8000, 8100))

    least, rows = topic.batch()
    partitions, same_rows = topic.batch(minPartitions=6)

    assert least == 2
    assert 6 <= partitions <= 9
    assert Counter(row["id"] for row in rows) == Counter(range(8100))
    assert Counter(row["id"] for row in same_rows) == Counter(range(8100))


@pytest.mark.parametrize(("processors", "least"), [(1, 1), (2, 2), (64, 2)])
def test_batch_uses_the_processors_there_are(
    address: str, monkeypatch: pytest.MonkeyPatch, processors: int, least: int
) -> None:
    """Plan: 9 MB in one journal, and a driver with some processors.

    Why: as with Spark's files, a batch of one partition would leave processors idle; one of many small ones costs more.
    """
    topic = Topic(address, 1)
    topic.writer().committed(range(100_000))
    monkeypatch.setattr(os, "cpu_count", lambda: processors)

    partitions, rows = topic.batch()

    assert partitions == least
    assert len({row["id"] for row in rows}) == 100_000


def test_metadata_places_are_those_of_the_messages(address: str) -> None:
    """Plan: read `_begin` and `_end` of messages among holes, and the bytes there. Why: they are keys."""
    topic = Topic(address, 1)
    writer, other = topic.writer(), topic.writer()
    content = b""
    for index in range(50):
        line = writer.line(0, id=index)
        hole = other.line(1, id=-index)
        content += line + hole
        writer.append(line + hole)
    _, rows = topic.batch(with_metadata(IDS), includeMetadata="true", maxBytesPerPartition=1000)
    for row in rows:
        assert json.loads(content[row["_begin"] : row["_end"]])["id"] == row["id"]
        assert row["_producer"] == f"{writer.producer:012x}"
    assert len(rows) == 50


def test_transaction_over_micro_batches_comes_whole_with_its_acknowledgement(address: str) -> None:
    """Plan: a transaction begun in one batch and acknowledged two batches later, others between; restart after each.

    Why: half a transaction, or one given twice, is what this source exists to prevent.
    """
    topic = Topic(address, 1)
    long, short = topic.writer(), topic.writer()
    query = Query(topic)

    long.uncommitted(range(10))
    short.committed([100])
    assert query.trigger() == [100]
    query.close()
    query.restart()
    long.uncommitted(range(10, 20))
    short.committed([101])
    assert query.trigger() == [101]
    query.close()
    query.restart()
    long.acknowledge()
    assert query.trigger() == list(range(20))
    assert query.trigger() == []

    query.close()
    query.restart()
    assert [query.ids(batch) for batch in range(3)] == [[100], [101], list(range(20))]
    query.close()


@pytest.mark.parametrize("limit", [{"maxRowsPerTrigger": 30}, {"maxBytesPerTrigger": 4000}])
def test_limits_bound_batches_and_repeat_alike(address: str, limit: dict[str, int]) -> None:
    """Plan: 3 journals of 100 and a transaction of 50 rows; small batches; each repeated by a new reader.

    Why: a restarted query must get the same batches, and no journal may wait for ever.
    """
    topic = Topic(address, 3)
    for index in range(3):
        writer = topic.writer(index)
        writer.committed(range(1000 * index, 1000 * index + 100))
        writer.uncommitted(range(1000 * index + 100, 1000 * index + 150))
        writer.acknowledge()
    query = Query(topic, **limit)

    batches = query.trigger_to_the_end()

    assert Counter(id_ for ids in batches for id_ in ids) == Counter(
        1000 * index + each for index in range(3) for each in range(150)
    )
    if "maxRowsPerTrigger" in limit:
        assert all(len(ids) <= 30 or len(ids) == 50 for ids in batches)
    assert len(batches) >= 8
    query.close()
    query.restart()
    for number, ids in enumerate(batches):
        assert sorted(query.ids(number)) == sorted(ids)
    query.close()


def test_unlimited_trigger_ignores_limits(address: str) -> None:
    """Plan: limits in the options, and Spark asks for all. Why: so Spark wants it of every source."""
    topic = Topic(address, 1)
    topic.writer().committed(range(100))
    reader = stream_reader(topic.options(maxRowsPerTrigger=7), IDS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reported = reader.reportLatestOffset()
    assert reported is not None
    name = topic.journals[0]
    assert end["journals"][name]["offset"] == reported["journals"][name]["offset"]
    reader.stop()


def test_start_at_latest_is_settled_once(address: str) -> None:
    """Plan: start at the latest; more is written before the first batch is repeated. Why: it would begin later then."""
    topic = Topic(address, 1)
    writer = topic.writer()
    writer.committed([1])
    query = Query(topic, start="latest")
    start = query.offset
    assert query.trigger() == []
    writer.committed([2])
    query.close()
    query.restart()
    assert query.trigger() == [2]
    assert query.spans[0][0] == start

    writer.committed([3])
    query.close()
    query.restart()
    assert query.ids(0) == []
    assert query.ids(1) == [2]
    assert query.trigger() == [3]
    query.close()


def test_start_at_offsets_and_times(address: str) -> None:
    """Plan: the offset and the time of a message in the middle. Why: both are ways to read a part again."""
    topic = Topic(address, 2)
    writer = topic.writer()
    writer.committed(range(5))
    _, rows = topic.batch(with_metadata(IDS), includeMetadata="true")
    middle = rows[2]

    _, rows = topic.batch(start=json.dumps({topic.journals[0]: middle["_begin"]}))
    assert [row["id"] for row in rows] == [2, 3, 4]
    _, rows = topic.batch(start=middle["_published_at"].isoformat())
    assert [row["id"] for row in rows] == [2, 3, 4]
    _, rows = topic.batch(start=datetime(2100, 1, 1, tzinfo=UTC).isoformat())
    assert rows == []
    ends = {topic.journals[0]: middle["_end"], topic.journals[1]: 0}
    _, rows = topic.batch(end=json.dumps(ends))
    assert [row["id"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": '{"no/such": 0}'}, "option start: expected journals that the selector selects"),
        ({"end": '{"no/such": 0}'}, "option end: expected journals that the selector selects"),
        ({"end": "{}"}, "option end: expected of .* an offset up to its write head, 0"),
        ({"start": "latest"}, "option start: expected latest but with readStream only"),
        ({"maxRowsPerTrigger": 1}, "option maxRowsPerTrigger: expected none but with readStream"),
    ],
)
def test_option_that_does_not_fit_the_journals_is_named(
    address: str, options: dict[str, object], said: str
) -> None:
    """Plan: each by itself. Why: nobody reads a stack trace of another process for fun."""
    with pytest.raises(OptionError, match=said):
        Topic(address, 1).batch(IDS, **options)


def test_available_now_stops_where_the_journal_ended(address: str) -> None:
    """Plan: prepare, then write more. Why: such a query must come to its end while others write."""
    topic = Topic(address, 1)
    writer = topic.writer()
    writer.committed(range(10))
    query = Query(topic, maxRowsPerTrigger=4)
    query.reader.prepareForTriggerAvailableNow()
    writer.committed(range(10, 20))
    batches = query.trigger_to_the_end()
    assert [id_ for ids in batches for id_ in ids] == list(range(10))
    assert len(batches) == 3
    query.close()


def test_bytes_that_are_no_message_end_the_read(address: str) -> None:
    """Plan: a broken line, then a value of another type. Why: both errors must say where."""
    topic = Topic(address, 2)
    topic.writer(0).append(b"{}\nno json\n")
    topic.writer(1).append(b'{"id": "x"}\n')
    with pytest.raises(FramingError, match=f"{topic.journals[0]}.*offset 3"):
        topic.batch(selector=f"name={topic.journals[0]}")
    with pytest.raises(FramingError, match=f"{topic.journals[1]}.*offset 0.*column id"):
        topic.batch(selector=f"name={topic.journals[1]}")
    _, rows = topic.batch(selector=f"name={topic.journals[1]}", mode="PERMISSIVE")
    assert rows == [{"id": None}]


def test_columns_are_found_in_the_first_messages(address: str, tmp_path: Path) -> None:
    """Plan: an empty topic, then messages; with metadata, and by DDL. Why: `load()` needs no schema then."""
    del tmp_path
    topic = Topic(address, 2)
    with pytest.raises(OptionError, match="option schema: expected columns as DDL"):
        infer_schema(topic.options())
    writer = topic.writer(1)
    writer.append(
        writer.line(0, id=1, name="x", at="2026-03-01T00:00:00Z", part={"n": 1.5}, tags=["a"])
    )
    found = infer_schema(topic.options())
    assert isinstance(found, StructType)
    assert found.simpleString() == (
        "struct<id:bigint,name:string,at:string,part:struct<n:double>,tags:array<string>>"
    )
    found = infer_schema(topic.options(includeMetadata="true"))
    assert isinstance(found, StructType)
    assert found.names[-6:] == ["_journal", "_begin", "_end", "_uuid", "_producer", "_published_at"]
    assert infer_schema(topic.options(schema="id INT", includeMetadata="true")) == (
        "id INT, _journal string, _begin bigint, _end bigint, _uuid string, _producer string, _published_at timestamp"
    )


def test_bytes_that_are_gone_end_the_read_unless_told_otherwise(address: str) -> None:
    """Plan: two fragments, the first deleted before a query goes on in it. Why: a loss must not pass unseen."""
    topic = Topic(address, 0)
    topic.journals.append(f"{topic.prefix}small")
    writer = topic.writer()

    async def make() -> None:
        async with JournalClient(address) as client:
            spec = journal_spec(
                topic.journals[0], length=1024, labels=label_set((CONTENT_TYPE, NDJSON))
            )
            await client.apply([ApplyRequest.Change(upsert=spec)])

    async def delete_first_fragment() -> int:
        async with JournalClient(address) as client:
            first = (await client.list_fragments(topic.journals[0]))[0].spec
            assert await client.delete_fragments(topic.journals[0], [first])
            return first.end

    asyncio.run(make())
    query = Query(topic, maxRowsPerTrigger=3)
    lenient = Query(topic, maxRowsPerTrigger=3, failOnDataLoss="false")
    writer.committed(range(20))  # each append is a fragment of its own
    assert query.trigger() == lenient.trigger() == [0, 1, 2]
    writer.committed(range(20, 40))
    writer.committed(range(40, 60))
    middle = asyncio.run(delete_first_fragment())
    for each in (query, lenient):
        each.close()
        each.restart()

    with pytest.raises(JournalBytesGoneError, match=rf"bytes \[\d+, {middle}\) are gone"):
        query.trigger()
    assert [id_ for ids in lenient.trigger_to_the_end() for id_ in ids] == list(range(20, 60))
    _, rows = topic.batch()
    assert [row["id"] for row in rows] == list(range(20, 60))
    with pytest.raises(OptionError, match="option selector: expected a selector of at least one"):
        topic.batch(selector="name=no/such")
    query.close()
    lenient.close()


def test_replaced_journal_ends_the_query_unless_told_otherwise(address: str) -> None:
    """Plan: a journal is deleted, applied again and filled further than before, while a query is away; one query has
    planned a batch before that it must repeat. Why: the offset looks right, and messages below it would be skipped.
    """
    topic = Topic(address, 2)
    writer = topic.writer()
    writer.committed(range(10))
    topic.writer(1).committed(range(100, 103))
    strict, lenient = Query(topic), Query(topic, failOnDataLoss="false")
    for query in (strict, lenient):
        assert sorted(query.trigger()) == [*range(10), 100, 101, 102]
    writer.committed(range(10, 20))
    limit = strict.reader.getDefaultReadLimit()
    planned = kept(strict.reader.latestOffset(strict.offset, limit))
    partitions = strict.reader.partitions(strict.offset, planned)
    for query in (strict, lenient):
        query.close()
        query.restart()

    async def replace() -> None:
        async with JournalClient(address) as client:
            await client.apply(
                [ApplyRequest.Change(delete=topic.journals[0], expect_mod_revision=-1)]
            )

    asyncio.run(replace())
    make_journals(address, topic.journals[:1])
    topic.writer().committed(range(200, 260))

    with pytest.raises(
        QuerySourceReplacedError, match=f"{topic.journals[0]} does not hold .*epoch"
    ):
        strict.reader.partitions(strict.offset, planned)
    with pytest.raises(QuerySourceReplacedError, match="does not hold"):
        list(strict.reader.read(partitions[0]))
    assert list(lenient.reader.read(partitions[0])) == []
    with pytest.raises(QuerySourceReplacedError, match="failOnDataLoss"):
        strict.trigger()
    assert lenient.reader.partitions(lenient.offset, planned) == []
    lenient.close()
    lenient.restart()
    assert lenient.trigger() == list(range(200, 260))
    assert lenient.ids(len(lenient.spans) - 1) == list(range(200, 260))
    topic.writer().committed([300])
    assert lenient.trigger() == [300]
    strict.close()
    lenient.close()


def _delete(address: str, journal: str) -> None:
    async def delete() -> None:
        async with JournalClient(address) as client:
            await client.apply([ApplyRequest.Change(delete=journal, expect_mod_revision=-1)])

    asyncio.run(delete())


def _planned_of_two(topic: Topic, **options: object) -> tuple[Query, dict[str, Any]]:
    """Return a query that read ten messages of each journal, and planned a batch with ten more, and was restarted."""
    query = Query(topic, **options)
    assert sorted(query.trigger()) == [*range(10), *range(100, 110)]
    topic.writer().committed(range(10, 20))
    topic.writer(1).committed(range(110, 120))
    planned = kept(query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit()))
    query.spans.append((query.offset, planned))
    query.offset = planned
    query.close()
    query.restart()
    return query, planned


@pytest.mark.parametrize("lenient", [True, False])
def test_planned_batch_whose_journal_was_deleted_is_finished_or_refused_by_name(
    address: str, lenient: bool
) -> None:
    """Plan: a batch is planned and fails, and one of its two journals is deleted for good before the restart.

    Why: the batch could never be finished, whatever `failOnDataLoss` said ("missing content type").
    """
    topic = Topic(address, 2)
    topic.writer().committed(range(10))
    topic.writer(1).committed(range(100, 110))
    query, _ = _planned_of_two(topic, failOnDataLoss=str(not lenient).lower())
    _delete(address, topic.journals[1])

    if lenient:
        assert query.ids(1) == list(range(10, 20))
        assert query.trigger() == []
    else:
        with pytest.raises(QuerySourceGoneError, match=f"{topic.journals[1]} does not exist.*fail"):
            query.ids(1)
    if lenient:
        make_journals(address, topic.journals[1:])
        topic.writer(1).committed([7])
        topic.writer().committed([20])
        query.close()
        query.restart()
        assert sorted(query.trigger()) == [7, 20]
    query.close()


def test_planned_batch_whose_journal_is_not_selected_any_more_is_delivered_whole(
    address: str,
) -> None:
    """Plan: a batch of two journals is planned, and the query restarted with a selector of one of them.

    Why: the checkpoint counts the batch as read, so rows that it left out would never come.
    """
    topic = Topic(address, 2)
    topic.writer().committed(range(10))
    topic.writer(1).committed(range(100, 110))
    query, _ = _planned_of_two(topic)
    query.options["selector"] = f"name={topic.journals[0]}"
    query.close()
    query.restart()

    assert sorted(query.ids(1)) == [*range(10, 20), *range(110, 120)]
    topic.writer().committed([20])
    topic.writer(1).committed([120])
    assert query.trigger() == [20]
    query.close()


@pytest.mark.parametrize("lenient", [True, False])
def test_journal_deleted_under_a_running_query_is_left_out_or_refused_by_name(
    address: str, lenient: bool
) -> None:
    """Plan: a journal is deleted between the plan of a batch and its task, and while it has content to read.

    Why: a query must neither end with a broker's error it was told to go on from, nor go on in silence otherwise.
    """
    topic = Topic(address, 2)
    topic.writer().committed(range(10))
    topic.writer(1).committed(range(100, 110))
    query = Query(topic, failOnDataLoss=str(not lenient).lower(), maxRowsPerTrigger=10)
    limit = query.reader.getDefaultReadLimit()
    planned = kept(query.reader.latestOffset(query.offset, limit))
    query.spans.append((query.offset, planned))
    partitions = query.reader.partitions(query.offset, planned)
    _delete(address, topic.journals[1])

    if lenient:
        assert query.ids(0) == list(range(5))
        query.offset = planned
        assert [id_ for ids in query.trigger_to_the_end() for id_ in ids] == list(range(5, 10))
    else:
        (gone,) = (
            each
            for each in partitions
            if isinstance(each, JournalPartition) and each.bytes.journal == topic.journals[1]
        )
        with pytest.raises(QuerySourceGoneError, match=topic.journals[1]):
            list(query.reader.read(gone))
        with pytest.raises(QuerySourceGoneError, match=topic.journals[1]):
            query.reader.latestOffset(planned, limit)
    query.close()


def test_parts_of_a_divided_journal_are_read_behind_its_seal(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan: a journal, and a part of it that has messages before the journal is sealed, and read; batches of 4 rows.

    Why: a key's messages are in the journal first, and a stream that reads both together takes them out of order.
    """
    monkeypatch.setattr(stream_plan, "DISCOVERY_SECONDS", 0.0)
    topic = Topic(address, 1)
    (journal,) = topic.journals
    topic.writer().committed(range(10))
    query = Query(topic, maxRowsPerTrigger=4)
    part = f"{journal}-0000"
    make_journals(address, [part], labels={SPLIT_OF: journal})
    JournalWriter(address, part).committed(range(100, 106))
    assert query.trigger_to_the_end() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    topic.writer().committed(range(10, 13))
    sealed = _seal(address, journal)
    query.restart()
    batches = query.trigger_to_the_end()

    assert [each for batch in batches for each in batch] == [10, 11, 12, *range(100, 106)]
    assert kept(query.offset)["journals"][journal]["offset"] == sealed
    query.close()


def test_stream_of_a_divided_journal_alone_is_told_of_its_parts(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan: the selector names the journal, so no part of it. Why: the query sees no message any more."""
    monkeypatch.setattr(stream_plan, "DISCOVERY_SECONDS", 0.0)
    topic = Topic(address, 1)
    (journal,) = topic.journals
    topic.writer().committed(range(3))
    _seal(address, journal)
    with capture_logs() as events:
        query = Query(topic, selector=f"name={journal}")
        assert query.trigger_to_the_end() == [[0, 1, 2]]
        query.close()

    told = [each for each in events if each["event"] == "source.parts_not_selected"]
    assert [each["journal"] for each in told] == [journal]


def _seal(address: str, journal: str) -> int:
    """Label a journal as sealed at its write head, as the member that divides it does; return that."""

    async def seal() -> int:
        async with JournalClient(address) as client:
            head = await client.write_head(journal)
            listed = await client.get(journal)
            spec = listed.spec
            spec.labels.CopyFrom(union(spec.labels, label_set((SEALED_AT, str(head)))))
            change = ApplyRequest.Change(upsert=spec, expect_mod_revision=listed.mod_revision)
            await client.apply([change])
            return head

    return asyncio.run(seal())


def test_restart_of_the_broker_ends_no_query(tmp_path: Path) -> None:
    """Plan: a broker is killed between batches, and comes back after an ordinary client lost patience.

    Why: a query that failed at each restart would be of no use; and a restart alone must plan no batch.
    """
    with EmbeddedBrokerProcess(tmp_path / "broker") as broker:
        topic = Topic(broker.address, 1)
        topic.writer().committed(range(10))
        query = Query(topic)
        assert query.trigger() == list(range(10))
        broker.kill()
        back = threading.Timer(PATIENCE_SECONDS + 0.5, broker.start)
        back.start()
        assert query.trigger() == []
        back.join()
        topic.writer().committed(range(10, 20))
        assert query.trigger() == list(range(10, 20))
        query.close()


def _publish_transactions(
    topic: Topic, numbers: Iterator[int], random: Random, committed: Counter[int]
) -> None:
    """Append transactions in several parts, each to a journal, and acknowledge most."""
    for _ in range(8):
        writer = topic.writer(random.randrange(3))
        ids: list[int] = []
        for _ in range(random.randint(1, 4)):
            part = list(islice(numbers, random.choice([1, 10, 300])))
            writer.uncommitted(part)
            ids += part
        if random.random() < 0.75:
            committed.update(ids)
            writer.acknowledge()


@pytest.mark.parametrize("seed", [1, 2])
def test_stream_beside_writers_misses_and_repeats_nothing(address: str, seed: int) -> None:
    """Plan: three writers and a query that is restarted now and then; every batch is asked for again at the end.

    Why: transactions straddle batches in every way there is, and both must agree on each of them.
    """
    random = Random(seed)
    topic = Topic(address, 3)
    committed = [Counter[int]() for _ in range(3)]
    writers = [
        threading.Thread(
            target=_publish_transactions,
            args=(topic, iter(range(index, 10**9, 3)), Random(random.random()), committed[index]),
        )
        for index in range(3)
    ]
    for writer in writers:
        writer.start()
    query = Query(topic, maxRowsPerTrigger=random.choice([50, 400]), maxBytesPerPartition=20_000)
    batches: list[list[int]] = []
    while any(writer.is_alive() for writer in writers):
        known = len(query.spans)
        ids = query.trigger()
        batches += [ids] if len(query.spans) > known else []
        if random.random() < 0.3:
            query.close()
            query.restart()
    batches += query.trigger_to_the_end()
    query.close()
    query.restart()

    found = Counter(id_ for ids in batches for id_ in ids)
    assert found == committed[0] + committed[1] + committed[2]
    for number, ids in enumerate(batches):
        assert sorted(query.ids(number)) == sorted(ids)
    query.close()
