"""Writes a replica's status to its assignment's key in etcd, and waits until the key space shows it.

The write holds only if the key is as it was last observed, and keeps the member's lease; if someone else changed the
key in between (the allocator promotes, or we wrote before), it is tried again once the watch has caught up.

Source: gazette/core consumer/shard.go (updateStatusWithRetry).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol, TypeAlias

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.model import Assignment
from broadsheet.allocator.ops import Compare, Get, KeyValue, Put
from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import AssignmentLostError
from broadsheet.consumer.shard.environment import RevisionWaiter
from broadsheet.consumer.shard.metrics import ShardMetrics
from broadsheet.runtime.backoff import Backoff
from broadsheet.wire.shard_pb2 import ReplicaStatus

_log = structlog.get_logger()

ERROR_LENGTH_MAX = 2048
"""Code points of one error: the key space holds every status of every replica in each member's memory."""
TRUNCATED = " ...[truncated]"
ERRORS_MAX = 8
"""Errors kept in one status, newest first, for the same reason."""


def truncated(text: str) -> str:
    """Return `text`, cut and marked if it is too long for a status; a message takes what UTF-8 can encode."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= ERROR_LENGTH_MAX else text[:ERROR_LENGTH_MAX] + TRUNCATED


def failed_status(errors: Iterable[str]) -> ReplicaStatus:
    """Return a FAILED status with its errors, each cut to length."""
    return ReplicaStatus(
        code=ReplicaStatus.FAILED, errors=[truncated(error) for error in errors][:ERRORS_MAX]
    )


def reduced(existing: ReplicaStatus, new: ReplicaStatus) -> ReplicaStatus:
    """Return the combination of two statuses: the higher code, and the new errors before the existing ones.

    A late STANDBY therefore never hides a PRIMARY, and a promotion that carries a status over never loses it.

    Source: gazette/core consumer/shard.go (updateStatus), consumer/protocol (Reduce).
    """
    errors = list(dict.fromkeys((*new.errors, *existing.errors)))[:ERRORS_MAX]
    return ReplicaStatus(code=max(existing.code, new.code), errors=errors)


class ReplicaStatusWriter:
    """Writes the status of one assignment."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: RevisionWaiter,
        assignment: Callable[[], Assignment],
        *,
        random: Random,
    ) -> None:
        """Create a writer.

        Args:
            etcd: Where the assignment is.
            key_space: Mirrors it.
            assignment: Returns the assignment as last observed.
            random: Source of jitter.
        """
        self._etcd = etcd
        self._key_space = key_space
        self._assignment = assignment
        self._random = random
        self.unavailable = ""
        """Why the replica cannot do its work at present; every status that is written says so."""
        self.unanswered_journal = ""
        """Whose appends are not answered, if that is why."""
        self._written_over = 0
        """The revision of the assignment that the last write was to replace."""

    async def tell_available(self) -> None:
        """Publish the present `unavailable` beside the present status. Retries until it is written."""
        await self._write(lambda existing: existing)

    async def publish(self, status: ReplicaStatus) -> None:
        """Merge `status` into the present one: the code never decreases. Retries until it is written."""
        await self._write(lambda existing: reduced(existing, status))

    async def replace(self, status: ReplicaStatus) -> None:
        """Replace the present status by `status`, because a new attempt starts over. Retries until it is written."""
        await self._write(lambda _: status)

    async def _write(self, wanted_after: Callable[[ReplicaStatus], ReplicaStatus]) -> None:
        backoff = Backoff(random=self._random)
        while not await self._try_write(wanted_after, warn=backoff.attempt > 0):
            await backoff.sleep()

    async def _try_write(
        self, wanted_after: Callable[[ReplicaStatus], ReplicaStatus], *, warn: bool
    ) -> bool:
        observed = self._assignment()
        existing = observed.value if isinstance(observed.value, ReplicaStatus) else ReplicaStatus()
        wanted = ReplicaStatus()
        wanted.CopyFrom(wanted_after(existing))
        wanted.unavailable = truncated(self.unavailable)
        wanted.unanswered_journal = self.unanswered_journal
        kv = observed.kv
        # What a write was to replace may be replaced, though the mirror shows it: the write may have been cancelled, or
        # its answer lost.
        if wanted == existing and kv.mod_revision != self._written_over:
            return True
        self._written_over = kv.mod_revision
        put = Put(kv.key, wanted.SerializeToString(deterministic=True), ignore_lease=True)
        problem = "the assignment changed since it was observed"
        try:
            result = await self._etcd.txn((Compare.mod_revision(kv.key, kv.mod_revision),), (put,))
            if result.succeeded:
                await self._key_space.wait_for_revision(result.header.revision)
                return True
        except EtcdError as error:
            problem = str(error)
        if warn:  # The first refusal usually means that the watch lags a moment.
            _log.warning("replica_status.retrying", key=kv.key.decode(), problem=problem)
        return False


