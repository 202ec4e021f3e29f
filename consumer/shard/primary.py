"""One attempt to serve a shard as its primary: prove the assignment, restore, run transactions, tear down.

An attempt owns its worker thread, store, publisher and append service, and ends for good: `terminal` resolves on every
exit. References keep its store alive; none can be taken once it has ended.

Source: gazette/core consumer/shard.go (servePrimary, completeRecovery).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import structlog

from broadsheet.allocator.model import Assignment
from broadsheet.consumer.application import DividedByKey, SegmentKeeper, Store
from broadsheet.consumer.errors import (
    ApplicationError,
    ShardStoppedError,
    SplitDelayedError,
    StoreError,
    UnsupportedSpecError,
)
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.absorbing import Absorbing
from broadsheet.consumer.shard.callbacks import Callbacks, InputPolicy, StampedPublisher
from broadsheet.consumer.shard.crash_loop import DeathRecord
from broadsheet.consumer.shard.dead_letters import DeadLetters, dead_letter_journal
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.hint_keeper import HintKeeper
from broadsheet.consumer.shard.holding import ForkHolding
from broadsheet.consumer.shard.input_queue import InputBound, InputBounds
from broadsheet.consumer.shard.progress import (
    ACKNOWLEDGED,
    UNDONE,
    AttemptCounters,
    Progress,
    Usage,
)
from broadsheet.consumer.shard.purge_watch import PurgeWatch
from broadsheet.consumer.shard.record_outputs import RecordOutputs
from broadsheet.consumer.shard.replica_status import AssignedShard, prove_assignment
from broadsheet.consumer.shard.rollback.keeper import PublishingAttempt, Rollbacks
from broadsheet.consumer.shard.rollback.records import HeldRecords
from broadsheet.consumer.shard.sources import Sources
from broadsheet.consumer.shard.stall_detector import ProgressSample
from broadsheet.consumer.shard.supervision import MessagePosition, text_of
from broadsheet.consumer.shard.transaction_loop import (
    TransactionLoop,
    TxnServices,
    delivery_to,
    limits_of,
)
from broadsheet.consumer.shard.transaction_machine import TransactionMachine
from broadsheet.consumer.shard.worker import ShardWorker
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.errors import PartMissingError, RegisterMismatchError
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.checkpoint import CHECKPOINT, read_through_of
from broadsheet.journals.message.division import is_divided
from broadsheet.journals.message.producers import FilingLimits
from broadsheet.journals.message.sequencer import RING_MESSAGES, Sequencer
from broadsheet.journals.message.uuid import new_producer_id
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.formats import LaterFormatError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.key_range import key_range_of
from broadsheet.wire.labels import KEY_BEGIN
from broadsheet.wire.progress_pb2 import Progress as SplitProgress
from broadsheet.wire.shard_pb2 import Checkpoint

_log = structlog.get_logger()
READ_CHANNEL_MESSAGES = 32_768
"""Messages read ahead if the spec does not say."""
FENCED_REST_SECONDS = 0.1
"""Delay of the tear-down: if the successor runs on this machine, closing files must not compete with its start."""
RENEWAL_SECONDS = 600.0
"""How often it is looked whether a system to which records are sent might forget this shard."""
TakeOver: TypeAlias = "Callable[[], Awaitable[HintKeeper]]"
"""Makes a recovery log ours, and returns what keeps its hints."""


class RefCount:
    """Counts users of an object that must not be destroyed while it is used; lives on the event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def add(self) -> None:
        """Add a user, until `remove`."""
        self._count += 1
        self._none.clear()

    def remove(self) -> None:
        """Undo one `add`."""
        assert self._count > 0, "released more often than held"
        self._count -= 1
        if self._count == 0:
            self._none.set()

    async def wait_none(self) -> None:
        """Wait until there are no users."""
        await self._none.wait()


@dataclass(frozen=True, slots=True)
class _Parts:
    """Services that one attempt owns."""

    worker: ShardWorker
    sources: Sources
    appends: AppendService
    recovered_appends: AppendService
    """Re-acknowledges what the restored checkpoint committed."""
    rollbacks: Rollbacks
    producer: int
    """Publishes until the sources change."""
    records: RecordOutputs


