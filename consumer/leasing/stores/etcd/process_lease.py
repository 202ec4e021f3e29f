"""The etcd lease that keeps a process's owner keys: granted when first needed, and again after it was lost.

Renewing all leases of a process is this one keep-alive: no record is written while nothing changes.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import structlog

from allocator.errors import EtcdError, LeaseLostError
from allocator.etcd.api import Etcd
from allocator.etcd.lease import LeaseKeeper
from allocator.ops import LeaseId
from allocator.runtime.clock import Clock
from allocator.runtime.task_group import TaskGroup

_log = structlog.get_logger()


class ProcessLease:
    """Keeps at most one lease alive. An async context manager; leaving it gives the lease back at once."""

    def __init__(self, etcd: Etcd, *, ttl_seconds: float, clock: Clock) -> None:
        self._etcd = etcd
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._keeper: LeaseKeeper | None = None
        self._granting = asyncio.Lock()
        self._tasks = TaskGroup()
        self._keeping: list[asyncio.Task[None]] = []

    async def current(self) -> LeaseId:
        """Return the lease, a new one if there is none."""
        async with self._granting:
            if self._keeper is None:
                keeper = await LeaseKeeper.grant(self._etcd, self._ttl_seconds, self._clock)
                self._keeper = keeper
                self._keeping = [task for task in self._keeping if not task.done()]
                self._keeping.append(
                    self._tasks.start_soon(self._keep(keeper), name="leasing.keep_alive")
                )
            return self._keeper.lease

    @property
    def deadline_monotonic_seconds(self) -> float | None:
        """Until when, by our clock, etcd cannot have given the lease up; None without one."""
        return None if self._keeper is None else self._keeper.deadline_monotonic_seconds

    def forget(self, lease: LeaseId) -> None:
        """Take a lease for lost: etcd says that it is gone."""
        if self._keeper is not None and self._keeper.lease == lease:
            self._keeper = None

    async def _keep(self, keeper: LeaseKeeper) -> None:
        try:
            await keeper.run()
        except (LeaseLostError, EtcdError) as error:
            _log.warning("leasing.process_lease_lost", cause=str(error))
            self.forget(keeper.lease)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not `stop()`: this may run in another task than `__aenter__` did.
        for task in self._keeping:
            task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                await keeper.revoke()
