"""Event loop part of transactions: performs the instructions of the transaction machine.

    readers ─► input ─┐                                  ┌─► worker thread (application, store)
    timer, commit, ───┼─► TransactionMachine ─► perform ─┼─► append service (messages, acknowledgements)
    acks, callbacks ──┘                                  └─► progress, metrics

Everything that ends elsewhere posts an event; only this loop talks to the machine. Events that are there come first,
then the timer's, then input: so neither the timer nor a commit waits behind a busy journal.

A transaction of a single delivery takes one call of the worker thread instead of two: the machine is lent to that
thread together with the delivery, which closes the transaction right there if no input came meanwhile. Until the
answer is back, this loop only collects events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, assert_never, cast

import structlog

from broadsheet.consumer.application import Application, BatchConsumer, RecordPublisher
from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.callbacks import Callbacks, Delivered, Finalized, StartedCommit
from broadsheet.consumer.shard.input_queue import InputBound, InputBounds, InputQueue
from broadsheet.consumer.shard.record_outputs import RecordOutputs
from broadsheet.consumer.shard.transaction_events import (
    Activity,
    Event,
    InputDemand,
    Instruction,
    TxnLimits,
)
from broadsheet.consumer.shard.transaction_machine import (
    RUN_MESSAGES_MAX,
    DeliveryLimits,
    TransactionMachine,
)
from broadsheet.consumer.shard.worker import ShardWorker
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.checkpoint import OUTPUT_KEYS
from broadsheet.journals.message.division import UNDIVIDED
from broadsheet.journals.message.publisher import PendingAppend
from broadsheet.journals.message.rollback import Rollback
from broadsheet.journals.message.sequencer import SPAN_SECONDS_MAX
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.op_future import OpFuture, completed
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.serving.tracing import NO_SPAN
from broadsheet.wire.journal_pb2 import AppendResponse
from broadsheet.wire.shard_pb2 import Checkpoint, ShardSpec

ResultT = TypeVar("ResultT")
_log = structlog.get_logger()
TIME_TOLD_SECONDS = SPAN_SECONDS_MAX / 8
"""So that what was left pending leaves memory soon after its time also when traffic has ended."""
_REPLAY_BOUNDS = InputBounds(messages_max=32_768, bytes_max=8 << 20)
"""Bounds of what a replay reads ahead. It is not counted with the member's: what waits there waits for the replay."""


