"""The first append of a producer into a journal waits until what would undo it is on file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.callbacks import Callbacks, InputPolicy, StampedPublisher
from broadsheet.consumer.shard.dead_letters import DeadLetters
from broadsheet.consumer.shard.input_queue import InputBounds
from broadsheet.consumer.shard.transaction_events import TxnLimits
from broadsheet.consumer.shard.transaction_loop import TransactionLoop, TxnServices
from broadsheet.consumer.shard.transaction_machine import TransactionMachine
from broadsheet.consumer.shard.worker import ShardThread
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.reader import read_batches
from broadsheet.journals.message.rollback import Rollback
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import new_producer_id
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.op_future import completed
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.fixed_shard import FixedShard
from tests.support.live_shards import OUTPUT, SOURCE, Counting
from tests.support.members import Producer, committed, create_journals
from tests.support.message_batches import WrittenJournal, single


async def written(journals: JournalClient, journal: str) -> list[int]:
    """Return the producer of every message in a journal, committed or not."""
    found: list[int] = []
    async with aclosing(read_batches(journals, journal, JsonType(), block=False)) as batches:
        async for batch in batches:
            found.extend(batch.producers.tolist())
    return found


class Noted:
    """Keeps rollbacks when told to; observes nothing."""

    def __init__(self) -> None:
        self.asked: list[Rollback] = []
        self.kept: Future[None] = Future()

    def keep(self, rollbacks: Sequence[Rollback]) -> Future[None]:
        """Remember what is to be kept."""
        self.asked.extend(rollbacks)
        return self.kept

    def on_sequenced(self, record: tx.RecordSequenced) -> None:
        """Nothing."""

    def on_held(self) -> None:
        """Nothing."""

    def on_replayed(self, journal: str, messages: int) -> None:
        """Nothing."""

    def on_achieved(
        self, achieved: tx.PublishProgress | tx.RecordTxn | tx.RecordCheckpoint
    ) -> None:
        """Nothing."""


@asynccontextmanager
async def one_transaction(
    journals: JournalClient, directory: Path, noted: Noted, *, begun: Future[None]
) -> AsyncIterator[asyncio.Task[None]]:
    """Run a shard's loop over one message until its transaction is finalized, and yield the task that goes on."""
    shard, application = FixedShard(), Counting(directory, output=OUTPUT)
    store = application.new_store(shard)
    worker = ShardThread(shard.id)
    appends = AppendService(journals)
    checkpoint = await worker.run(store.restore_checkpoint, shard)
    callbacks = Callbacks(
        shard,
        application,
        store,
        StampedPublisher(new_producer_id(), SystemClock(), carried_bytes_max=0),
        InputPolicy(dead_letters=DeadLetters()),
    )
    limits = TxnLimits(min_seconds=0, max_seconds=60, wait_for_ack=True)
    loop = TransactionLoop(
        TransactionMachine(Sequencer({}), checkpoint, limits=limits),
        TxnServices(
            worker=worker,
            callbacks=callbacks,
            appends=appends,
            recovered_appends=AppendService(journals),
            begun=begun,
            keep_rollbacks=noted.keep,
            resumed=asyncio.Event(),
            clock=SystemClock(),
            observer=noted,
            read_replay=lambda order: read_batches(journals, order.journal, JsonType()),
        ),
        read_ahead=InputBounds(messages_max=100, bytes_max=1 << 20),
    )
    await loop.input.put(WrittenJournal(SOURCE).batch(single(10, payload=b'{"key": "a", "n": 1}')))
    loop.end_input()
    async with TaskGroup() as group:
        group.start_soon(appends.run(), name="appends")
        running = group.start_soon(loop.run(), name="loop")
        await eventually(lambda: len(application.finished) == 1)
        yield running
        group.stop()
    await worker.run(store.destroy)
    worker.close()
    assert await worker.join(timeout_seconds=DEADLINE_SECONDS)


async def test_first_append_waits_until_its_rollback_is_on_file(
    journals: JournalClient, tmp_path: Path
) -> None:
    """A whole transaction is consumed and finalized, and nothing of it reaches the new journal before the record is
    kept: else a crash would leave messages that nobody knows of. Then everything goes on.
    """
    await create_journals(journals, OUTPUT)
    other, noted = Producer(journals), Noted()
    async with one_transaction(journals, tmp_path, noted, begun=completed()) as running:
        for _ in range(5):  # Whatever was on its way would come before these.
            await other.publish(OUTPUT, ["other"])
        assert len(await written(journals, OUTPUT)) == 5
        assert [rollback.journal for rollback in noted.asked] == [OUTPUT]

        noted.kept.set_result(None)
        await running
    assert [m["key"] for m in await committed(journals, OUTPUT)] == ["other"] * 5 + ["a"]


async def test_commit_waits_until_former_rollbacks_are_brought_forward(
    journals: JournalClient, tmp_path: Path
) -> None:
    """A transaction's messages are appended, and not committed before the former producers' records tell what those
    committed: with the next checkpoint nobody could tell any more.
    """
    await create_journals(journals, OUTPUT)
    other, noted = Producer(journals), Noted()
    noted.kept.set_result(None)
    begun: Future[None] = Future()
    async with one_transaction(journals, tmp_path, noted, begun=begun) as running:
        await eventually(lambda: written(journals, OUTPUT))
        for _ in range(5):
            await other.publish(OUTPUT, ["other"])
        assert [m["key"] for m in await committed(journals, OUTPUT)] == ["other"] * 5

        begun.set_result(None)
        await running
    assert sorted(m["key"] for m in await committed(journals, OUTPUT)) == ["a"] + ["other"] * 5
