"""The sink's commit on a real etcd and broker, cut off after each of its steps, without Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.consumer.embedded.broker import EmbeddedBroker
from broadsheet.consumer.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.consumer.message.uuid import Flags
from broadsheet.spark_bridge.content.json import JsonLines
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink import commit_store
from broadsheet.spark_bridge.journal_sink.attempt import WritePlan, write_attempt
from broadsheet.spark_bridge.journal_sink.commit import (
    CommitStep,
    CommitTarget,
    commit_micro_batch,
    commit_publication,
    committed_batch,
    committed_publication,
    finish_micro_batch,
)
from broadsheet.spark_bridge.journal_sink.commit_store import (
    CommitAttempt,
    Publication,
    publication_of,
)
from broadsheet.spark_bridge.journal_sink.key_mapping import ModuloMapping
from broadsheet.spark_bridge.journal_source.options import Access
from broadsheet.spark_bridge.keys import publication_key, query_key
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
        retention_days=30,
    )


async def write(
    target: CommitTarget, ids: Iterable[int | None], *, rows_per_batch: int = 10
) -> CommitAttempt:
    """Do what an attempt of a task does."""
    rows = pa.table({"id": pa.array(list(ids), pa.int64())})
    plan = WritePlan(
        access=target.access,
        journals=JOURNALS,
        mapping=ModuloMapping("id"),
        encoder=JsonLines(from_arrow_schema(rows.schema)),
    )
    batches = iter(rows.to_batches(max_chunksize=rows_per_batch))
    return await asyncio.to_thread(write_attempt, batches, plan)


async def seen(target: CommitTarget) -> Counter[int]:
    """Return how often a reader of committed messages sees each row."""
    return ids_of(await messages_of(target.access.address, JOURNALS))


async def batch_of(
    target: CommitTarget, batch: int, ids: Iterable[int], *, tasks: int = 2
) -> Publication:
    """Write a micro-batch by several tasks, and return what would commit it."""
    ids = list(ids)
    attempts = [await write(target, ids[task::tasks]) for task in range(tasks)]
    return publication_of(attempts, batch=batch)


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
        await commit_micro_batch(
            replace(target, on_step=KillAt(step, times=times)),
            QUERY,
            await batch_of(target, 0, range(20)),
        )
    half = [len(journal) for journal in await messages_of(target.access.address, JOURNALS)]

    await commit_micro_batch(target, QUERY, await batch_of(target, 0, range(20)))
    await commit_micro_batch(target, QUERY, await batch_of(target, 1, range(20, 40)))

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
    first = publication_of([await write(target, range(20))])
    with pytest.raises(Killed):
        await commit_publication(
            replace(target, on_step=KillAt(step, times=times)), "orders", first
        )

    again = publication_of([await write(target, range(20))])
    published = await commit_publication(target, "orders", again)

    assert await seen(target) == Counter(range(20))
    assert published == (again if step is CommitStep.STARTED else first)


async def test_two_drivers_of_one_query_commit_a_batch_once(target: CommitTarget) -> None:
    """A driver that everybody took for dead goes on: whoever is first, the other finishes the same record."""
    mine, theirs = await batch_of(target, 0, range(20)), await batch_of(target, 0, range(20))

    async with TaskGroup() as drivers:
        drivers.start_soon(commit_micro_batch(target, QUERY, mine), name="mine")
        drivers.start_soon(commit_micro_batch(target, QUERY, theirs), name="theirs")

    assert await seen(target) == Counter(range(20))


async def test_batch_that_was_overtaken_is_left_alone(target: CommitTarget) -> None:
    """A driver wakes up with an old batch when a later one is committed: its rows are there already."""
    late = await batch_of(target, 0, range(20))
    await commit_micro_batch(target, QUERY, await batch_of(target, 0, range(20)))
    await commit_micro_batch(target, QUERY, await batch_of(target, 1, range(20, 40)))

    await commit_micro_batch(target, QUERY, late)
    await finish_micro_batch(target, QUERY, 0)

    assert await seen(target) == Counter(range(40))
    assert await committed_batch(target, QUERY) == 1


async def test_acknowledgements_of_a_journal_stand_together(
    target: CommitTarget, broker: EmbeddedBroker
) -> None:
    """Three tasks wrote to each journal: one append acknowledges them, so that nobody reads one without the others."""
    await commit_micro_batch(target, QUERY, await batch_of(target, 0, range(60), tasks=3))

    for journal in JOURNALS:
        flags = await flags_of(broker.address, journal)
        assert flags[-3:] == [Flags.ACK_TXN] * 3
        assert Flags.ACK_TXN not in flags[:-3]


async def test_rows_keep_their_order_within_a_journal(
    target: CommitTarget, broker: EmbeddedBroker
) -> None:
    """A task's rows of one journal stand as Spark handed them over, batches small and large."""
    attempt = await write(target, range(5_000), rows_per_batch=333)
    await commit_publication(target, "ordered", publication_of([attempt]))

    for journal in await messages_of(broker.address, JOURNALS):
        ids = [message["id"] for message in journal]
        assert ids == sorted(ids)
        assert len(ids) > 2_000


async def test_attempt_without_rows_touches_no_journal(target: CommitTarget) -> None:
    """An empty partition is nothing to acknowledge."""
    attempt = await write(target, [])

    assert (attempt.messages, attempt.journals) == (0, ())
    assert publication_of([attempt]).intents == {}


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
        await finish_micro_batch(target, QUERY, 0)


async def test_records_go_after_their_time(target: CommitTarget, etcd: EtcdClient) -> None:
    """Those older than the retention go with the next commit; a query keeps one record, however many its batches."""
    now = publication_of([await write(target, range(2))])
    old = Publication(
        messages=now.messages,
        acknowledgements=now.acknowledgements,
        attempts=now.attempts,
        committed_at=now.committed_at - 31 * 86_400,
    )
    await commit_store.commit_once(etcd, publication_key(target.root, "old"), old)
    await commit_store.commit_once(etcd, query_key(target.root, "gone"), old)
    await commit_store.commit_once(etcd, publication_key(target.root, "kept"), now)

    for batch in range(3):
        await commit_micro_batch(target, QUERY, await batch_of(target, batch, [batch + 10]))

    listed = await etcd.get_range(f"{target.root}.".encode(), f"{target.root}/".encode())
    assert [kv.key.decode() for kv in listed.kvs] == [
        f"{target.root}.publications/kept",
        f"{target.root}.queries/{QUERY}",
    ]


async def test_record_too_large_for_etcd_is_refused_before_anything_is_visible(
    target: CommitTarget,
) -> None:
    """Acknowledgements of very many tasks: the error says how many, and what to do; nothing is committed."""
    attempt = await write(target, range(10))
    many = publication_of([attempt] * 20_000, batch=0)

    with pytest.raises(PublishError, match=r"20000 tasks wrote to 2 journals.*coalesce\(\)"):
        await commit_micro_batch(target, QUERY, many)

    assert await seen(target) == Counter()


async def test_commit_without_a_name_leaves_nothing_in_etcd(
    target: CommitTarget, etcd: EtcdClient
) -> None:
    """A made-up name helps nobody later."""
    name = uuid4().hex
    await commit_publication(
        target, name, publication_of([await write(target, range(4))]), keep=False
    )

    assert await seen(target) == Counter(range(4))
    assert await committed_publication(target, name) is None
    assert not (await etcd.get_range(publication_key(target.root, name))).kvs
