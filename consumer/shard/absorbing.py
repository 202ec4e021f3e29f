"""The taking over of another shard's keys by a primary: the survivor of a merge.

    COPYING    play the other's log into a directory of our own, and take its rows into our store, step by step
    HOLDING    near its end: our input ends where it is ─► the other reads on to there, rests and marks its log
               ─► we read on to where it stands ─► play up to the mark, take in the last rows, commit
               ─► one transaction in etcd: from then on we own the keys of both, and the other is no more
    serving    input goes on

Until that transaction the rows are of keys that we do not own. Whatever fails before it is tried again, and rows that
are here already are only compared. Our input goes on once it is decided whose the keys are: the other's hold in etcd
decides, never the clock. A life that cannot tell ends, and the next one deletes the hold before it reads anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.application import FollowingApplication
from broadsheet.consumer.elastic.family import absorbed_by
from broadsheet.consumer.elastic.flip import (
    HeldKey,
    MergeFlip,
    Prepared,
    Rest,
    forget_txn,
    merge_flip_txn,
    merge_progress_txn,
)
from broadsheet.consumer.elastic.fork import ForkHold, encode_hold, mark_of
from broadsheet.consumer.elastic.merge import MergePhase, MergeRecord, decode_merge, merge_key
from broadsheet.consumer.elastic.progress import merge_progress
from broadsheet.consumer.errors import AssignmentLostError, ShardStoppedError, SplitDelayedError
from broadsheet.consumer.recoverylog.follower import StandbyFollower
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.forking import (
    ATTEMPT_BYTES,
    BEHIND_SECONDS_MAX,
    MARK_SECONDS,
    REPORT_SECONDS,
    REST_SECONDS,
    stored_spec,
)
from broadsheet.consumer.shard.holding import RestingTransactions, release_hold, see_spec
from broadsheet.consumer.shard.recovery import Recovery
from broadsheet.consumer.shard.replica_status import AssignedShard
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.elastic_pb2 import PrepareForkRequest
from broadsheet.wire.key_range import KeyRange, key_range_of
from broadsheet.wire.progress_pb2 import Progress
from broadsheet.wire.shard_pb2 import ShardSpec

ASK_SECONDS = 5.0
"""Deadline of the request to the other shard: our own input waits for the answer."""
LOOK_SECONDS = 0.05
"""How often it is looked whether rows are left to take in."""

_RATE_WEIGHT = 0.3

_log = structlog.get_logger()


class TakenRows(Protocol):
    """Another shard's rows on their way into a store."""

    refusal: str
    """Why they cannot be taken in, if they cannot."""
    taken_rows: int
    """That were looked at."""

    @property
    def is_near(self) -> bool:
        """Report whether so little is left that the other shard may rest for it."""
        ...

    def left_rows(self) -> int:
        """Return about how many rows are left; negative: unknown."""
        ...

    def are_all_taken(self) -> bool:
        """Report whether all are taken in, by the running transaction or before."""
        ...

    def finish(self) -> None:
        """Have the next transaction take in all that is left: the other shard rests, and all of its log is followed."""
        ...


@runtime_checkable
class AbsorbingStore(Protocol):
    """A store that takes in the rows of another shard's keys, a part with each transaction."""

    def absorb(self, follower: Any, given: KeyRange) -> TakenRows:
        """Begin to; on the worker thread.

        Args:
            follower: The application's follower of that shard's files.
            given: Its groups.
        """
        ...

    def stop_absorbing(self) -> None:
        """Take in no more, and remove in time the rows of keys that are not owned by then. Idempotent."""
        ...


@runtime_checkable
class EndingFollower(Protocol):
    """A follower that can be brought to the end of files that grow no more."""

    def follow_to_end(self, files: Path) -> None:
        """Take in the rest, once playing is over; may take long."""
        ...


class AbsorbingTransactions(RestingTransactions, Protocol):
    """The transactions of an attempt, as far as they take in and go on."""

    def wake(self) -> None:
        """Have a transaction begin soon, though nothing may be read."""
        ...

    async def inherit_rollbacks(self, shard_id: str) -> None:
        """Roll back later what former producers of an absorbed shard left.

        Raises:
            AssignmentLostError: the shard is no longer ours.
            ServiceError: a journal cannot be read.
        """
        ...


