"""Reads the sources of a shard into its transactions, and reads ranges of them again.

Source: gazette/core consumer/shard.go, consumer/transaction.go (startReadingMessages, replays).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import structlog

from allocator.runtime.backoff import Backoff
from allocator.runtime.task_group import TaskGroup
from consumer.application import Application, MessageProducer, Shard, Store
from consumer.core import transaction_events as tx
from consumer.core.checkpoint import start_offset
from consumer.errors import ApplicationError, ConsumerError
from consumer.journal.client import JournalClient
from consumer.message.batch import MessageBatch, MessageType
from consumer.message.reader import MessageSource
from consumer.protocol.journal_pb2 import JournalSpec
from consumer.protocol.shard_pb2 import Checkpoint
from consumer.shard.dead_letters import dead_letter_journal
from consumer.shard.transaction import TransactionLoop
from consumer.shard.worker import ShardWorker

_log = structlog.get_logger()

FRUITLESS_PAUSE_SECONDS_MAX = 1.0
"""Longest pause before an application that brings its messages is asked to go on from the same place again: it and the
store would spin."""


class Sources:
    """Where one attempt of a shard reads from."""

    def __init__(
        self,
        shard: Shard,
        # The store's type is between the application and itself.
        application: Application[Any],
        *,
        worker: ShardWorker,
        journals: JournalClient,
        on_read: Callable[[MessageBatch], None],
    ) -> None:
        """Bind the sources.

        Args:
            shard: Whose sources.
            application: Knows the message types, or brings the messages itself.
            worker: Runs the application's callbacks.
            journals: Reads.
            on_read: Told of each batch that is read for the first time.
        """
        self._shard = shard
        self._application = application
        self._store: Store | None = None
        self._worker = worker
        self._journals = journals
        self._on_read = on_read
        self._specs: dict[str, JournalSpec] = {}
        self._sources: dict[str, MessageSource] = {}
        self._pause = Backoff(max_seconds=FRUITLESS_PAUSE_SECONDS_MAX)
        self._restored: bytes | None = None
        """The checkpoint that an application was last asked to go on from."""

    async def prefetch(self) -> None:
        """Learn how to read the sources, before there is a store to read them for; what fails is asked again then."""
        if isinstance(self._application, MessageProducer):
            return
        for source in self._shard.spec.sources:
            try:
                await self._source(source.journal)
            except ConsumerError as error:
                _log.info("sources.not_prefetched", journal=source.journal, cause=str(error))

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
        for source in self._shard.spec.sources:
            offset = start_offset(checkpoint, source.journal, source.min_offset)
            batches = self._read(source.journal, offset=offset)
            group.start_soon(self._feed(loop, batches), name=f"read {source.journal}")

    def replay(self, order: tx.StartReplay) -> AsyncGenerator[MessageBatch, None]:
        """Return the batches of a range, once more."""
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
        return self._read(order.journal, offset=order.begin, end_offset=order.end)

    async def _feed_all(
        self, loop: TransactionLoop, batches: AsyncGenerator[MessageBatch, None], *, again: bool
    ) -> None:
        """Hand over all input there is; its end is that of the loop's. Pause before if this was tried in vain."""
        if again:
            await self._pause.sleep()
        else:
            self._pause.reset()
        await self._feed(loop, batches)
        loop.end_input()

    async def _feed(
        self, loop: TransactionLoop, batches: AsyncGenerator[MessageBatch, None]
    ) -> None:
        """Hand batches to the loop until they end, fail, or are not wanted any more."""
        try:
            async with aclosing(batches):
                async for batch in batches:
                    self._on_read(batch)
                    await loop.input.put(batch)
                    if loop.input.closed:
                        return
        except Exception as error:
            loop.end_input(error)

    async def _owned(
        self, operation: str, read: Callable[[], AsyncIterator[MessageBatch]]
    ) -> AsyncGenerator[MessageBatch, None]:
        """Yield from an application's iterator, close it when we are closed, and name what it raises."""
        try:
            batches = read()
            try:
                async for batch in batches:
                    yield batch
            finally:
                if isinstance(batches, AsyncGenerator):
                    await batches.aclose()
        except ConsumerError:
            raise
        except (Exception, SystemExit) as error:  # only this shard fails
            raise ApplicationError(self._shard.id, operation, error) from error

    async def _read(
        self, journal: str, *, offset: int, end_offset: int = 0
    ) -> AsyncGenerator[MessageBatch, None]:
        source = await self._source(journal)
        async with aclosing(source.batches(offset=offset, end_offset=end_offset)) as batches:
            async for batch in batches:
                yield batch

    async def _source(self, journal: str) -> MessageSource:
        """Return how to read a journal: the application is asked once an attempt."""
        known = self._sources.get(journal)
        if known is None:
            spec = await self._spec(journal)
            message_type = await self._worker.run(self._ask_message_type, spec)
            known = MessageSource(
                self._journals,
                journal,
                spec=spec,
                message_type=message_type,
                # Without a dead-letter journal, what is no message would vanish without a trace.
                read_around=bool(dead_letter_journal(self._shard.spec)),
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
