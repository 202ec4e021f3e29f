"""Writes what a replica says of itself to its assignment's key in etcd, and waits until the key space shows it.

The write holds only if the key is as it was last observed, and keeps the member's lease; if someone else changed the
key in between (the allocator promotes, or we wrote before), it is tried again once the watch has caught up.

Source: gazette/core consumer/shard.go (updateStatusWithRetry).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import structlog

from allocator.errors import EtcdError
from allocator.etcd.api import Etcd
from allocator.model import Assignment
from allocator.ops import Compare, Put
from allocator.runtime.backoff import Backoff
from consumer.core.replica_status import reduced, truncated
from consumer.protocol.shard_pb2 import ReplicaStatus
from consumer.shard.environment import RevisionWaiter

_log = structlog.get_logger()


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

    async def tell_available(self) -> None:
        """Say what `unavailable` is now beside what is said already. Tries until it is written."""
        await self._write(lambda existing: existing)

    async def publish(self, status: ReplicaStatus) -> None:
        """Say `status` beside what is said already: the code never falls. Tries until it is written."""
        await self._write(lambda existing: reduced(existing, status))

    async def replace(self, status: ReplicaStatus) -> None:
        """Say `status` in place of what was said: a fresh attempt starts a new account. Tries until it is written."""
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
        if wanted == existing:
            return True
        kv = observed.kv
        put = Put(kv.key, wanted.SerializeToString(deterministic=True), ignore_lease=True)
        problem = "the assignment changed since it was observed"
        try:
            result = await self._etcd.txn((Compare.mod_revision(kv.key, kv.mod_revision),), (put,))
            if result.succeeded:
                await self._key_space.wait_for_revision(result.header.revision)
                return True
        except EtcdError as error:
            problem = str(error)
        if warn:  # The first refusal is the watch being a moment late.
            _log.warning("replica_status.retrying", key=kv.key.decode(), problem=problem)
        return False