class Absorbing:
    """Takes over the keys of another shard, if the spec says so. `run` it beside the transactions."""

    def __init__(
        self,
        shard: AssignedShard,
        environment: ShardEnvironment,
        transactions: AbsorbingTransactions,
    ) -> None:
        """Bind to an attempt.

        Args:
            shard: The survivor.
            environment: The services and limits of this process.
            transactions: Of the attempt.
        """
        self._shard = shard
        self._environment = environment
        self._transactions = transactions
        self._changed = asyncio.Event()
        self._phase = MergePhase.COPYING
        self._reason = ""
        self._rows: TakenRows | None = None
        self._rate = 0.0
        """Rows taken in a second, smoothed."""

    @property
    def progress(self) -> Progress | None:
        """Progress of the merge, rows of the other shard; None: none is under way."""
        absorbed = absorbed_by(self._shard.spec)
        if self._rows is None or not absorbed:
            return None
        return merge_progress(
            self._shard.id, self._told(MergeRecord(absorbed=absorbed, begin=0, end=0))
        )

    def on_spec_changed(self) -> None:
        """Look whether a merge was begun, cancelled or committed."""
        self._changed.set()

    async def forget_former(self) -> None:
        """End what a former attempt began, before anything is delivered: no flip of its can succeed any more.

        Raises:
            AssignmentLostError: we are not the primary any more.
        """
        absorbed = absorbed_by(self._shard.spec)
        if not absorbed:
            return
        keys, assignment = self._environment.keys, HeldKey.of(self._shard.assignment.kv)
        checkpoint = forget_txn(keys, self._shard.id, absorbed, assignment)
        backoff = Backoff()
        while True:
            try:
                result = await self._environment.etcd.txn(
                    checkpoint.compares, checkpoint.operations
                )
            except EtcdError as error:
                _log.warning("merge.forget_waits", shard=self._shard.id, error=str(error))
                await backoff.sleep()
                continue
            if not result.succeeded:
                raise AssignmentLostError(f"shard {self._shard.id} has another primary")
            await see_spec(self._environment, self._shard)
            return

    async def run(self, store: object) -> None:
        """Absorb whenever the spec says so, until cancelled.

        Raises:
            AssignmentLostError: the shard is gone.
        """
        async with TaskGroup() as group:
            while True:
                self._changed.clear()
                absorbed, before = absorbed_by(self._shard.spec), self._owned()
                if not absorbed:
                    await self._changed.wait()
                    continue
                try:
                    await self._absorb(store, absorbed)
                except (AssignmentLostError, ShardStoppedError):
                    raise
                # Whatever it is, such as a log that cannot be read: our own keys are served all the same.
                except Exception as error:
                    self._phase, self._reason = MergePhase.COPYING, str(error)
                    _log.info("merge.delayed", shard=self._shard.id, cause=str(error))
                    await self._tell_once()
                    await asyncio.sleep(REST_SECONDS)
                # Also behind an error: the answer to the flip may have been lost.
                if self._owned() != before:
                    group.start_soon(self._inherit(absorbed), name=f"inherit {absorbed}")

    def _owned(self) -> KeyRange:
        return key_range_of(self._shard.spec.labels)

    async def _inherit(self, absorbed: str) -> None:
        """Have rolled back what former producers of a shard left, which is ours now; for as long as it takes."""
        backoff = Backoff()
        while True:
            try:
                await self._transactions.inherit_rollbacks(absorbed)
            except AssignmentLostError:
                raise
            except (ServiceError, EtcdError) as error:
                _log.warning("rollbacks.not_inherited", shard=absorbed, cause=str(error))
                await backoff.sleep()
            else:
                return

    async def _absorb(self, store: object, absorbed: str) -> None:
        """Follow the other shard until the merge is committed or cancelled, or something fails."""
        if not isinstance(store, AbsorbingStore):
            raise SplitDelayedError(f"a {type(store).__name__} takes in no rows of another shard")
        other, _ = await stored_spec(self._environment, absorbed)
        recovery = Recovery(
            self._shard.spec,
            lambda: self._shard.assignment,
            self._environment,
            self._new_follower,
            parent=other,
        )
        try:
            async with TaskGroup() as group:
                recovery.start(group)
                group.start_soon(self._report(), name=f"report merge {self._shard.id}")
                await self._take_over(store, recovery, other)
                group.stop()
        finally:
            self._rows = None
            # Unless the attempt ends, which no store outlives.
            with suppress(ShardStoppedError):
                await self._transactions.on_worker(store.stop_absorbing)
                # Rows of keys that are not ours go with transactions, also if nothing is read.
                self._transactions.wake()
            await recovery.discard()

    def _new_follower(self, directory: Path) -> StandbyFollower | None:
        application = self._environment.application
        if not isinstance(application, FollowingApplication):
            return None
        return application.new_follower(self._shard, directory)

    async def _take_over(self, store: AbsorbingStore, recovery: Recovery, other: ShardSpec) -> None:
        self._phase, self._reason = MergePhase.COPYING, ""
        given = key_range_of(other.labels)
        rows = self._rows = await self._transactions.on_worker(
            store.absorb, recovery.follower, given
        )
        while absorbed_by(self._shard.spec) == other.id:
            await self.copy(rows, recovery)
            try:
                await self._hold(store, rows, recovery, other.id)
            except SplitDelayedError as error:
                if recovery.ended.is_set():
                    raise
                self._phase, self._reason = MergePhase.COPYING, str(error)
                _log.info("merge.delayed", shard=self._shard.id, cause=str(error))
                await asyncio.sleep(REST_SECONDS)

    async def copy(self, rows: TakenRows, recovery: Recovery) -> None:
        """Wait until nearly all rows are taken in, and the other's log is followed to within a moment.

        Raises:
            SplitDelayedError: they cannot be.
        """
        while True:
            if recovery.ended.is_set():
                if recovery.failure is not None:
                    raise recovery.failure
                raise SplitDelayedError(
                    "the other shard went on before the merge was committed; its log is played once more"
                )
            if not absorbed_by(self._shard.spec):
                raise SplitDelayedError("the merge was cancelled")
            if rows.refusal:
                raise SplitDelayedError(rows.refusal)
            behind = recovery.progress.behind_seconds
            is_current = behind is not None and behind <= BEHIND_SECONDS_MAX
            if recovery.tailing.is_set() and is_current and rows.is_near:
                await recovery.follow_through()
                if rows.is_near:
                    return
            self._transactions.wake()
            await asyncio.sleep(LOOK_SECONDS)

    async def _hold(
        self, store: AbsorbingStore, rows: TakenRows, recovery: Recovery, absorbed: str
    ) -> None:
        """Have both shards stand at one place, commit the merge, and go on; with the same keys if that fails."""
        await self._transactions.standstill.acquire()
        self._phase, self._reason = MergePhase.HOLDING, ""
        attempt = self._environment.random_bytes(ATTEMPT_BYTES).hex()
        hold = ForkHold(child=self._shard.id, attempt=attempt)
        failure: Exception | None = None
        try:
            await self._attempt(rows, recovery, absorbed, hold)
        # A cancellation is none: then the attempt ends, and nothing may be read before the next one has decided.
        except Exception as error:
            failure = error
        if failure is None:
            await self._transactions.on_worker(store.stop_absorbing)
        else:
            # No flip of this attempt can succeed behind it, whatever became of our request.
            await release_hold(self._environment, absorbed, encode_hold(hold))
            await see_spec(self._environment, self._shard)
        self._transactions.unbound()
        self._transactions.go_on()
        self._transactions.standstill.release()
        if failure is not None:
            raise failure

    async def _attempt(
        self, rows: TakenRows, recovery: Recovery, absorbed: str, hold: ForkHold
    ) -> None:
        survivor, revision = await stored_spec(self._environment, self._shard.id)
        if absorbed_by(survivor) != absorbed:
            raise SplitDelayedError("the merge was cancelled")
        rest = await self.stand(absorbed, hold, recovery, revision)
        await self.take_last(rows, recovery, hold)
        other, other_revision = await stored_spec(self._environment, absorbed)
        await self.flip(
            MergeFlip(
                survivor=survivor,
                survivor_revision=revision,
                survivor_assignment=HeldKey.of(self._shard.assignment.kv),
                absorbed=other,
                absorbed_revision=other_revision,
                prepared=Prepared(assignment=rest.assignment, hold=hold),
            )
        )

    async def stand(self, absorbed: str, hold: ForkHold, recovery: Recovery, revision: int) -> Rest:
        """End our input where the other shard's ends, and have that one rest.

        Raises:
            SplitDelayedError: it does not rest now, or either does not get there in time.
        """
        caller = self._environment.parents
        if caller is None:
            raise SplitDelayedError("this process cannot reach other members")
        through = await self._reach({})
        recovery.end_at(mark_of(hold.attempt))
        rest = await caller.prepare(
            PrepareForkRequest(
                parent=absorbed,
                child=hold.child,
                attempt=hold.attempt,
                child_revision=revision,
                read_through=through,
            ),
            timeout_seconds=ASK_SECONDS,
        )
        if await self._reach(rest.read_through) != rest.read_through:
            raise SplitDelayedError(f"shards {self._shard.id} and {absorbed} stand apart")
        return rest

    async def _reach(self, through: Mapping[str, int]) -> Mapping[str, int]:
        """Read on to where input is to end, or end it where it is; return where that is."""
        bound = self._transactions.bound(through)
        try:
            async with asyncio.timeout(MARK_SECONDS):
                await bound.reached.wait()
        except TimeoutError as error:
            raise SplitDelayedError(
                f"shard {self._shard.id} did not handle its input within {MARK_SECONDS:g} s"
            ) from error
        return dict(bound.through)

    async def take_last(self, rows: TakenRows, recovery: Recovery, hold: ForkHold) -> None:
        """Take in what the other shard committed before its mark, and make it durable with our own state.

        Raises:
            SplitDelayedError: it takes too long, or the rows cannot be read.
        """
        try:
            async with asyncio.timeout(MARK_SECONDS):
                files = await recovery.marked()
                await asyncio.to_thread(_ending(recovery.follower).follow_to_end, files)
                rows.finish()
                while not rows.are_all_taken():
                    if rows.refusal:
                        raise SplitDelayedError(rows.refusal)
                    self._transactions.wake()
                    await asyncio.sleep(0.002)
                await self._transactions.rest().wait()
        except TimeoutError as error:
            raise SplitDelayedError(
                f"the last rows were not taken in within {MARK_SECONDS:g} s"
            ) from error
        _log.info("merge.rows_taken_in", shard=self._shard.id, attempt=hold.attempt)

    async def flip(self, flip: MergeFlip) -> None:
        """Commit the merge in etcd, and wait until the mirror shows it.

        Raises:
            SplitDelayedError: something that it relies on has changed; nothing was written.
            EtcdUnavailableError: nothing is known of the outcome.
        """
        checkpoint = merge_flip_txn(flip, self._environment.keys)
        result = await self._environment.etcd.txn(checkpoint.compares, checkpoint.operations)
        if not result.succeeded:
            raise SplitDelayedError(
                f"the merge with {flip.absorbed.id} was not committed: it went on, or it, its primary or this shard "
                "changed"
            )
        _log.info("merge.committed", shard=self._shard.id, absorbed=flip.absorbed.id)
        await self._environment.key_space.read_back(result.header.revision)

    # -- how far it is

    async def _report(self) -> None:
        before = 0
        while True:
            await self._tell_once()
            await asyncio.sleep(REPORT_SECONDS)
            taken = 0 if self._rows is None else self._rows.taken_rows
            now = max(0, taken - before) / REPORT_SECONDS
            before, self._rate = taken, self._rate + _RATE_WEIGHT * (now - self._rate)

    async def _tell_once(self) -> None:
        try:
            await self._tell()
        except (EtcdError, DocumentError) as error:
            _log.info("merge.not_reported", shard=self._shard.id, cause=str(error))

    async def _tell(self) -> None:
        kv = await self._record()
        if kv is None:
            return
        record = decode_merge(kv.value)
        after = self._told(record)
        if after == record:
            return
        checkpoint = merge_progress_txn(
            self._shard.id, kv, after, HeldKey.of(self._shard.assignment.kv)
        )
        await self._environment.etcd.txn(checkpoint.compares, checkpoint.operations)

    def _told(self, record: MergeRecord) -> MergeRecord:
        """Return a record with what is known here."""
        rows = self._rows
        return msgspec.structs.replace(
            record,
            phase=self._phase,
            reason=self._reason,
            done_rows=record.done_rows if rows is None else rows.taken_rows,
            left_rows=record.left_rows if rows is None else rows.left_rows(),
            rate=round(self._rate, 1),
        )

    async def _record(self) -> KeyValue | None:
        key = merge_key(self._environment.keys.root, self._shard.id)
        return next(iter((await self._environment.etcd.get_range(key)).kvs), None)


def _ending(follower: object) -> EndingFollower:
    """Return a follower as one that can be brought to the end.

    Raises:
        SplitDelayedError: it is none.
    """
    if isinstance(follower, EndingFollower):
        return follower
    raise SplitDelayedError("the application keeps no index that can be followed to its end")
