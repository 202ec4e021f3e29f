"""The making of a shard by a split: its replica follows the parent's log, and commits the fork.

    FOLLOWING   play the parent's log; nothing is asked of the parent
    HOLDING     near its end: the parent rests, and marks its log ─► play up to the mark ─► go on in our own log
                ─► one transaction in etcd: from then on the parent owns less, and we own the rest
    serving     open the store where it is

Whatever fails before the transaction is tried again: the parent goes on after a while. What failed behind the mark
begins with the parent's log once more.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.elastic.family import Ownership, is_fork
from broadsheet.consumer.elastic.flip import Flip, HeldKey, Prepared, flip_txn, progress_txn
from broadsheet.consumer.elastic.fork import (
    ForkHold,
    ForkPhase,
    ForkRecord,
    decode_fork,
    fork_key,
    mark_of,
)
from broadsheet.consumer.elastic.progress import split_progress
from broadsheet.consumer.errors import (
    AssignmentLostError,
    ShardNotFoundError,
    SplitDelayedError,
)
from broadsheet.consumer.recoverylog.hints import encode_hints
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.hint_keeper import HintKeeper
from broadsheet.consumer.shard.recovery import Recovery
from broadsheet.consumer.shard.replica_status import AssignedShard
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.errors import EndpointError, RpcFailedError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.elastic_pb2 import PrepareForkRequest
from broadsheet.wire.progress_pb2 import Progress
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

ATTEMPT_BYTES = 8
ASK_SECONDS = 30.0
"""Deadline of the request to the parent, which first finishes its transaction."""
MARK_SECONDS = 10.0
"""Longest wait for the mark, once the parent says that it is durable."""
BEHIND_SECONDS_MAX = 1.0
"""The parent is asked to rest only if no more than this is left to play."""
REST_SECONDS = 1.0
"""Pause between two attempts."""
REPORT_SECONDS = 1.0

_log = structlog.get_logger()


async def stored_spec(environment: ShardEnvironment, shard_id: str) -> tuple[ShardSpec, int]:
    """Return a spec as etcd has it, and the revision that wrote it.

    Raises:
        ShardNotFoundError: there is none.
    """
    found = (await environment.etcd.get_range(environment.keys.item(ItemId(shard_id)))).kvs
    if not found:
        raise ShardNotFoundError(shard_id)
    return ShardSpec.FromString(found[0].value), found[0].mod_revision


class Forking:
    """Makes one shard a fork, for one life of its replica."""

    def __init__(
        self,
        shard: AssignedShard,
        environment: ShardEnvironment,
        recovery: Recovery,
        parent: str,
    ) -> None:
        """Bind to a replica.

        Args:
            shard: The child.
            environment: The services and limits of this process.
            recovery: Plays the parent's log.
            parent: The parent's id.
        """
        self._shard = shard
        self._environment = environment
        self._recovery = recovery
        self._parent = parent
        self._phase = ForkPhase.FOLLOWING
        self._reason = ""

    @property
    def progress(self) -> Progress:
        """Progress of the split: bytes of the parent's log."""
        given = Ownership.of(self._shard.spec).owned
        record = ForkRecord(parent=self._parent, begin=given.begin, end=given.end)
        return split_progress(self._shard.id, self._told(record))

    async def commit(self) -> HintKeeper:
        """Make the fork; return what keeps the hints of our own log, which is ours from now on.

        Raises:
            AssignmentLostError: the split was cancelled.
            SplitDelayedError: the fork was not committed, and all is to be played again.
            ServiceError: a log or etcd cannot be used.
        """
        while True:
            await self.catch_up()
            attempt = self._environment.random_bytes(ATTEMPT_BYTES).hex()
            hold = ForkHold(child=self._shard.id, attempt=attempt)
            child, child_revision = await self._own_spec()
            # Before the parent rests: whatever can be done already makes its rest shorter.
            await self._recovery.open_own_log()
            self._recovery.end_at(mark_of(attempt))
            try:
                assignment = await self._ask(hold, child_revision)
            except (SplitDelayedError, EndpointError, RpcFailedError, TimeoutError) as error:
                self._phase, self._reason = ForkPhase.FOLLOWING, str(error)
                _log.info("split.delayed", shard=self._shard.id, cause=str(error))
                await asyncio.sleep(REST_SECONDS)
                continue
            keeper, hints = await self.own_log()
            parent, parent_revision = await stored_spec(self._environment, self._parent)
            await self.flip(
                Flip(
                    parent=parent,
                    parent_revision=parent_revision,
                    child=child,
                    child_revision=child_revision,
                    child_assignment=HeldKey.of(self._shard.assignment.kv),
                    prepared=Prepared(assignment=assignment, hold=hold),
                    hints=encode_hints(hints),
                )
            )
            return keeper

    async def report(self) -> None:
        """Write how far the split is, until cancelled."""
        while True:
            try:
                await self._report()
            except (EtcdError, DocumentError) as error:
                _log.info("split.not_reported", shard=self._shard.id, cause=str(error))
            await asyncio.sleep(REPORT_SECONDS)

    async def catch_up(self) -> None:
        """Wait until little is left to play, and what follows the played files has taken in nearly all.

        Raises:
            SplitDelayedError: playing is over, by a mark of an earlier attempt.
        """
        recovery = self._recovery
        async with TaskGroup() as group:
            waits = [
                group.start_soon(event.wait(), name=f"fork {self._shard.id}")
                for event in (recovery.tailing, recovery.ended)
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            group.stop()
        while not recovery.ended.is_set():
            behind = recovery.progress.behind_seconds
            if behind is not None and behind <= BEHIND_SECONDS_MAX and await self._has_followed():
                return
            await asyncio.sleep(0.1)
        if recovery.failure is not None:
            raise recovery.failure
        raise SplitDelayedError(
            f"the parent {self._parent} went on before the fork was committed; its log is played once more"
        )

    async def _has_followed(self) -> bool:
        """Wait for the follower; tell whether it was so quick that little can have come meanwhile.

        What it lacks, the store makes while the parent rests: of all rows, if there was no index yet.
        """
        recovery = self._recovery
        if recovery.follower is None:
            return True
        clock = self._environment.clock
        began = clock.monotonic_seconds()
        if await recovery.follow_through() is None:
            # It failed, and the store is to make all; or nothing was shown to it yet, or playing is over.
            return recovery.is_followed
        return clock.monotonic_seconds() - began <= BEHIND_SECONDS_MAX

    async def _own_spec(self) -> tuple[ShardSpec, int]:
        try:
            child, revision = await stored_spec(self._environment, self._shard.id)
        except ShardNotFoundError as error:
            # A cancelled split deletes its spec; that our assignment is gone too, the mirror shows a moment later.
            raise AssignmentLostError(
                f"shard {self._shard.id} was deleted: its split was cancelled"
            ) from error
        if not is_fork(child):
            raise SplitDelayedError(
                f"shard {self._shard.id} was committed before; it is recovered from its hints"
            )
        return child, revision

    async def _ask(self, hold: ForkHold, child_revision: int) -> HeldKey:
        self._phase, self._reason = ForkPhase.HOLDING, ""
        caller = self._environment.parents
        if caller is None:
            raise SplitDelayedError("this process cannot reach other members")
        rest = await caller.prepare(
            PrepareForkRequest(
                parent=self._parent,
                child=hold.child,
                attempt=hold.attempt,
                child_revision=child_revision,
            ),
            timeout_seconds=ASK_SECONDS,
        )
        return rest.assignment

    async def own_log(self) -> tuple[HintKeeper, FSMHints]:
        """Play up to the mark, and go on in our own log.

        Raises:
            SplitDelayedError: it takes too long.
        """
        try:
            async with asyncio.timeout(MARK_SECONDS):
                return await self._recovery.fork()
        except TimeoutError as error:
            raise SplitDelayedError(
                f"the mark of {self._parent} was not played within {MARK_SECONDS:g} s"
            ) from error

    async def flip(self, flip: Flip) -> None:
        """Commit the fork in etcd, and wait until the mirror shows it.

        Raises:
            SplitDelayedError: something that it relies on has changed; nothing was written.
            EtcdUnavailableError: nothing is known of the outcome.
        """
        keys = self._environment.keys
        given = Ownership.of(flip.child).owned
        owned = Ownership.of(flip.parent).owned
        if not (owned.begin < given.begin and owned.end == given.end):
            raise SplitDelayedError(
                f"shard {self._parent} owns {owned} now, of which {given} is not the end: cancel the split"
            )
        checkpoint = flip_txn(flip, keys)
        result = await self._environment.etcd.txn(checkpoint.compares, checkpoint.operations)
        if not result.succeeded:
            raise SplitDelayedError(
                f"the fork of {self._parent} was not committed: it went on, or it, its primary or this shard changed"
            )
        _log.info("split.committed", shard=self._shard.id, parent=self._parent, owned=str(given))
        # Until the mirror shows it, our spec is still a fork's.
        await self._environment.key_space.read_back(result.header.revision)

    async def _report(self) -> None:
        kv = await self._record()
        if kv is None:
            return
        record = decode_fork(kv.value)
        after = self._told(record)
        # A flip has another phase, which the child's replica does not take back.
        if after == record or record.phase is ForkPhase.PURGING:
            return
        checkpoint = progress_txn(
            self._environment.keys,
            self._shard.id,
            kv,
            after,
            HeldKey.of(self._shard.assignment.kv),
        )
        await self._environment.etcd.txn(checkpoint.compares, checkpoint.operations)

    def _told(self, record: ForkRecord) -> ForkRecord:
        """Return a record with what is known here."""
        progress = self._recovery.progress
        return msgspec.structs.replace(
            record,
            phase=self._phase,
            reason=self._reason,
            done_bytes=progress.played_bytes,
            behind_bytes=progress.behind_bytes,
            bytes_per_second=progress.bytes_per_second,
        )

    async def _record(self) -> KeyValue | None:
        key = fork_key(self._environment.keys.root, self._shard.id)
        return next(iter((await self._environment.etcd.get_range(key)).kvs), None)
