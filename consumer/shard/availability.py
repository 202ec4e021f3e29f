"""Says of a primary, in its status, that it cannot reach its brokers at present, and why; and that it can again.

A look costs next to nothing, for there is one at every shard of the process several times a second; what is said is
written only when it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from consumer.shard.metrics import ShardMetrics
from consumer.shard.replica_status import ReplicaStatusWriter

_log = structlog.get_logger()


class Availability:
    """Of one replica."""

    def __init__(
        self,
        shard_id: str,
        status: ReplicaStatusWriter,
        *,
        is_primary: Callable[[], bool],
        overdue_append: Callable[[float], str],
        metrics: ShardMetrics,
        fqn: str,
    ) -> None:
        """Bind to a replica, which is taken for available.

        Args:
            shard_id: For the log.
            status: Of the replica.
            is_primary: Whether the replica is its shard's primary.
            overdue_append: Returns a journal of which an append has waited for so many seconds, or the empty string.
            metrics: Counts.
            fqn: For metrics.
        """
        self._shard_id = shard_id
        self._status = status
        self._is_primary = is_primary
        self._overdue_append = overdue_append
        self._metrics = metrics
        self._fqn = fqn
        self._changed = asyncio.Event()

    def look(self, broker_silent: str, *, overdue_seconds: float) -> None:
        """Take note of whether the replica can do its work now.

        Args:
            broker_silent: Why brokers count as out of this process's reach; empty: they do not.
            overdue_seconds: Age at which an append without an answer counts.
        """
        cause = journal = ""
        if self._is_primary():
            cause = broker_silent
            journal = "" if cause else self._overdue_append(overdue_seconds)
            if journal:
                cause = f"an append to journal {journal} is not answered"
        if cause != self._status.unavailable:
            self._status.unavailable, self._status.unanswered_journal = cause, journal
            self._changed.set()

    async def run(self) -> None:
        """Write what changed, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                cause = self._status.unavailable
                self._metrics.record_unavailable(self._fqn, bool(cause))
                if cause:
                    _log.warning("shard.unavailable", shard=self._shard_id, cause=cause)
                else:
                    _log.info("shard.available_again", shard=self._shard_id)
                await self._status.tell_available()
        finally:
            # Whoever takes the shard next tells its own.
            self._metrics.record_unavailable(self._fqn, False)
