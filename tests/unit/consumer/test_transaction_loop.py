"""Transactions of one delivery: they take one call of the worker thread, and end where others would."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from broadsheet.consumer.application import DeferToNextTxnError
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
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.checkpoint import read_through_of
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import new_producer_id
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.op_future import completed
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.fixed_shard import FixedShard
from tests.support.live_shards import Counting
from tests.support.message_batches import Written, WrittenJournal, single
from tests.support.stepping_clock import SteppingClock

ResultT = TypeVar("ResultT")
PATIENCE_SECONDS = 10.0


class CountedThread(ShardThread):
    """Counts its calls."""

    calls = 0

    def submit(self, function: Callable[..., ResultT], *args: Any) -> Future[ResultT]:
        """Run a call, counted."""
        self.calls += 1
        return super().submit(function, *args)


@dataclass
class Observed:
    """Keeps what completed transactions achieved."""

    read_through: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    """Of each transaction."""
    sequenced: int = 0

    def on_sequenced(self, record: tx.RecordSequenced) -> None:
        """Count batches."""
        self.sequenced += 1

    def on_held(self) -> None:
        """Nothing is held."""

    def on_replayed(self, journal: str, messages: int) -> None:
        """Nothing is replayed."""

    def on_achieved(
        self, achieved: tx.PublishProgress | tx.RecordTxn | tx.RecordCheckpoint
    ) -> None:
        """Keep it."""
        match achieved:
            case tx.PublishProgress(read_through):
                self.read_through += read_through.values()
            case tx.RecordTxn():
                self.messages.append(achieved.messages)
            case tx.RecordCheckpoint():
                pass


@dataclass
class Running:
    """A loop that runs."""

    loop: TransactionLoop
    worker: CountedThread
    observed: Observed
    application: Counting
    ended: asyncio.Task[None]

    @property
    def counts(self) -> dict[str, int]:
        """What the store holds."""
        return self.application.stores[-1].state


@asynccontextmanager
async def running(directory: Path, fail: Callable[[str], None]) -> AsyncIterator[Running]:
    """Run a loop whose application publishes nothing, until the block ends its input."""
    shard, application = FixedShard(), Counting(directory, fail=fail)
    store = application.new_store(shard)
    worker, observed = CountedThread(shard.id), Observed()
    checkpoint = await worker.run(store.restore_checkpoint, shard)
    async with JournalClient("127.0.0.1:1") as journals:  # nothing is appended
        callbacks = Callbacks(
            shard,
            application,
            store,
            StampedPublisher(new_producer_id(), SystemClock(), carried_bytes_max=0),
            InputPolicy(dead_letters=DeadLetters()),
        )
        loop = TransactionLoop(
            TransactionMachine(
                Sequencer({}),
                checkpoint,
                limits=TxnLimits(min_seconds=0, max_seconds=60, wait_for_ack=True),
            ),
            TxnServices(
                worker=worker,
                callbacks=callbacks,
                appends=AppendService(journals),
                recovered_appends=AppendService(journals),
                begun=completed(),
                keep_rollbacks=lambda rollbacks: completed(),
                resumed=asyncio.Event(),
                # Stands still, because a transaction leaves ready input to the next one after some time.
                clock=SteppingClock(),
                observer=observed,
                read_replay=_no_replay,
            ),
            read_ahead=InputBounds(messages_max=100, bytes_max=1 << 20),
        )
        async with TaskGroup() as group:
            ended = group.start_soon(loop.run(), name="loop")
            yield Running(loop, worker, observed, application, ended)
            loop.end_input()
            await asyncio.wait_for(ended, PATIENCE_SECONDS)
            group.stop()
        await worker.run(store.destroy)
        worker.close()
        assert await worker.join(timeout_seconds=PATIENCE_SECONDS)


def _has_run(shard: Running, transactions: int) -> bool:
    return len(shard.observed.messages) == transactions


async def _no_replay(order: tx.StartReplay) -> AsyncGenerator[MessageBatch, None]:
    for batch in list[MessageBatch]():
        yield batch
    raise AssertionError(f"nothing is replayed: {order}")


def counted(clock: int, key: str) -> Written:
    """Return a message to count."""
    return single(clock, payload=b'{"key": "%s", "n": 1}' % key.encode())


async def test_lone_message_is_delivered_and_committed_in_one_call(tmp_path: Path) -> None:
    """Each hop to the worker thread takes as long as a small transaction's work: a message that comes alone takes one,
    after the call that begins its transaction, and everything else about its transaction is as ever.
    """
    journal = WrittenJournal()
    async with running(tmp_path, lambda key: None) as shard:
        for turn in range(1, 4):
            before = shard.worker.calls
            await shard.loop.input.put(journal.batch(counted(10 * turn, "a")))
            await eventually(partial(_has_run, shard, turn))
            assert shard.worker.calls - before == 2

        assert shard.counts == {"a": 3}
        assert shard.observed.messages == [1, 1, 1]
        assert shard.observed.read_through == [10, 20, 30]
        assert shard.observed.sequenced == 3


async def test_message_that_comes_during_a_delivery_joins_its_transaction(tmp_path: Path) -> None:
    """A transaction closes when nothing is ready, judged after the delivery: what came while the application was at
    work is not left to a transaction of its own.
    """
    journal, delivering, may_go_on = WrittenJournal(), threading.Event(), threading.Event()

    def fail(key: str) -> None:
        if key == "first":
            delivering.set()
            assert may_go_on.wait(PATIENCE_SECONDS)

    async with running(tmp_path, fail) as shard:
        await shard.loop.input.put(journal.batch(counted(10, "first")))
        await eventually(delivering.is_set)
        await shard.loop.input.put(journal.batch(counted(20, "second")))
        may_go_on.set()
        await eventually(lambda: bool(shard.observed.messages))

        assert shard.observed.messages == [2]
        assert shard.counts == {"first": 1, "second": 1}


async def test_stop_during_a_lone_delivery_commits_it_and_ends(tmp_path: Path) -> None:
    """Events that come while the worker thread has the machine are taken in afterwards, none is lost."""
    journal, delivering, may_go_on = WrittenJournal(), threading.Event(), threading.Event()

    def fail(key: str) -> None:
        if key == "a":
            delivering.set()
            assert may_go_on.wait(PATIENCE_SECONDS)

    async with running(tmp_path, fail) as shard:
        await shard.loop.input.put(journal.batch(counted(10, "a")))
        await eventually(delivering.is_set)
        shard.loop.post(tx.StopRequested())
        may_go_on.set()
        await asyncio.wait_for(asyncio.shield(shard.ended), PATIENCE_SECONDS)

        assert shard.observed.messages == [1]
        assert shard.observed.read_through == [10]


async def test_deferred_rest_of_a_lone_delivery_is_the_next_transaction(tmp_path: Path) -> None:
    """What the application defers is not in the checkpoint that is made right behind the delivery, and comes again."""
    journal, deferred = WrittenJournal(), list[str]()

    def fail(key: str) -> None:
        if key == "b" and not deferred:
            deferred.append(key)
            raise DeferToNextTxnError

    async with running(tmp_path, fail) as shard:
        await shard.loop.input.put(journal.batch(counted(10, "a"), counted(20, "b")))
        await eventually(lambda: len(shard.observed.messages) == 2)

        assert shard.observed.messages == [1, 1]
        assert shard.observed.read_through == [10, 20]
        assert shard.counts == {"a": 1, "b": 1}
        assert read_through_of(await shard.worker.run(_restored, shard)) == {journal.name: 20}


def _restored(shard: Running) -> Any:
    return shard.application.stores[-1].restore_checkpoint(FixedShard())
