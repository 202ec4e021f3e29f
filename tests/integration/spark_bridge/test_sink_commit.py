"""The sink's commit on a real etcd and broker, cut off after each of its steps, without Spark."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.division import DIVIDED
from broadsheet.journals.message.rollback import rolled_back
from broadsheet.journals.message.uuid import Flags, build_uuid, format_uuid
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.spark_bridge.content.json_lines import JsonLines
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink import commit_record, commit_store
from broadsheet.spark_bridge.journal_sink.attempt import WritePlan, write_attempt
from broadsheet.spark_bridge.journal_sink.commit import (
    CommitStep,
    CommitTarget,
    commit_micro_batch,
    commit_publication,
    committed_publication,
    finish_micro_batch,
)
from broadsheet.spark_bridge.journal_sink.commit_record import (
    CommitAttempt,
    Publication,
    SinkTarget,
    publication_of,
)
from broadsheet.spark_bridge.journal_sink.row_content import RowContent, content_of_rows
from broadsheet.spark_bridge.journal_sink.row_mapping import ColumnMapping
from broadsheet.spark_bridge.journal_source.options import Access
from broadsheet.spark_bridge.keys import publication_key, queries_prefix
from broadsheet.wire.journal_pb2 import ApplyRequest
from tests.support.published import flags_of, ids_of, messages_of
from tests.support.spark import make_journals

pytestmark = pytest.mark.etcd

JOURNALS = ("sink/part-000", "sink/part-001")
QUERY = "4f0c"


class Killed(BaseException):
    """Stands for the driver's end; nobody catches it."""


class KillAt:
    """Ends a commit at the n-th time that it reaches a step."""

    def __init__(self, step: CommitStep, *, times: int = 1) -> None:
        self._step = step
        self._left = times

    def __call__(self, step: CommitStep, batch: int) -> None:
        """Count the step."""
        del batch
        self._left -= step is self._step
        if self._left == 0:
            raise Killed


@pytest.fixture
async def target(
    etcd_server: EmbeddedEtcdProcess, broker: EmbeddedBroker, etcd_root: str
) -> CommitTarget:
    """A root of its own, and two empty journals."""
    await asyncio.to_thread(make_journals, broker.address, JOURNALS)
    return CommitTarget(
        access=Access(address=broker.address),
        etcd=EtcdConfig(endpoints=(etcd_server.endpoint,)),
        root=etcd_root,
        journals=SinkTarget(selector="name:prefix=sink/", journals=JOURNALS),
    )


async def write(
    target: CommitTarget, ids: Iterable[int | None], *, rows_per_batch: int = 10
) -> CommitAttempt:
    """Do what an attempt of a task does."""
    rows = pa.table({"id": pa.array(list(ids), pa.int64())})
    plan = WritePlan(
        access=target.access,
        journals=JOURNALS,
        mapping=ColumnMapping("id"),
        encoder=JsonLines(from_arrow_schema(rows.schema)),
        takes_content=True,
    )
    batches = iter(rows.to_batches(max_chunksize=rows_per_batch))
    return await asyncio.to_thread(write_attempt, batches, plan)


async def seen(target: CommitTarget) -> Counter[int]:
    """Return how often a reader of committed messages sees each row."""
    return ids_of(await messages_of(target.access.address, JOURNALS))


async def attempts_of(
    target: CommitTarget, ids: Iterable[int], *, tasks: int = 2
) -> list[CommitAttempt]:
    """Write rows by several tasks."""
    ids = list(ids)
    return [await write(target, ids[task::tasks]) for task in range(tasks)]


def content_of(attempts: Iterable[CommitAttempt]) -> RowContent:
    """Return the content of all rows of the attempts."""
    return sum((attempt.content for attempt in attempts), RowContent())


async def run_batch(
    target: CommitTarget, batch: int, ids: Iterable[int], *, tasks: int = 2
) -> None:
    """Write and commit a micro-batch."""
    attempts = await attempts_of(target, ids, tasks=tasks)
    record = target.record_of(attempts, batch=batch)
    await commit_micro_batch(target, QUERY, record, content_of(attempts))