# Where parts of a shard look up the assignment that they act for.
AssignmentSource: TypeAlias = "Callable[[], Assignment]"
"""Returns the shard's assignment to this process, as last observed."""


class AssignedShard(Shard, Protocol):
    """A shard that is assigned to this process."""

    @property
    def assignment(self) -> Assignment:
        """Our own assignment as last observed."""
        ...

    @property
    def created_revision(self) -> int:
        """Revision that created the shard, of which we are a replica; 0: not known."""
        ...

    @property
    def primary(self) -> bool:
        """True if the assignment makes us its primary."""
        ...


async def prove_assignment(etcd: Etcd, shard: AssignedShard, item: bytes) -> None:
    """Ask etcd itself whether the shard is still ours, before a restore fences its present holder.

    A process that was stopped for long may trust assignments that are gone. Its commits are fenced; if it restored
    again, it would fence its successor, which would restore, and so on.

    Args:
        etcd: Has both keys.
        shard: The shard.
        item: Key of the shard's spec.

    Source: gazette/core consumer/shard.go (servePrimary); the proof against etcd is ours.

    Raises:
        AssignmentLostError: it is gone, or was replaced; or a later shard has the id.
    """
    observed = shard.assignment.kv
    result = await etcd.txn((), (Get(observed.key), Get(item)))
    assignments, items = result.gets
    created = assignments[0].create_revision if assignments else 0
    if created != observed.create_revision:
        now = f"was created again at revision {created}" if created else "is gone"
        raise AssignmentLostError(
            f"assignment {observed.key.decode()} {now}; this process no longer serves the shard"
        )
    if items:
        check_same_shard(items[0], shard)


def check_same_shard(item: KeyValue, shard: AssignedShard) -> None:
    """Refuse the spec of a later shard that has the id of ours.

    A merge deletes a shard, and a split may make one of the same id before a member that etcd does not reach has seen
    either. An assignment outlives both, and is of the later shard then.

    Raises:
        AssignmentLostError: it is one.
    """
    if item.create_revision != (shard.created_revision or item.create_revision):
        raise AssignmentLostError(
            f"shard {shard.id} was deleted, or absorbed by another one; a later shard has its id"
        )


class Availability:
    """Availability of one replica, in its status: that it cannot reach its brokers, why, and that it can again.

    Each shard of the process is examined several times a second, so a look must be cheap; only changes are written.
    """

    def __init__(
        self,
        shard: AssignedShard,
        status: ReplicaStatusWriter,
        *,
        overdue_append: Callable[[float], str],
        metrics: ShardMetrics,
    ) -> None:
        """Bind to a replica, which is assumed to be available.

        Args:
            shard: The replica's shard.
            status: Of the replica.
            overdue_append: Returns a journal of which an append has waited for so many seconds, or the empty string.
            metrics: Counts.
        """
        self._shard = shard
        self._status = status
        self._overdue_append = overdue_append
        self._metrics = metrics
        self._changed = asyncio.Event()

    def look(self, broker_silent: str, *, overdue_seconds: float) -> None:
        """Determine whether the replica can do its work now.

        Args:
            broker_silent: Why brokers count as out of this process's reach; empty: they do not.
            overdue_seconds: Age at which an append without an answer counts.
        """
        cause = journal = ""
        if self._shard.primary:
            cause = broker_silent
            journal = "" if cause else self._overdue_append(overdue_seconds)
            if journal:
                cause = f"an append to journal {journal} is not answered"
        if cause != self._status.unavailable:
            self._status.unavailable, self._status.unanswered_journal = cause, journal
            self._changed.set()

    async def run(self) -> None:
        """Write changes, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                cause = self._status.unavailable
                self._metrics.record_unavailable(self._shard.fqn, bool(cause))
                if cause:
                    _log.warning("shard.unavailable", shard=self._shard.id, cause=cause)
                else:
                    _log.info("shard.available_again", shard=self._shard.id)
                await self._status.tell_available()
        finally:
            # The shard's next holder reports its own.
            self._metrics.record_unavailable(self._shard.fqn, False)
