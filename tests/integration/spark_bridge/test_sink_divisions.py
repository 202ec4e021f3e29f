"""The sink's writers while their journals are divided by key: a row goes where the division has its key."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from broadsheet.consumer.client import ElasticClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.rollback import rolled_back
from broadsheet.journals.message.uuid import Flags, build_uuid, format_uuid
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink import batch_writer, stream_writer
from broadsheet.spark_bridge.journal_sink.commit import CommitStep
from broadsheet.spark_bridge.journal_sink.options import write_options
from broadsheet.spark_bridge.journal_sink.row_mapping import key_indices
from broadsheet.spark_bridge.journal_sink.writers import AttemptMessage, StreamJournalWriter
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.key_range import GROUPS, KeyRange, group_of
from tests.support.dividing import (
    KEYS,
    MIDDLE,
    OUTPUT,
    PARTS,
    READER,
    check_passed,
    create_middle,
    divide,
    relay,
    until_divided,
)
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.published import messages_of
from tests.support.sink_queries import SINK_JOURNALS
from tests.support.spark_tasks import micro_batch, sent

pytestmark = pytest.mark.etcd

HALF = GROUPS // 2
SCHEMA = StructType().add("id", LongType()).add("key", LongType())


@pytest.fixture
def options(sink_options: Mapping[str, str]) -> Mapping[str, str]:
    """Options for two journals, by the column `key`."""
    return {**sink_options, "key": "key"}


def _rows(ids: Sequence[int], *, at_once: int = 100) -> Iterator[pa.RecordBatch]:
    """Yield rows whose keys come again and again."""
    for begin in range(0, len(ids), at_once):
        part = list(ids[begin : begin + at_once])
        yield pa.record_batch(
            {"id": pa.array(part, pa.int64()), "key": pa.array([each % 50 for each in part])}
        )


def _run(
    options: Mapping[str, str],
    batch: int,
    rows: Iterator[pa.RecordBatch],
    *,
    schema: StructType = SCHEMA,
    between: Callable[[], object] = lambda: None,
) -> None:
    """Write and commit a micro-batch of one task; `between` is called when the driver has sent its plan."""
    writer = sent(stream_writer(options, schema, overwrite=False))
    between()
    with micro_batch("q", batch):
        message = writer.write(rows)
    stream_writer(options, schema, overwrite=False).commit([sent(message)], batch)


async def _found(options: Mapping[str, str], *journals: str) -> dict[str, list[dict[str, Any]]]:
    """Return the committed rows of journals."""
    return dict(zip(journals, await messages_of(options["address"], journals), strict=True))


def _require_once_and_in_order(
    found: Mapping[str, Sequence[Mapping[str, Any]]], ids: Sequence[int]
) -> None:
    everything = [row for rows in found.values() for row in rows]
    assert Counter(row["id"] for row in everything) == Counter(ids)
    for rows in found.values():
        for key in range(50):
            of_key = [row["id"] for row in rows if row["key"] == key]
            assert all(one < other for one, other in pairwise(of_key)), of_key


def _place(key: int, divided: Mapping[str, Sequence[tuple[KeyRange, str]]]) -> str:
    """Return the journal of a key, as other publishers choose it."""
    (index,) = key_indices(pa.array([key]), SINK_JOURNALS, name="key").tolist()
    journal = SINK_JOURNALS[index]
    while journal in divided:
        group = group_of(b"%d" % key)
        journal = next(name for owned, name in divided[journal] if group in owned)
    return journal


@pytest.mark.parametrize("is_told", [False, True], ids=["by its register", "by its spec"])
async def test_rows_of_a_divided_journal_go_to_its_parts_and_other_keys_stay(
    options: Mapping[str, str], is_told: bool
) -> None:
    """A journal is divided between two micro-batches: the writer learns it from the refusal of its first append, or
    with the journals. Both parts are matched by its selector, and yet no key of the other journal moves.
    """
    await asyncio.to_thread(_run, options, 0, _rows(range(100)))
    parts = await asyncio.to_thread(divide, options["address"], SINK_JOURNALS[0], is_told=is_told)
    await asyncio.to_thread(_run, options, 1, _rows(range(100, 1_000)))

    found = await _found(options, *SINK_JOURNALS, *parts)
    _require_once_and_in_order(found, range(1_000))
    ranges = [(KeyRange(0, HALF), parts[0]), (KeyRange(HALF, GROUPS), parts[1])]
    for journal, rows in found.items():
        assert rows
        for row in rows:
            divided = {SINK_JOURNALS[0]: ranges} if row["id"] >= 100 else {}
            assert journal == _place(row["key"], divided), row


async def test_attempt_that_has_begun_in_a_journal_ends_there(options: Mapping[str, str]) -> None:
    """It is divided between two appends of a task: readers of its parts wait for the end of what is open in it. The
    next micro-batch goes to the parts.
    """
    parts = list[str]()

    def rows() -> Iterator[pa.RecordBatch]:
        yield from _rows(range(1_000))
        parts.extend(divide(options["address"], SINK_JOURNALS[0]))
        yield from _rows(range(1_000, 3_000))

    await asyncio.to_thread(_run, options, 0, rows())
    before = await _found(options, *SINK_JOURNALS, *parts)
    await asyncio.to_thread(_run, options, 1, _rows(range(3_000, 3_100)))

    assert not before[parts[0]]
    assert not before[parts[1]]
    found = await _found(options, *SINK_JOURNALS, *parts)
    assert found[SINK_JOURNALS[0]] == before[SINK_JOURNALS[0]]
    _require_once_and_in_order(found, range(3_100))


async def test_rows_that_a_journal_refuses_late_go_to_its_parts_in_their_order(
    options: Mapping[str, str],
) -> None:
    """The first rows for a journal come when an attempt has appended to the other one for long, and the rows behind
    them are encoded already; the part of one half was divided in turn. Every row is there once, in order per key.
    """
    keys = key_indices(pa.array(range(50)), SINK_JOURNALS, name="key").tolist()
    other = [each for each in range(4_000) if keys[each % 50] == 1]
    ids = [*other, *range(4_000, 8_000)]
    divided: dict[str, Sequence[tuple[KeyRange, str]]] = {}

    def divide_twice() -> None:
        low, high = divide(options["address"], SINK_JOURNALS[0])
        lowest, middle = divide(options["address"], low, HALF // 2)
        divided[SINK_JOURNALS[0]] = [(KeyRange(0, HALF), low), (KeyRange(HALF, GROUPS), high)]
        divided[low] = [(KeyRange(0, HALF // 2), lowest), (KeyRange(HALF // 2, GROUPS), middle)]

    await asyncio.to_thread(_run, options, 0, _rows(ids), between=divide_twice)

    names = [name for ranges in divided.values() for _, name in ranges]
    found = await _found(options, *SINK_JOURNALS, *names)
    _require_once_and_in_order(found, ids)
    for journal, rows in found.items():
        assert all(journal == _place(row["key"], divided) for row in rows)
    assert all(found[name] for name in names if name not in divided)


async def test_rows_without_a_key_go_to_one_part(options: Mapping[str, str]) -> None:
    """A writer into one journal needs no key, and has all of its rows in their order."""
    alone = {**options, "selector": f"name={SINK_JOURNALS[0]}"}
    del alone["key"]
    parts = await asyncio.to_thread(divide, options["address"], SINK_JOURNALS[0])
    await asyncio.to_thread(_run, alone, 0, _rows(range(100)))

    found = await _found(options, *parts)
    assert [row["id"] for rows in found.values() for row in rows] == list(range(100))
    assert not all(found.values())


async def test_batch_whose_driver_was_killed_is_finished_in_the_parts(
    options: Mapping[str, str],
) -> None:
    """The driver is killed when the commit is recorded, in parts that it learnt of by a refusal; its successor, which
    selects the journal alone, finishes the batch, and writes the rows of no task again.
    """

    class KilledError(Exception):
        pass

    def kill(step: CommitStep, batch: int) -> None:
        if (step, batch) == (CommitStep.RECORDED, 0):
            raise KilledError

    alone = {**options, "selector": f"name={SINK_JOURNALS[0]}"}
    parts = await asyncio.to_thread(divide, options["address"], SINK_JOURNALS[0])

    def first() -> None:
        writer = StreamJournalWriter(write_options(alone), SCHEMA, on_step=kill)
        with micro_batch("q", 0):
            message = writer.write(_rows(range(100)))
        with pytest.raises(KilledError):
            writer.commit([message], 0)

    await asyncio.to_thread(first)
    assert not any((await _found(options, *parts)).values())
    for batch in (0, 1):
        await asyncio.to_thread(_run, alone, batch, _rows(range(100 * batch, 100 * batch + 100)))

    _require_once_and_in_order(await _found(options, *parts), range(200))


async def test_batch_that_an_operator_rolled_back_before_its_commit_is_written_again(
    options: Mapping[str, str],
) -> None:
    """A batch whose driver is slow holds up a division, and is taken for dead. Nothing of it is recorded, not in the
    other journal either, so its repetition publishes every row once.
    """

    def slow() -> None:
        writer = stream_writer(options, SCHEMA, overwrite=False)
        with micro_batch("q", 0):
            message = writer.write(_rows(range(100)))
        assert isinstance(message, AttemptMessage)
        assert message.attempt is not None
        roll_back(message.attempt.producer)
        slow_attempt = replace(message.attempt, ended_at=message.attempt.ended_at - 60.0)
        with pytest.raises(
            PublishError, match=f"{SINK_JOURNALS[1]}.* rolled rows back.*Nothing was"
        ):
            writer.commit([replace(message, attempt=slow_attempt)], 0)

    def roll_back(producer: int) -> None:
        uuid = format_uuid(build_uuid(producer, 1, Flags.ACK_TXN))
        line = b'{"_meta":{"uuid":"%b"}}\n' % uuid.encode()

        async def append() -> None:
            async with JournalClient(options["address"]) as journals:
                await journals.append(SINK_JOURNALS[1], line, union_registers=rolled_back(producer))

        asyncio.run(append())

    await asyncio.to_thread(slow)
    await asyncio.to_thread(_run, options, 0, _rows(range(100)))

    _require_once_and_in_order(await _found(options, *SINK_JOURNALS), range(100))


async def test_rows_that_no_part_takes_are_refused(options: Mapping[str, str]) -> None:
    """Somebody deleted a part. Nothing is published, and the error says of which journal."""
    parts = await asyncio.to_thread(divide, options["address"], SINK_JOURNALS[0])

    async def delete() -> None:
        async with JournalClient(options["address"]) as journals:
            listed = await journals.get(parts[0])
            change = ApplyRequest.Change(delete=parts[0], expect_mod_revision=listed.mod_revision)
            await journals.apply([change])

    await delete()

    def write() -> None:
        writer = batch_writer(options, SCHEMA, overwrite=False)
        with pytest.raises(PublishError, match=f"journal {SINK_JOURNALS[0]} was divided.*no part"):
            writer.commit([writer.write(_rows(range(100)))])

    await asyncio.to_thread(write)
    assert not any((await _found(options, *SINK_JOURNALS, parts[1])).values())


async def test_query_goes_on_while_members_divide_its_journal(
    etcd_server: EmbeddedEtcdProcess,
    broker: EmbeddedBroker,
    journals: JournalClient,
    etcd_root: str,
    tmp_path: Path,
) -> None:
    """A query commits micro-batches into a journal that a shard reads; a member divides it meanwhile. The shard has
    each row once, and those of a key in their order.
    """
    await create_journals(journals, OUTPUT)
    await create_middle(journals)
    cluster = Cluster(
        etcd_endpoint=etcd_server.endpoint,
        broker_address=broker.address,
        root=etcd_root,
        directory=tmp_path,
        output=OUTPUT,
    )
    options = {
        "address": broker.address,
        "etcd": etcd_server.endpoint,
        "selector": f"name:prefix={MIDDLE}",
        "root": f"{etcd_root}-query",
        "key": "key",
    }
    schema = StructType().add("key", StringType()).add("n", LongType())
    published: Counter[str] = Counter()
    ends = threading.Event()

    def query() -> None:
        batch = 0
        while not ends.is_set():
            rows = pa.record_batch(
                {"key": KEYS * 2, "n": pa.array(range(batch * 100, batch * 100 + 2 * len(KEYS)))}
            )
            _run(options, batch, iter([rows]), schema=schema)
            published.update(KEYS * 2)
            batch += 1

    async with (
        cluster.member("one", application=relay(cluster)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(shard(READER, MIDDLE)))
        await wait_for_primaries(client, READER)
        async with TaskGroup() as group:
            running = group.start_soon(asyncio.to_thread(query), name="query")
            try:
                await eventually(lambda: published.total() > 200)
                await elastic.split_journal(MIDDLE)
                await until_divided(elastic)
                before = published.total()
                await eventually(lambda: published.total() > before + 200)
            finally:
                ends.set()
                await running
        by_journal = await check_passed(journals, published)

    assert by_journal.keys() == {MIDDLE, *PARTS}
    assert by_journal[PARTS[0]].isdisjoint(by_journal[PARTS[1]])
    assert by_journal[PARTS[0]] | by_journal[PARTS[1]] == set(KEYS)