CUTS = [
    (CommitStep.STARTED, 1),
    (CommitStep.RECORDED, 1),
    (CommitStep.ACKNOWLEDGED, 1),
    (CommitStep.ACKNOWLEDGED, 2),
    (CommitStep.FINISHED, 1),
]


@pytest.mark.parametrize(("step", "times"), CUTS)
async def test_micro_batch_cut_off_anywhere_is_there_once(
    target: CommitTarget, step: CommitStep, times: int
) -> None:
    """A driver dies in its commit, another one writes the batch again and commits: each row once, in batch order.

    Between the two, readers see all of the batch in a journal, or nothing of it.
    """
    with pytest.raises(Killed):
        await run_batch(replace(target, on_step=KillAt(step, times=times)), 0, range(20))
    half = [len(journal) for journal in await messages_of(target.access.address, JOURNALS)]

    await run_batch(target, 0, range(20))
    await run_batch(target, 1, range(20, 40))

    whole = await messages_of(target.access.address, JOURNALS)
    assert ids_of(whole) == Counter(range(40))
    assert all(
        before in (0, sum(message["id"] < 20 for message in journal))
        for before, journal in zip(half, whole, strict=True)
    )
    assert sum(half) == 0 if step in (CommitStep.STARTED, CommitStep.RECORDED) else sum(half) > 0


@pytest.mark.parametrize(("step", "times"), CUTS)
async def test_publication_cut_off_anywhere_is_there_once(
    target: CommitTarget, step: CommitStep, times: int
) -> None:
    """The same for a DataFrame with a name: what is committed under it is what was written first."""
    first = target.record_of([await write(target, range(20))])
    with pytest.raises(Killed):
        await commit_publication(
            replace(target, on_step=KillAt(step, times=times)), "orders", first
        )

    again = target.record_of([await write(target, range(20))])
    published = await commit_publication(target, "orders", again)

    assert await seen(target) == Counter(range(20))
    assert published == (again if step is CommitStep.STARTED else first)


async def test_journal_that_was_divided_takes_no_rows(target: CommitTarget) -> None:
    """Shards read its parts behind its seal: rows that came behind it would be read out of order. What was written
    before is committed there.
    """
    before = await write(target, range(20))
    assert set(before.journals) == set(JOURNALS)
    async with JournalClient(target.access.address) as journals:
        await journals.append(JOURNALS[0], before.acknowledgement, union_registers=DIVIDED)

    with pytest.raises(PublishError, match=f"journal {JOURNALS[0]} was divided"):
        await write(target, range(20, 40))
    await commit_publication(target, "before", target.record_of([before]))


async def test_rows_that_an_operator_rolled_back_are_not_committed_in_silence(
    target: CommitTarget,
) -> None:
    """A job may seem to be dead between its tasks and its commit: it learns which journal lacks its rows."""
    first, second = await write(target, range(20)), await write(target, range(20, 40))
    async with JournalClient(target.access.address) as journals:
        await journals.append(
            JOURNALS[1], first.acknowledgement, union_registers=rolled_back(second.producer)
        )

    await commit_publication(target, "first", target.record_of([first]))
    with pytest.raises(PublishError, match=f"journal {JOURNALS[1]} .* rolled back"):
        await commit_publication(target, "both", target.record_of([first, second]))


async def test_query_whose_recorded_rows_were_rolled_back_goes_on_when_it_is_told_to(
    target: CommitTarget,
) -> None:
    """Its driver died between the record and the acknowledgements, and an operator took its tasks for dead. The other
    journal's rows are there, and the loss is told at each start until the caller accepts it.
    """
    attempts = await attempts_of(target, range(20), tasks=1)
    async with JournalClient(target.access.address) as journals:
        uuid = format_uuid(build_uuid(attempts[0].producer, 1, Flags.ACK_TXN))
        await journals.append(
            JOURNALS[0],
            b'{"_meta":{"uuid":"%b"}}\n' % uuid.encode(),
            union_registers=rolled_back(attempts[0].producer),
        )

    record = target.record_of(attempts, batch=0)
    for _ in range(2):
        with pytest.raises(PublishError, match=r"acceptCommittedThrough to 0"):
            await commit_micro_batch(target, QUERY, record, content_of(attempts))
    accepting = replace(target, accepted_through=0)
    await finish_micro_batch(accepting, QUERY, 0, content_of(attempts))
    await run_batch(accepting, 1, range(20, 40))

    kept, others = await messages_of(target.access.address, JOURNALS)
    assert all(message["id"] >= 20 for message in kept)
    assert kept
    assert any(message["id"] < 20 for message in others)


