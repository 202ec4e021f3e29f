"""Readers of a shard's sources: they feed its transactions, and read ranges again.

Source: gazette/core consumer/shard.go, consumer/transaction.go (startReadingMessages, replays).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import Compare, Put
from broadsheet.consumer.application import (
    Application,
    MessageProducer,
    SettlingMessages,
    Store,
)
from broadsheet.consumer.elastic.journal_split import left_behind, with_unread
from broadsheet.consumer.errors import ApplicationError, SourceReplacedError, SourceUnreadError
from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.forking import stored_spec
from broadsheet.consumer.shard.holding import see_spec
from broadsheet.consumer.shard.replica_status import AssignedShard, prove_assignment
from broadsheet.consumer.shard.source_resets import SourceResets, apply_reset, is_of, was_applied
from broadsheet.consumer.shard.transaction_loop import TransactionLoop
from broadsheet.consumer.shard.worker import ShardWorker
from broadsheet.journals.errors import JournalNotFoundError, JournalReplacedError
from broadsheet.journals.guard import OffsetGuard, Present, RememberedRead
from broadsheet.journals.message.batch import MessageBatch, MessageType
from broadsheet.journals.message.checkpoint import epoch_of, start_offset
from broadsheet.journals.message.division import sealed_at
from broadsheet.journals.message.reader import BatchOptions, MessageSource
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.identity_pb2 import JournalEpoch
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import SPLIT_OF, value_of
from broadsheet.wire.shard_pb2 import Checkpoint, ShardSpec

_log = structlog.get_logger()

LOOK_SECONDS_MAX = 1.0
"""Longest wait for a broker to tell what a source holds, before the shard serves without: reading asks again."""
HEAD_PAUSE_SECONDS_MAX = 0.5
"""Longest pause before a write head that is too low is asked for again."""
SEAL_LOOK_SECONDS = 0.1
"""How often it is looked whether a divided journal is read to its seal, while its parts wait for that."""
UNSEALED = 1 << 62
"""An offset behind that of any seal, of a journal that has none yet."""
FRUITLESS_PAUSE_SECONDS_MAX = 1.0
"""Longest pause before an application that brings its messages is asked to go on from the same place again: it and the
store would spin."""


class Sources:
    """The sources of one attempt."""

    def __init__(
        self,
        shard: AssignedShard,
        environment: ShardEnvironment,
        *,
        worker: ShardWorker,
        read_around: bool,
        on_read: Callable[[MessageBatch], None],
    ) -> None:
        """Bind the sources.

        Args:
            shard: Whose sources.
            environment: Has the application, which knows the message types or brings the messages itself.
            worker: Runs the application's callbacks.
            read_around: Pass on bytes that are not messages, marked `UNREADABLE`, instead of failing at them.
            on_read: Told of each batch that is read for the first time.
        """
        self._shard = shard
        # The store's type is known to the application only.
        self._application: Application[Any] = environment.application
        self._store: Store | None = None
        self._worker = worker
        self._batches = BatchOptions(read_around=read_around)
        self._environment = environment
        self._journals = environment.journals
        self._on_read = on_read
        self._specs: dict[str, JournalSpec] = {}
        self._sources: dict[str, MessageSource] = {}
        self._resets = SourceResets(environment.etcd, AuxiliaryKeys(environment.keys.root))
        self._settled: set[str] = set()
        """Sources that hold what the checkpoint has read of them, perhaps because it was reset."""
        self._head_patience_seconds = environment.config.head_patience_seconds
        self._clock = environment.clock
        self._foreseen: dict[str, Present] = {}
        """What brokers said of sources while there was no checkpoint to judge it by yet."""
        self._guards: dict[str, OffsetGuard] = {}
        self._epochs: dict[str, JournalEpoch] = {}
        """In which the sources are read."""
        self._lags = environment.metrics.lags
        self._loop: TransactionLoop | None = None
        self._pause = Backoff(max_seconds=FRUITLESS_PAUSE_SECONDS_MAX)
        self.settled = asyncio.Event()
        """Set once no position is left to settle, or to commit, before what is written now is sure to be read."""
        if not isinstance(self._application, MessageProducer):
            self.settled.set()
        self._restored: bytes | None = None
        """The checkpoint that an application was last asked to go on from."""

    async def prefetch(self) -> None:
        """Look up how to read the sources, before there is a store to read them for; failed lookups are repeated
        later.
        """
        if isinstance(self._application, MessageProducer):
            return
        for source in self._shard.spec.sources:
            try:
                await self._source(source.journal)
                self._foreseen[source.journal] = await self._journals.present(source.journal)
            except ServiceError as error:
                _log.info("sources.not_prefetched", journal=source.journal, cause=str(error))

    async def check(self, checkpoint: Checkpoint) -> None:
        """Verify that the sources still hold what a checkpoint has read, before the shard serves.

        If a source does not, and a reset is stored for it, the checkpoint is changed to continue there. A source whose
        broker does not answer is checked when it is read.

        Raises:
            SourceReplacedError: one does not.
            SourceUnreadError: the rest of a divided journal is to be read, and is gone.
            AssignmentLostError: the shard is gone, or another member's.
        """
        if isinstance(self._application, MessageProducer):
            return
        await self._add_unread(checkpoint)
        self._guards = {
            source.journal: self._guard(checkpoint, source) for source in self._shard.spec.sources
        }
        for source in self._shard.spec.sources:
            try:
                answered = await self._look(source.journal)
            except JournalReplacedError as error:
                if not await self._reset(checkpoint, source):
                    raise SourceReplacedError(self._shard.id, error) from error
            else:
                if not answered:
                    return
            self._settled.add(source.journal)

    async def _add_unread(self, checkpoint: Checkpoint) -> None:
        """Make divided journals sources again that a checkpoint has not read to their seals, as after a rewind.

        Raises:
            SourceUnreadError: one is gone.
            AssignmentLostError: the shard is gone, or another member's.
        """
        environment, shard = self._environment, self._shard
        backoff = Backoff()
        while unread := await self.unread(checkpoint):
            try:
                spec, revision = await stored_spec(environment, shard.id)
                key, assignment = environment.keys.item(ItemId(shard.id)), shard.assignment.kv
                added = with_unread(spec, unread).SerializeToString(deterministic=True)
                result = await environment.etcd.txn(
                    (
                        Compare.mod_revision(key, revision),
                        Compare.create_revision(assignment.key, assignment.create_revision),
                    ),
                    (Put(key, added),),
                )
            except EtcdError as error:
                _log.warning("source.not_added", shard=shard.id, cause=str(error))
                await backoff.sleep()
                continue
            if result.succeeded:
                _log.warning("source.added_again", shard=shard.id, journals=sorted(unread))
            else:
                # Its spec was changed meanwhile.
                await prove_assignment(environment.etcd, shard, key)
            await see_spec(environment, shard)

    async def unread(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Return the divided journals that a checkpoint has not read to their seals, and that are no sources any more.

        Returns:
            By name, what each is read behind; empty: nothing.

        Raises:
            SourceUnreadError: one is gone, or it cannot be told what comes before it.
        """
        found: dict[str, str] = {}
        spec = self._shard.spec
        sources = {each.journal for each in spec.sources}
        behind = left_behind(spec)
        while behind:
            name, sealed = behind.popitem()
            if name in found or start_offset(checkpoint, name, 0) >= sealed:
                continue
            journal, separator, meta = name.partition(";")
            parent = value_of((await self._divided(name, checkpoint)).labels, SPLIT_OF)
            before = f"{parent}{separator}{meta}" if parent else ""
            found[name] = before if before in sources else ""
            # Who has read any of a part has read what comes before it.
            if not before or before in sources or name in checkpoint.sources:
                continue
            if before not in checkpoint.sources and before not in behind:
                raise SourceUnreadError(
                    f"shard {self._shard.id} recovers without having read {journal}, which is a part of {parent}, and "
                    f"its sources do not tell whether that comes first: apply the shard with {journal} among its "
                    f"sources, and with {parent} if it is to read that, too"
                )
            end = sealed_at(await self._divided(before, checkpoint))
            if end is None or start_offset(checkpoint, before, 0) < end:
                found[name] = before
                behind.setdefault(before, end or UNSEALED)
        return found

    async def _divided(self, name: str, checkpoint: Checkpoint) -> JournalSpec:
        """Return the spec of a divided journal of which this shard has something left to read.

        Raises:
            SourceUnreadError: it is gone.
        """
        try:
            return (await self._journals.get(name.partition(";")[0])).spec
        except JournalNotFoundError as error:
            raise SourceUnreadError(
                f"shard {self._shard.id} recovers from before the end of {name}, which was divided, and has read it "
                f"to {start_offset(checkpoint, name, 0)}: the journal is gone. Restore it; or have the shard go on "
                f"without the rest of it: apply it with no `after: {name}` in its sources"
            ) from error

    async def _reset(self, checkpoint: Checkpoint, source: ShardSpec.Source) -> bool:
        """Apply the stored reset of a source that was replaced; False if there is none for the present journal.

        It stays in memory, and in etcd, until a transaction has committed it.
        """
        shard_id, journal = self._shard.id, source.journal
        reset = await self._resets.find(shard_id, journal)
        if reset is None:
            return False
        present = await self._journals.present(journal)
        if was_applied(reset, checkpoint) or not is_of(reset, present):
            _log.warning("source_reset.out_of_date", shard=shard_id, journal=journal)
            await self._resets.drop(shard_id, (journal,))
            return False
        apply_reset(reset, checkpoint)
        guard = self._guards[journal] = self._guard(checkpoint, source)
        _log.warning("source_reset.applied", shard=shard_id, journal=journal, offset=reset.offset)
        return guard.look(present, self._clock.monotonic_seconds())

    async def drop_resets(self, committed: asyncio.Event) -> None:
        """Delete resets that were applied, or were not needed, once a transaction has committed."""
        await committed.wait()
        # The first transaction commits the positions that were settled, with whatever else.
        self.settled.set()
        try:
            await self._resets.drop(self._shard.id, self._settled)
        except EtcdError as error:
            # The record stays in etcd: the checkpoint shows that it was applied.
            _log.warning("source_reset.delete_failed", shard=self._shard.id, cause=str(error))

    async def _look(self, journal: str) -> bool:
        """Let a guard check where reading begins; False if no broker can describe the journal."""
        guard = self._guards[journal]
        present = self._foreseen.pop(journal, None)
        pause = Backoff(max_seconds=HEAD_PAUSE_SECONDS_MAX)
        while present is None or not guard.look(present, self._clock.monotonic_seconds()):
            if present is not None:
                _log.warning(
                    "source.write_head_behind", journal=journal, write_head=present.write_head
                )
                await pause.sleep()
            try:
                async with asyncio.timeout(LOOK_SECONDS_MAX):
                    present = await self._journals.present(journal)
            except (ServiceError, TimeoutError) as error:
                _log.info("source.not_checked", journal=journal, cause=str(error))
                return False
        return True

    def start(
        self, store: Store, checkpoint: Checkpoint, loop: TransactionLoop, group: TaskGroup
    ) -> None:
        """Feed `loop` from `checkpoint` of `store` on, by tasks of `group`; an error of one ends `loop`."""
        application = self._application
        self._store = store
        if isinstance(application, MessageProducer):
            batches = self._owned(
                "read_messages",
                partial(application.read_messages, self._shard, store, checkpoint),
            )
            restored = checkpoint.SerializeToString(deterministic=True)
            again, self._restored = restored == self._restored, restored
            group.start_soon(self._feed_all(loop, batches, again=again), name="read messages")
            return
        self._loop = loop
        for journal, epoch in self._epochs.items():
            loop.post(tx.SourceIdentified(journal, epoch))
        for source in self._shard.spec.sources:
            offset = start_offset(checkpoint, source.journal, source.min_offset)
            guard = self._guards.pop(source.journal, None) or self._guard(checkpoint, source)
            batches = self._read(source.journal, offset=offset, guard=guard)
            if source.after:
                batches = self.behind_seal(source, checkpoint, loop, batches)
            group.start_soon(self._feed(loop, batches), name=f"read {source.journal}")

    async def behind_seal(
        self,
        source: ShardSpec.Source,
        checkpoint: Checkpoint,
        loop: TransactionLoop,
        batches: AsyncGenerator[MessageBatch, None],
    ) -> AsyncGenerator[MessageBatch, None]:
        """Yield from a part of a divided journal once that one is read to its seal, so that keys keep their order."""
        async with aclosing(batches):
            divided = source.after
            read_through = start_offset(checkpoint, divided, 0)
            sealed = source.after_offset or None
            while True:
                if sealed is None:
                    sealed = await self._sealed_at(divided)
                # What is taken later is delivered later.
                taken = max(read_through, loop.input.taken_through.get(divided, 0))
                if sealed is not None and taken >= sealed:
                    break
                await asyncio.sleep(SEAL_LOOK_SECONDS)
            async for batch in batches:
                yield batch

    async def _sealed_at(self, divided: str) -> int | None:
        """Return the offset behind a journal's seal; None if there is none, or no broker answers."""
        try:
            return sealed_at((await self._journals.get(divided)).spec)
        except ServiceError as error:
            _log.info("source.seal_not_seen", journal=divided, cause=str(error))
            return None

    def replay(self, order: tx.StartReplay) -> AsyncGenerator[MessageBatch, None]:
        """Return the batches of a range again."""
        application = self._application
        if isinstance(application, MessageProducer):
            replay = partial(
                application.replay_range,
                self._shard,
                self._store,
                journal=order.journal,
                begin=order.begin,
                end=order.end,
            )
            return self._owned("replay_range", replay)
        guard = self._replay_guard(order)
        return self._read(order.journal, offset=order.begin, end_offset=order.end, guard=guard)

    async def _feed_all(
        self, loop: TransactionLoop, batches: AsyncGenerator[MessageBatch, None], *, again: bool
    ) -> None:
        """Pass on all input; its end is the end of the loop's input. Pause first if the last try read nothing."""
        if again:
            await self._pause.sleep()
        else:
            self._pause.reset()
        await self._feed(loop, batches)
        loop.end_input()

    async def _feed(
        self, loop: TransactionLoop, batches: AsyncGenerator[MessageBatch, None]
    ) -> None:
        """Pass batches to the loop until they end, fail, or are no longer wanted."""
        try:
            async with aclosing(batches):
                async for batch in batches:
                    if len(batch) > 0:
                        self._on_read(batch)
                    await loop.input.put(batch)
                    if loop.input.closed:
                        return
        except Exception as error:
            loop.end_input(error)

    async def _owned(
        self, operation: str, read: Callable[[], AsyncIterator[MessageBatch]]
    ) -> AsyncGenerator[MessageBatch, None]:
        """Yield from an application's iterator, close it when we are closed, and wrap its errors."""
        try:
            batches = read()
            try:
                if not isinstance(batches, SettlingMessages) or not await batches.settle():
                    self.settled.set()
                async for batch in batches:
                    yield batch
            finally:
                if isinstance(batches, AsyncGenerator | SettlingMessages):
                    await batches.aclose()
        except ServiceError:
            raise
        except (Exception, SystemExit) as error:  # only this shard fails
            raise ApplicationError(self._shard.id, operation, error) from error

    async def _read(
        self, journal: str, *, offset: int, end_offset: int = 0, guard: OffsetGuard
    ) -> AsyncGenerator[MessageBatch, None]:
        source = await self._source(journal)
        read = source.batches(offset=offset, end_offset=end_offset, guard=guard)
        try:
            async with aclosing(read) as batches:
                async for batch in batches:
                    yield batch
        except JournalReplacedError as error:
            raise SourceReplacedError(self._shard.id, error) from error

    def _guard(self, checkpoint: Checkpoint, source: ShardSpec.Source) -> OffsetGuard:
        """Return the guard of a source's read, which also reports the journal's epoch and write head."""
        starts_at = start_offset(checkpoint, source.journal, source.min_offset)
        self._lags.start(self._shard.fqn, source.journal, starts_at)
        return OffsetGuard(
            RememberedRead(
                source.journal,
                epoch_of(checkpoint, source.journal),
                read_through=start_offset(checkpoint, source.journal, 0),
                starts_at=starts_at,
            ),
            patience_seconds=self._head_patience_seconds,
            on_epoch=partial(self._note_epoch, source.journal),
            on_head=partial(self._lags.on_head, self._shard.fqn, source.journal),
        )

    def _note_epoch(self, journal: str, epoch: JournalEpoch) -> None:
        self._epochs[journal] = epoch
        if self._loop is not None:
            self._loop.post(tx.SourceIdentified(journal, epoch))

    def _replay_guard(self, order: tx.StartReplay) -> OffsetGuard:
        """Return the guard of a range's second read: it must be of the journal that is read now."""
        return OffsetGuard(
            RememberedRead(order.journal, self._epochs.get(order.journal)),
            patience_seconds=self._head_patience_seconds,
        )

    async def _source(self, journal: str) -> MessageSource:
        """Return the reader of a journal: the application is asked once an attempt."""
        known = self._sources.get(journal)
        if known is None:
            spec = await self._spec(journal)
            message_type = await self._worker.run(self._ask_message_type, spec)
            known = MessageSource(
                self._journals,
                journal,
                spec=spec,
                message_type=message_type,
                options=self._batches,
            )
            self._sources[journal] = known
        return known

    async def _spec(self, journal: str) -> JournalSpec:
        """Return the spec of a journal, fetched once an attempt."""
        if journal not in self._specs:
            self._specs[journal] = (await self._journals.get(journal)).spec
        return self._specs[journal]

    def _ask_message_type(self, spec: JournalSpec) -> MessageType:
        try:
            return self._application.message_type(spec)
        except BaseException as error:  # e.g. sys.exit(): only this shard fails
            raise ApplicationError(self._shard.id, "message_type", error) from error
