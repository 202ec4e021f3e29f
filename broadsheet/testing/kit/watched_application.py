"""An application as the cluster of a test runs it: every step is told, and a step may be its last.

The application and its stores are the user's own objects, so that `isinstance` and queries find what they expect: the
wrapper passes the runtime's calls on to the application, and replaces three methods of each store *object*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from broadsheet.consumer.application import (
    Application,
    BatchConsumer,
    BeginFinisher,
    DividedByKey,
    FollowingApplication,
    MessageProducer,
    RecordPublisher,
    SelfWaking,
    ServiceRegistrar,
    Shard,
    Store,
)
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.batch import Envelope, MessageBatch, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.pipelining import TurnFuture
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.op_future import OpFuture, failed
from broadsheet.testing.kit.errors import InjectedFaultError
from broadsheet.testing.kit.steps import Step
from broadsheet.testing.kit.switchboard import CommitFault
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import Checkpoint


class KilledError(BaseException):
    """Unwinds the call in which a process is killed; no `except Exception` of an application may catch it."""


class Watcher(Protocol):
    """Told what an application does, on whatever thread."""

    def on_step(self, step: Step, shard: str, detail: str = "") -> None:
        """Note a step.

        Raises:
            KilledError: the process ends here.
        """
        ...

    def on_intents(self, shard: str, intents: dict[str, bytes]) -> None:
        """Note the acknowledgements of a transaction whose commit starts, by journal."""
        ...

    def require_journal(self, mapped: MappedJournal) -> None:
        """Make a journal that the application publishes to, if the cluster makes journals as they are needed."""
        ...

    def commit_fault(self, shard: str) -> CommitFault:
        """Return the fault of the commit that starts now, if any."""
        ...

    def watch_journals(self, journals: JournalClient) -> None:
        """Be told of each append of this client."""
        ...

    def begin_commit(self, shard: str, wait_for: Collection[Future[object]]) -> Callable[[], None]:
        """Note that a commit is under way; return what to call when it has ended."""
        ...


class WatchedApplication:
    """Implements `Application`, and of its optional parts those that the user's application has."""

    def __init__(self, application: Application[Any], watcher: Watcher) -> None:
        """Wrap an application.

        Args:
            application: The user's, of one process.
            watcher: Told of every step.
        """
        self._application = application
        self._watcher = watcher
        self.stores: list[Store] = []
        """Those that it has made, oldest first."""
        # The runtime asks an instance which optional parts it has.
        if isinstance(application, BatchConsumer):
            self.consume_batch = self._consume_batch
        if isinstance(application, BeginFinisher):
            self.begin_txn = application.begin_txn
            self.finished_txn = application.finished_txn
        if isinstance(application, SelfWaking):
            self.next_txn_after = application.next_txn_after
        if isinstance(application, DividedByKey):
            self.why_indivisible = application.why_indivisible
        if isinstance(application, FollowingApplication):
            self.new_follower = application.new_follower
        if isinstance(application, MessageProducer):
            self.read_messages = application.read_messages
            self.replay_range = application.replay_range
            self.read_through = application.read_through
        if isinstance(application, RecordPublisher):
            self.record_outputs = application.record_outputs
        if isinstance(application, ServiceRegistrar):
            self.register_services = application.register_services

    def new_store(self, shard: Shard) -> Store:
        """Return the application's store, whose commits and restores are told."""
        self._watcher.watch_journals(shard.journals)
        store: Store = self._application.new_store(shard)
        self.stores.append(store)
        _watch_store(store, self._watcher)
        return store

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the application's."""
        return self._application.message_type(journal_spec)

    def consume_message(
        self, shard: Shard, store: Any, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Pass one message on."""
        watched = _making(publisher, self._watcher)
        self._application.consume_message(shard, store, envelope, watched)
        self._watcher.on_step(Step.CONSUMED, shard.id)

    def _consume_batch(
        self, shard: Shard, store: Any, batch: MessageBatch, publisher: Publisher
    ) -> int | None:
        application = self._application
        assert isinstance(application, BatchConsumer), "only then is this method asked for"
        watched = _making(publisher, self._watcher)
        consumed: int | None = application.consume_batch(shard, store, batch, watched)
        self._watcher.on_step(Step.CONSUMED, shard.id)
        return consumed

    def finalize_txn(self, shard: Shard, store: Any, publisher: Publisher) -> None:
        """Pass the end of a transaction on."""
        self._application.finalize_txn(shard, store, _making(publisher, self._watcher))
        self._watcher.on_step(Step.FINALIZED, shard.id)


def _watch_store(store: Store, watcher: Watcher) -> None:
    try:
        methods = vars(store)
    except TypeError:
        raise ValidationError(
            "new_store",
            f"the test kit watches stores by attributes of the object, and {type(store).__name__} has __slots__: give "
            "its class a __dict__",
        ) from None
    methods["restore_checkpoint"] = partial(_restore, store.restore_checkpoint, watcher)
    methods["start_commit"] = partial(_start_commit, store.start_commit, watcher)


def _restore(restore: Callable[[Shard], Checkpoint], watcher: Watcher, shard: Shard) -> Checkpoint:
    checkpoint = restore(shard)
    # They are written again.
    watcher.on_intents(shard.id, dict(checkpoint.ack_intents))
    watcher.on_step(Step.RESTORED, shard.id)
    return checkpoint


StartCommit = Callable[[Shard, Checkpoint, Collection[Future[object]]], OpFuture]


def _start_commit(
    start: StartCommit,
    watcher: Watcher,
    shard: Shard,
    checkpoint: Checkpoint,
    wait_for: Collection[Future[object]],
) -> OpFuture:
    watcher.on_intents(shard.id, dict(checkpoint.ack_intents))
    fault = watcher.commit_fault(shard.id)
    if fault == "fail":
        return failed(InjectedFaultError(shard.fqn, "the test failed this commit"))
    ended = watcher.begin_commit(shard.id, wait_for)
    try:
        commit = start(shard, checkpoint, wait_for)
    except BaseException:
        ended()
        raise
    told = _Told(commit, watcher, shard, ended)
    if fault == "lose answer":
        told.loses_answer = True
    try:
        watcher.on_step(Step.COMMIT_SENT, shard.id)
    finally:
        commit.add_done_callback(told.on_done)
    return told.future


class _Told:
    """A commit of the store, and the future that the runtime gets of it."""

    def __init__(
        self, commit: OpFuture, watcher: Watcher, shard: Shard, ended: Callable[[], None]
    ) -> None:
        self.loses_answer = False
        self._watcher = watcher
        self._shard = shard
        self._ended = ended
        # A store's own thread has no context: what it posts must belong to our process.
        self._context = copy_context()
        self.future: OpFuture
        if isinstance(commit, TurnFuture):
            turned: TurnFuture[None] = TurnFuture()
            commit.when_sent(turned.sent)
            self.future = turned
        else:
            self.future = Future()
        self.future.set_running_or_notify_cancel()

    def on_done(self, commit: OpFuture) -> None:
        try:
            self._context.run(self._pass_on, commit)
        finally:
            self._ended()

    def _pass_on(self, commit: OpFuture) -> None:
        error = commit.exception() if not commit.cancelled() else _cancelled(self._shard)
        if error is not None:
            self.future.set_exception(error)
            return
        try:
            self._watcher.on_step(Step.COMMITTED, self._shard.id)
        except KilledError:
            return
        if self.loses_answer:
            lost = "the test lost the answer to this commit, which is durable"
            self.future.set_exception(InjectedFaultError(self._shard.fqn, lost))
        else:
            self.future.set_result(None)


def _cancelled(shard: Shard) -> BaseException:
    return ValidationError("start_commit", f"the commit of shard {shard.id} was cancelled")


class _MakingPublisher(Publisher):
    """A publisher whose journals are made before it publishes to them; everything else is the publisher's own."""

    def __init__(self, publisher: Publisher, watcher: Watcher) -> None:
        self._inner = publisher
        self._watcher = watcher

    def publish_uncommitted(self, mapping: Any, message: Any, message_type: MessageType) -> None:
        """Publish a message that becomes visible when the current transaction commits."""
        self._inner.publish_uncommitted(partial(self._map, mapping), message, message_type)

    def publish_committed(self, mapping: Any, message: Any, message_type: MessageType) -> None:
        """Publish a message that is visible as soon as it is appended."""
        self._inner.publish_committed(partial(self._map, mapping), message, message_type)

    def publish_batch(self, mapping: Any, rows: Any, message_type: MessageType) -> None:
        """Publish rows of columns."""
        if isinstance(mapping, MappedJournal):
            self._watcher.require_journal(mapping)
        self._inner.publish_batch(mapping, rows, message_type)

    def _map(self, mapping: Any, message: Any) -> MappedJournal:
        mapped: MappedJournal = mapping if isinstance(mapping, MappedJournal) else mapping(message)
        self._watcher.require_journal(mapped)
        return mapped

    def __getattribute__(self, name: str) -> Any:
        if name in _OURS or name.startswith("__"):
            return super().__getattribute__(name)
        return getattr(super().__getattribute__("_inner"), name)


_OURS = frozenset(
    {"_inner", "_map", "_watcher", "publish_batch", "publish_committed", "publish_uncommitted"}
)


def _making(publisher: Publisher, watcher: Watcher) -> Publisher:
    return _MakingPublisher(publisher, watcher)