async def test_two_drivers_of_one_query_commit_a_batch_once(target: CommitTarget) -> None:
    """A driver that everybody took for dead goes on: whoever is first, the other finishes the same record."""
    async with TaskGroup() as drivers:
        drivers.start_soon(run_batch(target, 0, range(20)), name="mine")
        drivers.start_soon(run_batch(target, 0, range(20), tasks=3), name="theirs")

    assert await seen(target) == Counter(range(20))


async def test_batch_that_was_overtaken_is_refused_and_its_rows_are_there_once(
    target: CommitTarget,
) -> None:
    """A driver wakes up with an old batch when a later one is committed: it is told so.

    Why: the driver of a copied checkpoint looks the same, and its rows would be left out in silence.
    """
    late = await attempts_of(target, range(20))
    record = target.record_of(late, batch=0)
    await run_batch(target, 0, range(20))
    await run_batch(target, 1, range(20, 40))

    for refused in (
        commit_micro_batch(target, QUERY, record, content_of(late)),
        finish_micro_batch(target, QUERY, 0, content_of(late)),
    ):
        with pytest.raises(PublishError, match=r"batch 0 of query 4f0c: batch 1 is committed in"):
            await refused
    accepting = replace(target, accepted_through=1)
    await commit_micro_batch(accepting, QUERY, record, content_of(late))

    assert await seen(target) == Counter(range(40))


async def test_batch_with_other_rows_than_the_committed_one_is_refused(
    target: CommitTarget,
) -> None:
    """Two queries run from copies of one checkpoint into the same journals; as many rows, but other ones.

    Why: the second one's rows were taken for committed, and lost without a word.
    """
    await run_batch(replace(target, checkpoint="/a"), 0, range(20))

    with pytest.raises(
        PublishError, match=r"checkpoint /a, with 20 rows.*20 rows are others.*root"
    ):
        await run_batch(replace(target, checkpoint="/b"), 0, range(100, 120))
    with pytest.raises(PublishError, match=r"this run's 19 rows are others"):
        await run_batch(replace(target, checkpoint="/a"), 0, range(19))
    await run_batch(replace(target, checkpoint="/b", root=f"{target.root}/own"), 0, range(100, 120))

    assert await seen(target) == Counter([*range(20), *range(100, 120)])


async def test_batch_of_a_query_whose_rows_vary_is_finished_from_its_checkpoint(
    target: CommitTarget,
) -> None:
    """A row's value is made up again when the batch is repeated: with the same checkpoint, the recorded rows count."""
    query = replace(target, checkpoint="/checkpoints/q")
    with pytest.raises(Killed):
        await run_batch(replace(query, on_step=KillAt(CommitStep.RECORDED)), 0, range(20))

    await run_batch(query, 0, range(20, 40))

    assert await seen(target) == Counter(range(20))


async def test_batch_whose_journal_was_deleted_says_how_it_is_finished(
    target: CommitTarget, broker: EmbeddedBroker
) -> None:
    """A driver dies after the record, and a journal is deleted: the error says what to do, and doing it helps.

    Why: the query would end with the broker's error at each restart.
    """
    with pytest.raises(Killed):
        await run_batch(replace(target, on_step=KillAt(CommitStep.RECORDED)), 0, range(20))
    async with JournalClient(broker.address) as client:
        await client.apply([ApplyRequest.Change(delete=JOURNALS[0], expect_mod_revision=-1)])

    with pytest.raises(PublishError, match=f"journal {JOURNALS[0]} does not exist.*apply it again"):
        await finish_micro_batch(target, QUERY, 0, batch_content(range(20)))
    await asyncio.to_thread(make_journals, broker.address, JOURNALS[:1])
    await finish_micro_batch(target, QUERY, 0, batch_content(range(20)))

    lost, kept = await messages_of(broker.address, JOURNALS)
    assert lost == []
    assert {message["id"] for message in kept} < set(range(20))