class TxnObserver(Protocol):
    """Observer of read messages and of transactions' progress."""

    def on_sequenced(self, record: tx.RecordSequenced) -> None:
        """A batch was sequenced."""
        ...

    def on_replayed(self, journal: str, messages: int) -> None:
        """Messages were read once more, because memory no longer held them."""
        ...

    def on_achieved(
        self, achieved: tx.PublishProgress | tx.RecordTxn | tx.RecordCheckpoint
    ) -> None:
        """Completed transactions have advanced, or another one is complete."""
        ...

    def on_held(self) -> None:
        """All that was consumed is durable and acknowledged, and nothing begins until the hold is released."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnServices:
    """Services that the loop needs for instructions; one set for each attempt."""

    worker: ShardWorker
    callbacks: Callbacks
    appends: AppendService
    recovered_appends: AppendService
    """For the acknowledgements of the restored checkpoint: a journal deleted since must not fail later appends."""
    begun: Future[None]
    """Of the rollbacks of former producers; commits wait for it."""
    keep_rollbacks: Callable[[Sequence[Rollback]], Future[None]]
    """Puts rollbacks where a successor finds them; the first appends of a producer into a journal wait for it."""
    resumed: asyncio.Event
    """Set once the intents of the restored checkpoint are in `recovered_appends`."""
    clock: Clock
    observer: TxnObserver
    read_replay: Callable[[tx.StartReplay], AsyncGenerator[MessageBatch, None]]
    records: RecordOutputs | None = None
    """Sends what is published into other systems; None: nothing is."""


@dataclass(frozen=True, slots=True)
class _Lent:
    """The outcome of a delivery for which the machine was lent to the worker thread."""

    delivered: Delivered
    orders: tuple[Instruction, ...] = ()
    """Of the machine, except for the `Finalize` that was obeyed at once."""
    finalized: Finalized | None = None
    """None if the transaction was not closed."""
    told: bool = False
    """Whether the machine knows of the delivery."""


class TransactionLoop:
    """Runs one machine to its end."""

    def __init__(
        self,
        machine: TransactionMachine,
        services: TxnServices,
        *,
        read_ahead: InputBounds,
        read_through: Mapping[str, int] | None = None,
    ) -> None:
        """Create a loop; put input into `input`, then `run`.

        Args:
            machine: Not started yet.
            services: What its instructions are performed with.
            read_ahead: Bounds of what is read ahead.
            read_through: What the machine's checkpoint has read, bytes by journal.
        """
        self._machine = machine
        self._services = services
        self._now = services.clock.monotonic_seconds
        self._wake = asyncio.Event()
        self._events: deque[Event] = deque()
        self._orders: deque[Instruction] = deque()
        """Instructions that the machine gave on the worker thread."""
        self._is_lent = False
        """Whether the machine is the worker thread's."""
        self._timer: asyncio.TimerHandle | None = None
        self._replay: InputQueue | None = None
        self._commit: OpFuture = completed()
        self._has_published = False
        """Whether anything was given to `appends`: until then it has room, and nothing pending."""
        self._entered: set[str] = set()
        """Journals in which this producer has begun, as its rollbacks on file tell: their first append demanded that
        they are not divided. Each append demands it where there is no such record.
        """
        self._is_running = False
        self._has_begun = False
        """True once `services.begun` is done; it is not asked again then."""
        self._started: StartedCommit | None = None
        """A commit that the machine has not ordered yet."""
        self._end: tx.Finish | tx.Fail | None = None
        self._source_error: BaseException | None = None
        self.input = InputQueue(read_ahead, on_ready=self._wake.set, read_through=read_through)
        """Where readers put what they read; close it when no more will come."""

    @property
    def activity(self) -> Activity:
        """Activity that the loop's transactions wait for."""
        return self._machine.activity

    @property
    def is_due(self) -> bool:
        """Report whether a transaction is due that needs no input."""
        return self._machine.is_due(self._now())

    def story(self) -> str:
        """Return the recent events of the transaction machine, as text."""
        return self._machine.story()

    def post(self, event: Event) -> None:
        """Pass an event to the machine; call it on the event loop."""
        self._events.append(event)
        self._wake.set()

    def bound(self, bound: InputBound | None) -> None:
        """Have input end at a bound until there is another one; None: it goes on."""
        self.input.bound = bound
        self._wake.set()

    def end_input(self, error: BaseException | None = None) -> None:
        """Accept no more input. Earlier input is consumed and committed; then `run` ends, with `error` if given.

        A reader that finds its source broken can thus rely on the processing of everything before that place.
        """
        self._source_error = self._source_error or error
        self.input.close()

    async def run(self) -> None:
        """Run transactions until the input is closed and consumed, or a stop was asked for.

        Raises:
            BaseException: whatever failed the loop: an error of the application, its store, a journal.
        """
        self._is_running = True
        try:
            async with TaskGroup() as group:
                for instruction in self._machine.start(self._now()):
                    await self._perform(instruction, group)
                group.start_soon(self._tell_time(), name="tell time")
                self._services.resumed.set()
                while self._end is None:
                    if self._orders:
                        await self._perform(self._orders.popleft(), group)
                        continue
                    event = self._next_event_or_none()
                    if event is None:
                        await self._wait()
                        continue
                    for instruction in self._machine.on(event, self._now()):
                        await self._perform(instruction, group)
                group.stop()
        finally:
            self._is_running = False
            if self._timer is not None:
                self._timer.cancel()
        if isinstance(self._end, tx.Fail):
            raise self._end.cause
        if self._source_error is not None:
            raise self._source_error

    async def _tell_time(self) -> None:
        while True:
            await asyncio.sleep(TIME_TOLD_SECONDS)
            self.post(tx.TimePassed())

    # -- events

    def _next_event_or_none(self) -> Event | None:
        if self._is_lent:
            return None
        if self._events:
            return self._events.popleft()
        match self._machine.demand:
            case InputDemand.BATCH | InputDemand.BATCH_IF_READY:
                is_behind = self.input.is_behind
                batch = self.input.take_or_none()
                if batch is not None:
                    return tx.BatchRead(batch, is_behind)
                return tx.SourcesClosed() if self.input.exhausted else None
            case InputDemand.REPLAY:
                assert self._replay is not None, "no replay was started"
                batch = self._replay.take_or_none()
                if batch is not None:
                    return tx.ReplayRead(batch)
                return tx.ReplayEnded() if self._replay.exhausted else None
            case InputDemand.NOTHING:
                return None
            case _ as never:
                assert_never(never)

    async def _wait(self) -> None:
        """Wait until there may be an event; if the machine only asks whether one is ready, answer it."""
        self._wake.clear()
        if self.input.bound is not None:
            self._tell_bound(self.input.bound)
        if self._is_lent or self._machine.demand is not InputDemand.BATCH_IF_READY:
            await self._wake.wait()
            return
        # Readers whose data has arrived get one turn to hand it over before the transaction closes.
        await asyncio.sleep(0)
        if not self._wake.is_set():
            self.post(tx.InputIdle())

    def _tell_bound(self, bound: InputBound) -> None:
        if not self._is_lent and self.input.is_at_bound and self._machine.has_used_input:
            bound.reached.set()

    # -- instructions

    async def _perform(self, instruction: Instruction, group: TaskGroup) -> None:
        services = self._services
        match instruction:
            case tx.BeginTxn():
                self._begin()
            case tx.Deliver():
                if self._has_published:
                    # Appends drain by themselves, so this wait delays nothing that they depend on.
                    await services.appends.wait_for_room()
                self._deliver(instruction)
            case tx.Finalize():
                finalize = services.callbacks.finalize_and_commit
                self._call(
                    partial(finalize, instruction, self._due(), is_wanted=lambda: self._is_running),
                    then=self._on_finalized,
                )
            case tx.StartCommit(checkpoint, record):
                services.observer.on_achieved(record)
                self._start_commit(checkpoint)
            case tx.AppendAcks(intents, recovered):
                self.append_acks(intents, recovered=recovered)
            case tx.StartReplay():
                self._start_replay(instruction, group)
            case tx.SetTimer(at):
                self._set_timer(at)
            case tx.RecordSequenced():
                services.observer.on_sequenced(instruction)
            case tx.PublishProgress() | tx.RecordTxn() | tx.Held():
                self._achieved(instruction)
            case tx.Finish() | tx.Fail():
                self._end = instruction
            case _:
                assert_never(instruction)

    def _achieved(self, achieved: tx.PublishProgress | tx.RecordTxn | tx.Held) -> None:
        if isinstance(achieved, tx.Held):
            self._services.observer.on_held()
            return
        traces = self._services.callbacks.traces
        if traces is None or isinstance(achieved, tx.PublishProgress):
            self._services.observer.on_achieved(achieved)
            return
        with traces.completing(achieved):
            self._services.observer.on_achieved(achieved)

    def _deliver(self, order: tx.Deliver) -> None:
        """Call the application; if its transaction can be closed behind it, with the machine."""
        # With input at hand the transaction goes on, and a prior transaction must end before this one closes: then
        # the worker thread would have the machine for nothing, while events wait for it.
        if self._machine.delivers_alone and self.input.is_idle and not self._events:
            self._is_lent = True
            self._call(partial(self._deliver_and_close, order, self._due()), then=self._on_returned)
            return
        deliver = self._services.callbacks.deliver
        self._call(partial(deliver, order.batch, order.first), then=self._on_delivered)

    def _deliver_and_close(self, order: tx.Deliver, due: frozenset[Future[object]]) -> _Lent:
        """Deliver, and close the transaction if it may close now. On the worker thread."""
        callbacks, machine = self._services.callbacks, self._machine
        delivered = callbacks.deliver(order.batch, order.first)
        # What was published must be queued by the event loop, and then awaited by the commit.
        waits = bool(delivered.appends or delivered.rollbacks)
        if waits or not self.input.is_idle or not self._is_running:
            return _Lent(delivered)
        answer = tx.BatchDelivered(delivered.consumed, delivered.record_bytes)
        orders = machine.on(answer, self._now())
        if machine.demand is InputDemand.BATCH_IF_READY:
            orders += machine.on(tx.InputIdle(), self._now())
        if not orders or not isinstance(orders[-1], tx.Finalize):
            return _Lent(delivered, orders, told=True)
        finalized = callbacks.finalize_and_commit(
            orders[-1], due, is_wanted=lambda: self._is_running
        )
        return _Lent(delivered, orders[:-1], finalized, told=True)

    def _on_returned(self, lent: _Lent) -> Event | None:
        if not lent.told:
            return self._on_delivered(lent.delivered)
        self._orders.extend(lent.orders)
        return None if lent.finalized is None else self._on_finalized(lent.finalized)

    def _begin(self) -> None:
        callbacks = self._services.callbacks
        if callbacks.asks_to_begin:
            self._call(callbacks.begin, then=lambda _: tx.TxnBegan())
            return
        # No application code runs, and no other callback is under way: the call needs no worker
        # thread.
        callbacks.begin()
        self.post(tx.TxnBegan())

    def _due(self) -> frozenset[Future[object]]:
        """Return what must be done before a commit."""
        services = self._services
        # Futures are invariant in their result, which is not used here.
        due: frozenset[Future[Any]] = frozenset()
        if self._has_published:
            due = services.appends.pending()
        if not self._has_begun:
            self._has_begun = services.begun.done()
            if not self._has_begun:
                due |= {services.begun}
        return due

    def _call(
        self, function: Callable[[], ResultT], *, then: Callable[[ResultT], Event | None]
    ) -> None:
        """Run a callback on the worker thread, and post its answer, if it has one."""
        loop = asyncio.get_running_loop()
        future = self._services.worker.submit(function)
        future.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._on_answer, done, then)
        )

    def _on_answer(self, done: Future[ResultT], then: Callable[[ResultT], Event | None]) -> None:
        # Calls come one at a time, so whichever this was, the machine is the loop's again.
        self._is_lent = False
        try:
            event = then(done.result())
        except Exception as error:  # of the callback, or of what its answer asks for
            event = tx.CallbackFailed(error)
        if event is None:
            self._wake.set()
        else:
            self.post(event)

    def _on_delivered(self, delivered: Delivered) -> Event:
        self._append(delivered.appends, delivered.rollbacks)
        return tx.BatchDelivered(delivered.consumed, delivered.record_bytes)

    def _on_finalized(self, finalized: Finalized) -> Event:
        self._append(finalized.appends, finalized.rollbacks)
        self._started = finalized.started
        return tx.TxnFinalized(
            finalized.ack_intents,
            finalized.last_acknowledgement,
            None if finalized.started is None else finalized.started.checkpoint,
            finalized.wake_at,
        )

    def _start_commit(self, checkpoint: Checkpoint) -> None:
        """Start the commit on the worker, unless that was done right behind the application's last callback."""
        started, self._started = self._started, None
        if started is not None:
            self.post(self._on_commit_started(started.commit))
            return
        start = self._services.callbacks.start_commit
        self._call(partial(start, checkpoint, self._due()), then=self._on_commit_started)

    def _on_commit_started(self, commit: OpFuture) -> Event:
        if commit.done() and (error := _error_of(commit)) is not None:
            return tx.CommitResolved(error)
        self._commit = commit
        loop = asyncio.get_running_loop()
        commit.add_done_callback(
            lambda done: loop.call_soon_threadsafe(
                lambda: self.post(tx.CommitResolved(_error_of(done)))
            )
        )
        return tx.CommitStarted()

    def _append(self, appends: list[PendingAppend], rollbacks: list[Rollback]) -> None:
        if not appends and not rollbacks:
            return  # The usual case of a small transaction, whose intents carry what it publishes.
        kept = (self._services.keep_rollbacks(rollbacks),) if rollbacks else ()
        new_journals = {rollback.journal for rollback in rollbacks}
        self._has_published = self._has_published or bool(appends)
        traces = self._services.callbacks.traces
        with NO_SPAN if traces is None else traces.newest():
            for append in appends:
                after = kept if append.journal in new_journals else ()
                has_begun = append.journal in self._entered
                future = self._services.appends.append(
                    append.journal,
                    append.content,
                    after=after,
                    check_registers=None if has_begun else UNDIVIDED,
                )
                future.add_done_callback(self._on_append_done)
        self._entered |= new_journals

    def _on_append_done(self, done: Future[AppendResponse]) -> None:
        error = done.exception()
        if error is not None:
            self.post(tx.AppendFailed(error))

    def append_acks(self, intents: Mapping[str, bytes], *, recovered: bool) -> None:
        """Append the acknowledgements of a transaction, with what they carry, once its commit has succeeded.

        Args:
            intents: By journal.
            recovered: They are of the restored checkpoint.
        """
        services = self._services
        appends = services.recovered_appends if recovered else services.appends
        self._has_published = self._has_published or not recovered
        # As above: only the commit's success matters.
        after = () if recovered else (self._commit,)
        traces = services.callbacks.traces
        with NO_SPAN if traces is None or recovered else traces.committing():
            for journal, intent in intents.items():
                if services.records is not None and journal.startswith(OUTPUT_KEYS):
                    self._send_records(services.records, journal, intent, recovered=recovered)
                    continue
                future = appends.append(journal, intent, after=after)
                acknowledged = partial(self._on_ack_done, journal, len(intent), recovered)
                future.add_done_callback(acknowledged)

    def _send_records(
        self, records: RecordOutputs, key: str, intent: bytes, *, recovered: bool
    ) -> None:
        after = None if recovered else cast("Future[object]", self._commit)
        loop = asyncio.get_running_loop()

        def on_sent(done: OpFuture) -> None:
            event = tx.AckResolved(key, error=done.exception())
            loop.call_soon_threadsafe(self.post, event)

        sent = records.acknowledge(key, intent, after, recovered=recovered)
        sent.add_done_callback(on_sent)

    def _on_ack_done(
        self, journal: str, size: int, recovered: bool, done: Future[AppendResponse]
    ) -> None:
        error = done.exception()
        if error is None:
            self.post(tx.AckResolved(journal, done.result().commit.end))
        elif recovered and isinstance(error, JournalNotFoundError):
            _log.warning(
                "ack.dropped", journal=journal, bytes=size, reason="the journal was deleted"
            )
            self.post(tx.AckResolved(journal))
        else:
            self.post(tx.AckResolved(journal, error=error))

    def _start_replay(self, order: tx.StartReplay, group: TaskGroup) -> None:
        self._replay = InputQueue(_REPLAY_BOUNDS, on_ready=self._wake.set)
        group.start_soon(self._read_replay(order, self._replay), name=f"replay {order.journal}")

    async def _read_replay(self, order: tx.StartReplay, queue: InputQueue) -> None:
        try:
            async with aclosing(self._services.read_replay(order)) as batches:
                async for batch in batches:
                    self._services.observer.on_replayed(order.journal, len(batch))
                    await queue.put(batch)
        except Exception as error:
            self.post(tx.SourceFailed(error))
        else:
            queue.close()

    def _set_timer(self, at_monotonic_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, at_monotonic_seconds - self._now())
        self._timer = asyncio.get_running_loop().call_later(delay, self.post, tx.Ticked())


def delivery_to(application: Application[Any], intent_bytes_max: int) -> DeliveryLimits:
    """Return the bounds on what an application is handed at once."""
    if isinstance(application, RecordPublisher) and application.record_outputs:
        # What comes of a run of messages is in one commit, which holds the records.
        return DeliveryLimits(bytes_max=intent_bytes_max)
    if isinstance(application, BatchConsumer):
        return DeliveryLimits(messages_max=RUN_MESSAGES_MAX)
    return DeliveryLimits()


def limits_of(spec: ShardSpec, intent_bytes_max: int) -> TxnLimits:
    """Return the limits at which transactions of a shard close."""
    return TxnLimits(
        min_seconds=spec.min_txn_duration.ToTimedelta().total_seconds(),
        max_seconds=spec.max_txn_duration.ToTimedelta().total_seconds(),
        wait_for_ack=not spec.disable_wait_for_ack,
        intent_bytes_max=intent_bytes_max,
    )


def _error_of(commit: OpFuture) -> BaseException | None:
    """Return the error of a finished commit, if it failed."""
    if commit.cancelled():
        return ServiceError(
            "a commit was cancelled; a store's future must not allow that: its outcome is unknown"
        )
    return commit.exception()
