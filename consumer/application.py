"""Contracts between the framework and user code: the application, its store, its shard.

    class Counter:                                   # an Application
        def new_store(self, shard): return JsonFileStore(shard, ...)
        def message_type(self, journal_spec): return JSON
        def consume_message(self, shard, store, envelope, publisher): store.state["n"] += 1
        def finalize_txn(self, shard, store, publisher): ...

Callbacks of one shard run one at a time on that shard's worker thread, in order, and may block. What a callback raises
fails the shard, which restarts with back-off from its last commit.

Source: gazette/core consumer/interfaces.go (the roles; names kept in Python spelling).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import grpc

from broadsheet.consumer.recoverylog.follower import StandbyFollower
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.batch import Envelope, MessageBatch, MessageType
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.op_future import OpFuture
from broadsheet.security.auth import Claims
from broadsheet.wire import journal_pb2, shard_pb2

RecordHeaders: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Headers of a record, in their order; a name may occur several times."""


class DeferToNextTxnError(Exception):
    """Raised by `consume_message` to leave this message, and those after it, to the next transaction.

    The first message of a transaction cannot be deferred. Raise this before the message has changed the store or
    published anything, because such effects stay in this transaction and happen again in the next.
    """


class Shard(Protocol):
    """The view that an application has of the shard it serves."""

    @property
    def id(self) -> str:
        """The shard's id."""
        ...

    @property
    def fqn(self) -> str:
        """Full etcd key of the shard's spec: unique among clusters that share a store."""
        ...

    @property
    def spec(self) -> shard_pb2.ShardSpec:
        """The shard's current spec; read-only."""
        ...

    @property
    def journals(self) -> JournalClient:
        """A journal client, for use on the event loop."""
        ...

    @property
    def local_state(self) -> LocalState | None:
        """Directory of an embedded store, and the recorder of its files; None without a recovery log.

        Created each time this process becomes the shard's primary, before `new_store`. Stores ask for it themselves.
        """
        ...

    def progress(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return (read_through, publish_at) of completed transactions, bytes by journal.

        `read_through` is how far sources were read. `publish_at` is where published messages end, including those of
        earlier processes.
        """
        ...


class Store(Protocol):
    """Keeps a shard's state and its checkpoint, and commits them atomically.

    All methods are called on the shard's worker thread. They may block.
    """

    def restore_checkpoint(self, shard: Shard) -> shard_pb2.Checkpoint:
        """Return the last committed checkpoint and fence every earlier holder of this shard.

        Once this has returned, no commit of an earlier holder may succeed. A holder may be asked again, after a commit
        that failed: state that it changed and did not commit is dropped.
        """
        ...

    def start_commit(
        self, shard: Shard, checkpoint: shard_pb2.Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Start to commit the state changed so far together with `checkpoint`, and return at once.

        Nothing becomes durable before every future in `wait_for` has succeeded; if one fails, the commit fails. State
        changed after this call belongs to the next commit. The future fails with `CommitFencedError` if a newer holder
        restored the checkpoint.
        """
        ...

    def destroy(self) -> None:
        """Roll back, close, and remove local files that a recovery log also holds. Idempotent."""
        ...


@runtime_checkable
class SegmentKeeper(Protocol):
    """Optional part of a store: stores checkpoints in segments, so that silent producers add nothing to a commit.

    `start_commit` is then given checkpoints that name some producers in segments
    (`broadsheet.journals.message.checkpoint`): it commits what `taken_out` returns, checkpoint and new contents
    together, and may drop contents that `segments_named` does not name. `restore_checkpoint` returns what
    `put_together` does. A store that is none is given whole checkpoints, which grow with the number of producers.
    """

    @property
    def keeps_segments(self) -> bool:
        """Report whether the store keeps segments; asked after `restore_checkpoint`."""
        ...


StoreT = TypeVar("StoreT", bound=Store)
ResultT = TypeVar("ResultT")
StoreT_contra = TypeVar("StoreT_contra", bound=Store, contravariant=True)


class Application(Protocol[StoreT]):
    """User code that consumes a shard's messages."""

    def new_store(self, shard: Shard) -> StoreT:
        """Return the shard's store; called once each time this process becomes the shard's primary.

        Also called, on any thread, for the copy that a standby serves to scans
        (`broadsheet.consumer.stores.state_tables.CopyReader`): cause no external side effects here.
        """
        ...

    def message_type(self, journal_spec: journal_pb2.JournalSpec) -> MessageType:
        """Return the encoding of a source journal's messages."""
        ...

    def consume_message(
        self, shard: Shard, store: StoreT, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Apply one committed message to the store; publish any resulting messages."""
        ...

    def finalize_txn(self, shard: Shard, store: StoreT, publisher: Publisher) -> None:
        """Finish the work of the transaction about to commit: flush caches, publish last messages."""
        ...


@runtime_checkable
class BatchConsumer(Protocol[StoreT_contra]):
    """Optional part of an application: consumes batches of messages instead of calling `consume_message`."""

    def consume_batch(
        self, shard: Shard, store: StoreT_contra, batch: MessageBatch, publisher: Publisher
    ) -> int | None:
        """Apply a run of committed messages. Return how many were consumed; None means all.

        The remaining messages go to the next transaction. At least one must be consumed.
        """
        ...


@runtime_checkable
class BeginFinisher(Protocol[StoreT_contra]):
    """Optional part of an application: callbacks at the beginning and end of a transaction."""

    def begin_txn(self, shard: Shard, store: StoreT_contra) -> None:
        """Called before the first message of a transaction; may block, e.g. on a semaphore."""
        ...

    def finished_txn(self, shard: Shard, store: StoreT_contra, commit: OpFuture) -> None:
        """Called once the transaction's commit has started; `commit` resolves when it is durable or has failed."""
        ...


@runtime_checkable
class SelfWaking(Protocol[StoreT_contra]):
    """Optional part of an application: has transactions that begin by time, though no message arrived."""

    def next_txn_after(self, shard: Shard, store: StoreT_contra) -> float | None:
        """Return after how many seconds a transaction should begin even if nothing is read; None: only with input.

        Called on the worker thread once the store is restored, and after each `finalize_txn`; the answer holds until
        the next transaction begins, whatever begins it. Such a transaction may consume nothing: `begin_txn` and
        `finalize_txn` are called, and it is committed.
        """
        ...


@runtime_checkable
class DividedByKey(Protocol):
    """Optional part of an application: several shards may divide the keys of the same sources among them.

    Such an application handles of each batch the rows whose keys the shard owns
    (`broadsheet.wire.key_range.key_range_of` of its labels, read when a transaction begins), and passes over the
    others: they are other shards' rows.
    """

    def why_indivisible(self) -> str:
        """Return why this application's shards must own all keys, as a sentence's end; empty if they need not."""
        ...


@runtime_checkable
class FollowingApplication(Protocol):
    """Optional part of an application: keeps something current on its standbys, which its store takes over.

    Without it, a store that needs more than its files, such as an index of them, makes that when it is opened.
    """

    def new_follower(self, shard: Shard, directory: Path) -> StandbyFollower:
        """Return what follows a standby's files; called on the event loop, and must not block it.

        The store that a promotion opens finds it in the shard's `local_state`, as does a store whose `open_copy` is
        called to read the standby.

        Args:
            shard: The shard; it has no `local_state` yet.
            directory: Of its files, where what is kept may be put beside them. It is removed with them.
        """
        ...


@runtime_checkable
class MessageProducer(Protocol[StoreT_contra]):
    """Optional part of an application: supplies messages that do not come from journals.

    Its methods run on the event loop, and must not block it. Messages are sequenced, consumed and committed like those
    of a journal; messages whose producer, clock and flags are 0 count as committed. Offsets increase within the name
    of a batch, and keep their meaning when the shard restarts.
    """

    def read_messages(
        self, shard: Shard, store: StoreT_contra, checkpoint: shard_pb2.Checkpoint
    ) -> AsyncIterator[MessageBatch]:
        """Yield batches from `checkpoint` on.

        When the iterator ends, its messages are committed, the checkpoint is restored, and this method is called
        again: after a pause if nothing was committed since. So it should not end between a producer's messages and
        their acknowledgement.

        A batch without messages that has `resumes` (`MessageBatch.note`) is committed by itself. The iterator may be
        `SettlingMessages`.
        """
        ...

    def replay_range(
        self, shard: Shard, store: StoreT_contra, *, journal: str, begin: int, end: int
    ) -> AsyncIterator[MessageBatch]:
        """Yield the messages of `journal` in [begin, end) again: all of them and no others.

        Called when a producer's transaction exceeds memory or began before the checkpoint.
        """
        ...

    def read_through(
        self, shard: Shard, store: StoreT_contra, offsets: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the offsets, by names of batches, that a Stat must wait for. The request may be of any kind."""
        ...


@runtime_checkable
class SettlingMessages(Protocol):
    """Optional part of the iterator that `read_messages` returns: settles where reading begins.

    The shard reports PRIMARY only then, so that messages written from that moment on are read, whatever `latest` means.
    """

    async def settle(self) -> bool:
        """Settle where reading begins, before the first batch is asked for.

        Returns:
            Whether the first batch is a note (`MessageBatch.note`), to be committed before the shard reports PRIMARY.
        """
        ...

    async def aclose(self) -> None:
        """End the reading."""
        ...


class Resolution(Protocol):
    """A shard's primary as of one etcd revision and, if it is this process, the live shard itself.

    Hold it as briefly as possible (`async with`), because a shard is not torn down while a resolution of it is held.
    """

    status: shard_pb2.Status.ValueType
    """OK, or why the shard cannot be served from here."""
    header: journal_pb2.Header
    """Who answers; `header.route` names all replicas."""
    spec: shard_pb2.ShardSpec | None
    shard: Shard | None
    """Set only if this process is the shard's ready primary."""

    async def call(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(store, *args)`, run on the shard's worker thread between batches.

        Requires:
            `shard` is set.

        Raises:
            ShardStoppedError: the shard stopped before the call could run.
        """
        ...

    async def read_through(self, offsets: Mapping[str, int]) -> None:
        """Wait until completed transactions have read through `offsets`, bytes by journal.

        Requires:
            `shard` is set.

        Raises:
            ShardStoppedError: the shard stopped before.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Resolver(Protocol):
    """Finds the process that serves a shard."""

    async def resolve(
        self,
        shard_id: str,
        *,
        claims: Claims,
        may_proxy: bool,
        proxy_header: journal_pb2.Header | None = None,
        read_through: Mapping[str, int] | None = None,
    ) -> Resolution:
        """Find the shard's primary, and if it is this process wait until it is ready and has read through.

        Args:
            shard_id: The shard sought.
            claims: Of the caller (`broadsheet.consumer.rpc.guard.claims_of`), also where the work has left its
                call;
                `Claims.process()` in what the process does for itself. A shard that they do not select is
                answered like one that does not exist.
            may_proxy: Answer OK without a shard if another process is the primary, so that the caller forwards.
            proxy_header: Header of the process that forwarded the request to us.
            read_through: Offsets that completed transactions must have read, bytes by journal.

        Raises:
            ResolverStoppedError: this process is shutting down.
            ProxyHeaderError: the request was forwarded to the wrong process or cluster.
            UnauthenticatedError: the claims have expired.
        """
        ...

    def shards_with_source(self, journal: str, *, claims: Claims) -> Sequence[shard_pb2.ShardSpec]:
        """Return the specs, by shard id, that have `journal` as a source and that `claims` select.

        Raises:
            UnauthenticatedError: the claims have expired.
        """
        ...

    def channel_to(self, header: journal_pb2.Header) -> grpc.aio.Channel:
        """Return the cached channel to the process named by `header.process_id`, for the single hop of a proxied
        request.
        """
        ...


class RecordConnection(Protocol):
    """A shard's way into another system, for one attempt to serve it."""

    @property
    def key(self) -> str:
        """Key of its intents in checkpoints; no journal's name."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes of the running transaction's records, encoded."""
        ...

    @property
    def is_full(self) -> bool:
        """Report whether the running transaction should take no more input."""
        ...

    def add(
        self,
        output: RecordOutput,
        message: Any,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Add a message to the running transaction; on the worker thread, where it may block."""
        ...

    def take_intent(self) -> bytes:
        """Return the intent of the transaction that closes; on the worker thread."""
        ...

    def start(self) -> None:
        """Begin to fence former attempts, in the background."""
        ...

    def settle(self, restored: bytes, store: Store) -> bytes:
        """Go on from a restored checkpoint's intent; return the one that is to be acknowledged."""
        ...

    def acknowledge(
        self, content: bytes, after: Future[object] | None, *, recovered: bool
    ) -> OpFuture:
        """Send the records of an intent, after its commit; if it was `recovered`, unless the system has them."""
        ...

    def renew(self) -> None:
        """Do what an idle shard must do now and then for the system not to forget it, in the background."""
        ...

    def close(self) -> None:
        """End what is under way. Idempotent."""
        ...


class RecordSystem(Protocol):
    """Another system that takes records, such as a Kafka cluster."""

    @property
    def key(self) -> str:
        """Key of its intents in checkpoints."""
        ...

    def open(self, shard: Shard, *, bytes_max: int, clock: Clock | None = None) -> RecordConnection:
        """Return the connection of one attempt to serve a shard; nothing is opened yet.

        Args:
            shard: Whose.
            bytes_max: Of a transaction's records.
            clock: Stamps records; None: the machine's.
        """
        ...


class EncodedRecord(NamedTuple):
    """A message as another system takes it."""

    value: bytes | None
    """None: it deletes what the key has, as a tombstone of Kafka's does."""
    key: bytes | None
    headers: RecordHeaders = ()


class RecordOutput(Protocol):
    """A destination of records in another system, such as a topic."""

    @property
    def topic(self) -> str:
        """Its name there."""
        ...

    @property
    def cluster(self) -> RecordSystem:
        """The system."""
        ...

    def record_of(self, message: Any, key: bytes | None) -> EncodedRecord:
        """Return the encoded message.

        Args:
            message: Of the application.
            key: Of the record; None: as the output makes it of the message.
        """
        ...


@runtime_checkable
class EncodesRecords(Protocol):
    """Optional part of a message type whose encoding needs headers, too, such as for the id of a schema."""

    def encode_record(self, message: Any) -> tuple[bytes, RecordHeaders]:
        """Return a message as the value, or the key, of a record, and headers that readers need with it.

        Raises:
            ValueError: the message cannot be encoded.
        """
        ...


@runtime_checkable
class RecordPublisher(Protocol):
    """Optional part of an application: sends records into other systems, such as topics of Kafka, exactly once.

    `publisher.publish_record` takes messages for these outputs. They are committed with the shard's state, and sent
    behind that commit in a transaction of the other system.
    """

    @property
    def record_outputs(self) -> Sequence[RecordOutput]:
        """All of them."""
        ...


@runtime_checkable
class ServiceRegistrar(Protocol):
    """Optional part of an application: registers its own gRPC services beside the Shard service."""

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Add servicers to the member's server; `resolver` finds the shard of each request."""
        ...