def batch_content(ids: Iterable[int]) -> RowContent:
    """Return the content of rows that are not written."""
    return content_of_rows(pa.record_batch({"id": pa.array(list(ids), pa.int64())}))


async def test_batch_recorded_by_an_earlier_version_is_finished(
    target: CommitTarget, etcd: EtcdClient
) -> None:
    """An upgrade between the record and the acknowledgement: the old key is found, and nothing is published twice."""
    attempts = await attempts_of(target, range(20))
    old = publication_of(attempts, committed_at=time.time(), batch=0)
    await etcd.put(
        queries_prefix(target.root) + QUERY.encode(),
        commit_record.encoded(msgspec.structs.replace(old, content="")),
    )

    await run_batch(target, 0, range(20))
    await run_batch(target, 1, range(20, 40))

    assert await seen(target) == Counter(range(40))


async def test_acknowledgements_of_a_journal_stand_together(
    target: CommitTarget, broker: EmbeddedBroker
) -> None:
    """Three tasks wrote to each journal: one append acknowledges them, so that nobody reads one without the others."""
    await run_batch(target, 0, range(60), tasks=3)

    for journal in JOURNALS:
        flags = await flags_of(broker.address, journal)
        assert flags[-3:] == [Flags.ACK_TXN] * 3
        assert Flags.ACK_TXN not in flags[:-3]


async def test_rows_keep_their_order_within_a_journal(
    target: CommitTarget, broker: EmbeddedBroker
) -> None:
    """A task's rows of one journal stand as Spark handed them over, batches small and large."""
    attempt = await write(target, range(5_000), rows_per_batch=333)
    await commit_publication(target, "ordered", target.record_of([attempt]))

    for journal in await messages_of(broker.address, JOURNALS):
        ids = [message["id"] for message in journal]
        assert ids == sorted(ids)
        assert len(ids) > 2_000


async def test_attempt_without_rows_touches_no_journal(target: CommitTarget) -> None:
    """An empty partition is nothing to acknowledge."""
    attempt = await write(target, [])

    assert (attempt.messages, attempt.journals) == (0, ())
    assert target.record_of([attempt]).intents == {}


async def test_attempt_with_a_row_that_has_no_journal_ends_with_its_error(
    target: CommitTarget,
) -> None:
    """The row comes late, while rows before it are appended: the error is the row's, and tells what to do."""
    ids = [*range(3_000), None]

    with pytest.raises(PublishError, match=r"column id: the key of 1 rows is null.*coalesce"):
        await write(target, ids, rows_per_batch=100)

    assert await seen(target) == Counter()


async def test_finishing_a_batch_that_is_forgotten_is_refused(target: CommitTarget) -> None:
    """Tasks found the batch committed and wrote nothing; if nobody knows of it then, it must not pass for written."""
    with pytest.raises(PublishError, match=r"batch 0 of query 4f0c: .* forgotten now"):
        await finish_micro_batch(target, QUERY, 0, RowContent())


async def test_records_go_after_their_time(target: CommitTarget, etcd: EtcdClient) -> None:
    """Those older than the retention go with the next commit; a query keeps one record, however many its batches."""
    now = target.record_of([await write(target, range(2))])
    old = aged(now, days=31)
    await commit_store.commit_once(etcd, publication_key(target.root, "old"), old)
    await commit_store.commit_once(etcd, queries_prefix(target.root) + b"gone/x", old)
    await commit_store.commit_once(etcd, publication_key(target.root, "kept"), now)

    for batch in range(3):
        await run_batch(target, batch, [batch + 10])

    listed = await etcd.get_range(f"{target.root}.".encode(), f"{target.root}/".encode())
    assert [kv.key.decode() for kv in listed.kvs] == [
        f"{target.root}.publications/kept",
        f"{target.root}.queries/{QUERY}/{commit_store.target_digest(target.journals)}",
    ]