@dataclass(frozen=True, slots=True)
class _Restored:
    """State that the attempt begins from."""

    store: Store
    checkpoint: Checkpoint
    hints: HintKeeper | None
    """None: the shard has no recovery log."""


class PrimaryAttempt:
    """Serves a shard once."""

    def __init__(
        self,
        shard: AssignedShard,
        assignment: Callable[[], Assignment],
        environment: ShardEnvironment,
        dead_letters: DeadLetters,
        *,
        on_read: Callable[[MessageBatch], None],
    ) -> None:
        """Create an attempt; it can be referenced and waited for before it runs.

        Args:
            shard: Given to the application.
            assignment: Ours as last observed.
            environment: Services and limits.
            dead_letters: Messages to leave out, and to consume with care.
            on_read: Told of each batch that is read from the sources.
        """
        loop = asyncio.get_running_loop()
        self._shard = shard
        self._assignment = assignment
        self._environment = environment
        self._dead_letters = dead_letters
        self._on_read = on_read
        self._references = RefCount()
        self._worker: ShardWorker | None = None
        self._callbacks: Callbacks | None = None
        self._loop: TransactionLoop | None = None
        self._last_story = ""
        self._reading: TaskGroup | None = None
        self._appends: AppendService | None = None
        self._records: RecordOutputs | None = None
        self._rollbacks: Rollbacks | None = None
        self._stopping = False
        self._rests = False
        """Transactions were asked to rest, also those of the next machine."""
        self._bound: InputBound | None = None
        """Where input ends for now, also that of the next machine."""
        self.standstill = asyncio.Lock()
        """Held by who has the transactions rest, or input end."""
        self.holding = ForkHolding(shard, environment, self)
        """Rests the transactions while another shard takes over keys."""
        self.absorbing = Absorbing(shard, environment, self)
        """Takes over the keys of another shard."""
        self._purge_watch = PurgeWatch(shard, environment)
        self.store: Store | None = None
        """Set while the attempt serves and is torn down."""
        self.progress = Progress(
            (source.journal for source in shard.spec.sources), awaits=(ACKNOWLEDGED, UNDONE)
        )
        self._achievements = AttemptCounters(shard, self.progress, environment.metrics)
        self.ready: asyncio.Future[None] = loop.create_future()
        """Resolves once the store is restored; stays pending if that never happens."""
        self.terminal: asyncio.Future[BaseException | None] = loop.create_future()
        """Resolves, with the cause or None for a stop that was asked for, as soon as the attempt has ended."""
        self.ready_at_monotonic_seconds: float | None = None

    @property
    def failed_at(self) -> MessagePosition | None:
        """Messages that the application was consuming when it failed, if any."""
        return self._callbacks.failed_at if self._callbacks is not None else None

    @property
    def usage(self) -> Usage:
        """Resources used so far."""
        cpu_seconds = self._worker.cpu_seconds if self._worker is not None else 0.0
        return Usage(consumed_bytes=self._achievements.consumed_bytes, cpu_seconds=cpu_seconds)

    @property
    def purge(self) -> SplitProgress | None:
        """Progress of removing rows that a split has given away; None: there are none."""
        return self._purge_watch.progress

    @property
    def activity(self) -> tx.Activity:
        """Activity that the transactions wait for; before there are any, the attempt works."""
        return self._loop.activity if self._loop is not None else tx.Activity.WORKING

    @property
    def is_due(self) -> bool:
        """Report whether a transaction is due that needs no input."""
        return self._loop is not None and self._loop.is_due

    def look(self, heads: Mapping[str, int]) -> ProgressSample:
        """Return a sample of the attempt's progress.

        A source that neither this attempt nor its checkpoint has read may have nothing to read below the first
        observed head, because its old content may be gone. Later input is work.

        Args:
            heads: The sources' write heads, bytes by journal.
        """
        for journal, head in heads.items():
            self._achievements.sequenced_to.setdefault(journal, head)
        return ProgressSample(
            read=dict(self._achievements.sequenced_to),
            committed=self.progress.copies()[0],
            deliveries=self._callbacks.deliveries if self._callbacks is not None else 0,
            activity=self.activity,
            heads=heads,
        )

    def stack(self) -> str:
        """Return the present stack of the application's thread."""
        return self._worker.stack() if self._worker is not None else ""

    def story(self) -> str:
        """Return the recent events of the transactions, also of those that have ended; empty if there were none."""
        return self._loop.story() if self._loop is not None else self._last_story

    def overdue_append(self, seconds: float) -> str:
        """Return a journal with an append that has been under way for so long; the empty string if there is none."""
        return self._appends.overdue(seconds) if self._appends is not None else ""

    # -- references

    @property
    def ended(self) -> bool:
        """Report whether the attempt no longer serves."""
        return self.terminal.done()

    def stopped_error(self) -> ShardStoppedError:
        """Return the error that explains its end; it must have ended."""
        cause = self.terminal.result()
        detail = "it was stopped" if cause is None else text_of(cause)
        error = ShardStoppedError(self._shard.id, detail=detail)
        error.__cause__ = cause
        return error

    def hold(self) -> None:
        """Keep the store from being destroyed until `let_go`.

        Raises:
            ShardStoppedError: it has ended.
        """
        if self.ended:
            raise self.stopped_error()
        self._references.add()

    def let_go(self) -> None:
        """Undo one `hold`."""
        self._references.remove()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(store, *args)`, run on the worker thread between batches.

        Raises:
            ShardStoppedError: it has ended.
        """
        if self.ended or self._worker is None:
            raise self.stopped_error()
        return await self._worker.run(function, self.store, *args)

    # -- life

    async def run(
        self, on_ready: Callable[[], Coroutine[Any, Any, None]], take_over: TakeOver | None
    ) -> BaseException | None:
        """Serve until a stop is asked for (None) or something fails (the cause); then tear down.

        Args:
            on_ready: Run beside the transactions once the store is restored.
            take_over: Makes the shard's recovery log ours, so that the store can be opened; None: it has no log.
        """
        cause: BaseException | None = None
        try:
            await self._serve(on_ready, take_over)
        except Exception as error:
            cause = await self._learn_divided(error)
        finally:
            # Also on cancellation, so that no caller waits for an answer that never comes.
            self.terminal.set_result(cause)
            await self._tear_down(cause)
        return cause

    async def _learn_divided(self, error: Exception) -> Exception:
        """If a journal refused us because it is divided, look its parts up: the next attempt publishes there.

        Returns:
            The cause to report: the error, or that a part is missing, which the next attempt will not find either.
        """
        if not isinstance(error, RegisterMismatchError) or not is_divided(error.registers):
            return error
        journals, journal = self._environment.journals, error.journal
        _log.info("publisher.journal_divided", shard=self._shard.id, journal=journal)
        try:
            await journals.learn_divided(journal)
        except ServiceError as unanswered:
            # The next attempt is refused, too, and looks again.
            _log.warning("publisher.parts_unknown", journal=journal, cause=str(unanswered))
            return error
        return PartMissingError(journal) if journals.divided.lacks_part(journal) else error

    def request_stop(self) -> bool:
        """Ask the running transaction to finish and the attempt to end; False if there is none: then cancel `run`."""
        self._stopping = True
        if self._loop is None:
            return False
        self._loop.post(tx.StopRequested())
        return True

    def rest(self) -> asyncio.Event:
        """Have no transaction begin; return what is set once all is durable and acknowledged."""
        self._rests = True
        self._achievements.held.clear()
        if self._loop is not None:
            self._loop.post(tx.HoldRequested())
        return self._achievements.held

    def go_on(self) -> None:
        """Let transactions begin again."""
        self._rests = False
        if self._loop is not None:
            self._loop.post(tx.HoldReleased())

    def bound(self, through: Mapping[str, int]) -> InputBound:
        """Have input end where it is, or at given offsets if those are behind; return where.

        Raises:
            SplitDelayedError: transactions have not begun.
        """
        if self._loop is None:
            raise SplitDelayedError(f"shard {self._shard.id} does not read now")
        taken = self._loop.input.taken_through
        self._bound = InputBound(
            {
                each.journal: max(taken.get(each.journal, 0), through.get(each.journal, 0))
                for each in self._shard.spec.sources
            }
        )
        self._loop.bound(self._bound)
        return self._bound

    def unbound(self) -> None:
        """Have input go on."""
        self._bound = None
        if self._loop is not None:
            self._loop.bound(None)

    def committed_through(self, source: str) -> int:
        """Return through where the committed checkpoint has read a source, bytes; have what was read since committed.

        Args:
            source: As the spec has it, with its suffix.
        """
        committed = self._achievements.checkpointed.get(source, 0)
        if committed < self.progress.copies()[0].get(source, 0):
            self.wake()
        return committed

    def wake(self) -> None:
        """Have a transaction begin soon, though nothing may be read."""
        if self._loop is not None:
            self._loop.post(tx.WakeRequested())

    async def inherit_rollbacks(self, shard_id: str) -> None:
        """Roll back later what former producers of an absorbed shard left.

        Raises:
            AssignmentLostError: the shard is no longer ours.
            ServiceError: a journal cannot be read.
        """
        assert self._rollbacks is not None, "the attempt has begun"
        await self._rollbacks.inherit(shard_id)

    async def on_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`, run on the worker thread between batches.

        Raises:
            ShardStoppedError: it has ended.
        """
        if self.ended or self._worker is None:
            raise self.stopped_error()
        return await self._worker.run(function, *args)

    def on_spec_changed(self, *, sources_changed: bool) -> None:
        """Adopt a newer spec: limits from the next transaction on; sources by reading again at the next commit."""
        self.holding.on_spec_changed()
        self.absorbing.on_spec_changed()
        self._purge_watch.on_spec_changed()
        if self._loop is None:
            return
        intent_bytes_max = self._environment.config.intent_bytes_max
        self._loop.post(tx.LimitsChanged(limits_of(self._shard.spec, intent_bytes_max)))
        if sources_changed:
            if self._reading is not None:
                self._reading.stop()
            self._loop.end_input()

    async def _serve(
        self, on_ready: Callable[[], Coroutine[Any, Any, None]], take_over: TakeOver | None
    ) -> None:
        """Serve in phases; each begins only once the phase before it has succeeded."""
        deaths = await self._admit()
        parts = self._assemble()
        restored = await self._restore(parts, take_over)
        await self._become_ready(parts, restored)
        async with TaskGroup() as group:
            self._start_companions(group, parts, restored, on_ready)
            if deaths.members:
                group.start_soon(self._outlive(), name=f"outlive {self._shard.id}")
            begun = parts.rollbacks.begin(restored.checkpoint)
            group.start_soon(parts.rollbacks.undo(begun), name=f"undo {self._shard.id}")
            await self._transact(parts, restored, begun)
            if restored.hints is not None:
                await restored.hints.flush()
            group.stop()

    async def _admit(self) -> DeathRecord:
        """Check the assignment and the shard's crash history, before anything exists that needs tear-down."""
        if not key_range_of(self._shard.spec.labels).is_all:
            _require_divided(self._environment.application)
        environment, shard = self._environment, self._shard
        item = environment.keys.item(shard.assignment.item_id)
        await prove_assignment(environment.etcd, shard, item)
        return await self._environment.deaths.admit(self._shard.id)

    def _assemble(self) -> _Parts:
        """Create the attempt's parts; there is no await, so that a cancellation cannot leave half of them."""
        environment, shard = self._environment, self._shard
        worker = self._worker = environment.new_worker(shard.id)
        # Once an attempt: what its sources pass on, its callbacks expect.
        read_around = self._dead_letters.keeps_unreadable = bool(dead_letter_journal(shard.spec))
        sources = Sources(
            shard, environment, worker=worker, read_around=read_around, on_read=self._on_read
        )
        appends = self._appends = environment.new_appends(shard.fqn)
        recovered = environment.new_plain_appends()
        producer = new_producer_id(environment.random_bytes)
        rollbacks = self._rollbacks = Rollbacks.of_attempt(
            environment,
            HeldRecords(environment.rollbacks, shard.id, self._assignment),
            PublishingAttempt(producer, lambda: self._achievements.transactions),
            appends=recovered,
            progress=self.progress,
        )
        records = self._records = RecordOutputs.of(
            environment.application,
            shard,
            bytes_max=environment.config.intent_bytes_max,
            clock=environment.clock,
        )
        return _Parts(worker, sources, appends, recovered, rollbacks, producer, records)

    async def _restore(self, parts: _Parts, take_over: TakeOver | None) -> _Restored:
        """Take the log over and restore the store; prefetch concurrently, because fail-over waits for both."""
        async with TaskGroup() as group:
            # Beside the take-over, because Kafka takes as long to fence our predecessor.
            parts.records.start()
            group.start_soon(parts.sources.prefetch(), name=f"prefetch {self._shard.id}")
            group.start_soon(parts.rollbacks.foresee(), name=f"foresee {self._shard.id}")
            hints = await take_over() if take_over is not None else None
            store, checkpoint = await self._restored(
                parts.worker, parts.rollbacks, fenced=hints is not None
            )
            group.stop()
        return _Restored(store, checkpoint, hints)

    async def _become_ready(self, parts: _Parts, restored: _Restored) -> None:
        """Check the sources first, because callers must never see a store whose sources were replaced."""
        await parts.sources.check(restored.checkpoint)
        await self.absorbing.forget_former()
        await self.holding.forget_former()
        self.progress.update(read_through_of(restored.checkpoint), {})
        self.ready_at_monotonic_seconds = self._environment.clock.monotonic_seconds()
        self.ready.set_result(None)

    def _start_companions(
        self,
        group: TaskGroup,
        parts: _Parts,
        restored: _Restored,
        on_ready: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Start the tasks that run beside all transactions: a failure of any of them ends the attempt."""
        shard = self._shard
        group.start_soon(parts.appends.run(), name=f"append {shard.id}")
        group.start_soon(parts.recovered_appends.run(), name=f"re-acknowledge {shard.id}")
        group.start_soon(self._report_ready(parts.sources, on_ready), name=f"ready {shard.id}")
        if restored.hints is not None:
            group.start_soon(restored.hints.run(), name=f"hints {shard.id}")
        group.start_soon(parts.rollbacks.run(), name=f"rollbacks {shard.id}")
        group.start_soon(self.holding.run(), name=f"rest {shard.id}")
        absorbing = self.absorbing.run(restored.store)
        group.start_soon(absorbing, name=f"absorb {shard.id}")
        group.start_soon(self._purge_watch.run(restored.store), name=f"purge {shard.id}")
        if parts.records.are_any:
            group.start_soon(self._renew_records(parts.records), name=f"renew {shard.id}")
        committed = self._achievements.first_committed
        group.start_soon(parts.sources.drop_resets(committed), name=f"resets {shard.id}")

    async def _renew_records(self, records: RecordOutputs) -> None:
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            records.renew()

    async def _report_ready(
        self, sources: Sources, on_ready: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Report ready once it is settled, and committed, where reading begins: what is written then must be read."""
        await sources.settled.wait()
        await on_ready()

    async def _transact(self, parts: _Parts, restored: _Restored, begun: Future[None]) -> None:
        """Run transactions until a stop; when only the sources changed, restart from the store's new checkpoint."""
        store, checkpoint, producer = restored.store, restored.checkpoint, parts.producer
        while True:
            parts.records.settle(checkpoint, store)
            records = parts.records if parts.records.are_any else None
            self._callbacks = self._new_callbacks(store, producer, records)
            services = TxnServices(
                worker=parts.worker,
                callbacks=self._callbacks,
                appends=parts.appends,
                recovered_appends=parts.recovered_appends,
                begun=begun,
                keep_rollbacks=parts.rollbacks.keep,
                resumed=parts.rollbacks.resumed,
                clock=self._environment.clock,
                observer=self._achievements,
                read_replay=parts.sources.replay,
                records=records,
            )
            await self._run_transactions(store, checkpoint, parts.sources, services)
            if self._stopping:
                return
            checkpoint = await parts.worker.run(store.restore_checkpoint, self._shard)
            self._check_reader(checkpoint)
            await parts.sources.check(checkpoint)
            await parts.rollbacks.settle(checkpoint)
            # A new producer, because the old checkpoint's acknowledgements are written again (see _new_callbacks).
            producer = new_producer_id(self._environment.random_bytes)
            begun = parts.rollbacks.begin(checkpoint)

    async def _outlive(self) -> None:
        """Serve long enough, then clear the shard of the suspicion that it kills its primaries."""
        await asyncio.sleep(self._environment.config.healthy_seconds)
        await self._environment.deaths.clear(self._shard.id)

    def _new_callbacks(
        self, store: Store, producer: int, records: RecordOutputs | None
    ) -> Callbacks:
        """Return callbacks that publish as a new producer, for transactions that begin from one restored checkpoint.

        The acknowledgements of that checkpoint are written again, concurrently with newly published messages. With one
        producer for both, an acknowledgement that comes second would roll back messages that came first.
        """
        environment, config = self._environment, self._environment.config
        return Callbacks(
            self._shard,
            environment.application,
            store,
            StampedPublisher(
                producer,
                environment.clock,
                carried_bytes_max=config.carried_bytes_max,
                clock_delta_seconds=config.publish_clock_delta_seconds,
                records=records,
                divided=environment.journals.divided,
            ),
            InputPolicy(
                dead_letters=self._dead_letters,
                count_unreadable=partial(environment.metrics.record_dead_letter, self._shard.fqn),
                ahead_seconds_max=config.clock_ahead_seconds
                if config.refuse_clocks_ahead
                else None,
            ),
        )

    async def _restored(
        self, worker: ShardWorker, rollbacks: Rollbacks, *, fenced: bool
    ) -> tuple[Store, Checkpoint]:
        """Return the store and its checkpoint, with the rollbacks of former producers read.

        The two are read concurrently if those producers are `fenced` already; otherwise the restore fences them.
        """
        async with TaskGroup() as group:
            if fenced:
                group.start_soon(rollbacks.take_over(), name=f"former {self._shard.id}")
            store = await worker.run(self._new_store)
            checkpoint: Checkpoint = await worker.run(store.restore_checkpoint, self._shard)
        self._check_reader(checkpoint)
        if not fenced:
            await rollbacks.take_over()
        await rollbacks.settle(checkpoint)
        return store, checkpoint

    def _check_reader(self, checkpoint: Checkpoint) -> None:
        try:
            CHECKPOINT.check(checkpoint.min_reader)
        except LaterFormatError as error:
            raise StoreError(self._shard.fqn, str(error)) from error

    async def _run_transactions(
        self, store: Store, checkpoint: Checkpoint, sources: Sources, services: TxnServices
    ) -> None:
        """Run transactions from `checkpoint` of `store` on until the input ends."""
        spec = self._shard.spec
        self._achievements.sequenced_to = read_through_of(checkpoint)
        ring_messages = spec.ring_buffer_size or RING_MESSAGES
        config = self._environment.config
        keeps_segments = isinstance(store, SegmentKeeper) and store.keeps_segments
        filing = FilingLimits(files_pending=config.file_open_transactions)
        sequencer = Sequencer(
            checkpoint.sources,
            ring_messages=ring_messages,
            producers_bytes_max=config.producers_bytes_max,
            filing=filing if keeps_segments else None,
        )
        machine = TransactionMachine(
            sequencer,
            checkpoint,
            limits=limits_of(spec, config.intent_bytes_max),
            delivery=delivery_to(self._environment.application, config.intent_bytes_max),
            wake_at=await self._first_wake(services),
            holds=self._rests,
        )
        with self._environment.read_ahead.share(self._shard.fqn) as share:
            read_ahead = InputBounds(
                messages_max=spec.read_channel_size or READ_CHANNEL_MESSAGES,
                bytes_max=self._environment.config.input_bytes_max,
                share=share,
            )
            self._loop = TransactionLoop(
                machine,
                services,
                read_ahead=read_ahead,
                read_through=read_through_of(checkpoint),
            )
            self._loop.bound(self._bound)
            await self._run_loop(store, checkpoint, sources, self._loop)

    async def _first_wake(self, services: TxnServices) -> float | None:
        """Return when the first transaction begins though nothing is read, monotonic seconds."""
        if not services.callbacks.wakes_itself:
            return None  # Nothing to ask on the worker thread.
        return await services.worker.run(services.callbacks.wake_at)

    async def _run_loop(
        self, store: Store, checkpoint: Checkpoint, sources: Sources, loop: TransactionLoop
    ) -> None:
        if self._stopping:
            loop.post(tx.StopRequested())
        try:
            async with TaskGroup() as transactions:
                reading = self._read(store, checkpoint, sources, loop)
                transactions.start_soon(reading, name="read sources")
                # In its own task: awaited here, each step of the loop would first resume every coroutine that waits
                # for the attempt's end.
                await transactions.start_soon(loop.run(), name=f"transact {self._shard.id}")
                transactions.stop()
        finally:
            # The text alone, because the machine holds what it has sequenced.
            self._last_story, self._loop = loop.story(), None

    async def _read(
        self, store: Store, checkpoint: Checkpoint, sources: Sources, loop: TransactionLoop
    ) -> None:
        try:
            async with TaskGroup() as self._reading:
                sources.start(store, checkpoint, loop, self._reading)
        finally:
            self._reading = None

    def _new_store(self) -> Store:
        application = self._environment.application
        try:
            store: Store = application.new_store(self._shard)
        except ServiceError:
            raise
        except BaseException as error:  # e.g. sys.exit(): only this shard fails
            raise ApplicationError(self._shard.id, "new_store", error) from error
        # On the worker thread, because a tear-down queued behind this call still finds the store if
        # we are cancelled.
        self.store = store
        return store

    def _destroy_store(self) -> None:
        if self.store is not None:
            self.store.destroy()

    def _abandon_txn(self, cause: BaseException | None) -> None:
        """Inform the application that its running transaction will not commit; errors it raises then change
        nothing.
        """
        if self._callbacks is None:
            return
        error = cause or ShardStoppedError(self._shard.id, detail="its transaction is given up")
        try:
            self._callbacks.abandon(error)
        except Exception as second:
            error.add_note(f"then finished_txn failed too: {second}")

    async def _tear_down(self, cause: BaseException | None) -> None:
        self._environment.metrics.lags.forget(self._shard.fqn)
        if self._records is not None:
            self._records.close()
        timeout, worker = self._environment.config.teardown_seconds, self._worker
        if worker is not None:
            worker.submit(self._abandon_txn, cause)  # Queued behind a `begin_txn` that still runs.
        try:
            async with asyncio.timeout(timeout):
                if cause is not None and failure_kind(cause) is FailureKind.FENCED:
                    await asyncio.sleep(FENCED_REST_SECONDS)
                await self._references.wait_none()
        except TimeoutError:
            _log.error(
                "shard.references_not_released", shard=self._shard.id, waited_seconds=timeout
            )
        finally:
            if worker is not None:
                # Queued even if the thread is stuck, so that a callback which does return leaves
                # nothing open.
                destroyed = worker.submit(self._destroy_store)
                destroyed.add_done_callback(self._on_destroyed)
                worker.close()
        if worker is not None and not await worker.join(timeout_seconds=timeout):
            _log.error("shard.worker_stuck", shard=self._shard.id, waited_seconds=timeout)

    def _on_destroyed(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            _log.error("shard.store_not_destroyed", shard=self._shard.id, error=str(error))


def _require_divided(application: object) -> None:
    """Check that an application passes over the keys of other shards.

    Raises:
        UnsupportedSpecError: it would handle all of them, as the others of its family do.
    """
    reason = indivisible(application)
    if reason:
        raise UnsupportedSpecError(
            f"labels[{KEY_BEGIN}]", f"expected none, because {reason}: its shards own all keys"
        )


def indivisible(application: object) -> str:
    """Return why shards of an application must own all keys, as a sentence's end; empty if they need not."""
    if isinstance(application, DividedByKey):
        return application.why_indivisible()
    return f"{type(application).__name__} is not divided by key (`DividedByKey`)"