async def test_record_outlives_a_shorter_retention_of_another_sink(
    target: CommitTarget, etcd: EtcdClient
) -> None:
    """A keeps names for 30 days; two days later B, with one day, commits and prunes; then A runs again.

    Why: B's setting removed A's name, and A published its rows twice. Records of earlier versions do not say how long
    theirs is; they are kept for the default.
    """
    await commit_publication(target, "a", target.record_of([await write(target, range(10))]))
    await _age(etcd, publication_key(target.root, "a"), days=2)
    unknown = aged(publication_of([], committed_at=time.time()), days=2)
    await commit_store.commit_once(etcd, publication_key(target.root, "unknown"), unknown)
    impatient = replace(target, retention_days=1)
    short = impatient.record_of([await write(target, range(10, 20))])
    await commit_store.commit_once(etcd, publication_key(target.root, "short"), aged(short, days=2))

    await commit_publication(impatient, "b", short)
    await commit_publication(target, "a", target.record_of([await write(target, range(10))]))

    assert await seen(target) == Counter(range(20))
    prefix = publication_key(target.root, "")
    listed = await etcd.get_range(prefix, prefix_range_end(prefix))
    assert [kv.key.removeprefix(prefix) for kv in listed.kvs] == [b"a", b"b", b"unknown"]


async def test_name_is_kept_for_the_longest_retention_of_its_writers(
    target: CommitTarget, etcd: EtcdClient
) -> None:
    """A job raises its retention and runs again under its name, which was recorded with the former one."""
    attempt = await write(target, range(10))
    for days in (1, 90, 5):
        writer = replace(target, retention_days=days)
        await commit_publication(writer, "a", writer.record_of([attempt]))

    found = await commit_store.load(etcd, publication_key(target.root, "a"))
    assert found is not None
    assert found.retention_days == 90


async def test_name_published_to_other_journals_is_refused(target: CommitTarget) -> None:
    """Two jobs use one name for different journals: the second is told, and nothing passes for published."""
    attempt = await write(target, range(10))
    await commit_publication(target, "a", target.record_of([attempt]))
    elsewhere = replace(target, journals=SinkTarget(selector="name=other", journals=("other",)))
    narrower = replace(target, journals=SinkTarget(selector="name=x", journals=JOURNALS))

    for refused in (
        commit_publication(elsewhere, "a", elsewhere.record_of([attempt])),
        committed_publication(elsewhere, "a"),
    ):
        with pytest.raises(
            PublishError, match=r"publication a: .* into name:prefix=sink/; nothing"
        ):
            await refused

    # Another text that selects the same journals is the same target.
    assert await committed_publication(narrower, "a") is not None


async def _age(etcd: EtcdClient, key: bytes, *, days: int) -> None:
    found = await commit_store.load(etcd, key)
    assert found is not None
    await etcd.put(key, commit_record.encoded(aged(found, days=days)))


def aged(record: Publication, *, days: int) -> Publication:
    """Return a record as if it had been committed earlier."""
    return msgspec.structs.replace(record, committed_at=record.committed_at - days * 86_400)


async def test_record_too_large_for_etcd_is_refused_before_anything_is_visible(
    target: CommitTarget,
) -> None:
    """Acknowledgements of very many tasks: the error says how many, and what to do; nothing is committed."""
    attempt = await write(target, range(10))
    attempts = [attempt] * 20_000
    many = target.record_of(attempts, batch=0)

    with pytest.raises(PublishError, match=r"20000 tasks wrote to 2 journals.*coalesce\(\)"):
        await commit_micro_batch(target, QUERY, many, content_of(attempts))

    assert await seen(target) == Counter()


async def test_commit_without_a_name_leaves_nothing_in_etcd(
    target: CommitTarget, etcd: EtcdClient
) -> None:
    """A made-up name helps nobody later."""
    name = uuid4().hex
    await commit_publication(
        target, name, target.record_of([await write(target, range(4))]), keep=False
    )

    assert await seen(target) == Counter(range(4))
    assert await committed_publication(target, name) is None
    assert not (await etcd.get_range(publication_key(target.root, name))).kvs
