"""Reports this member's capacity, and the load of its shards, to the leader.

    shards' sums ──every `REPORT_SECONDS`──► rates ──► rounded ──► written, if it differs from what was written

The key is beside the cluster's root and has the member's lease, so it vanishes with the member. A member that declares
no capacity, does not measure and whose standbys keep up writes nothing at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import LeaseId, Put
from broadsheet.allocator.state.load import Lag, ReplicaLoad
from broadsheet.consumer.member.load_report import RoundedReport
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.shard.progress import Usage
from broadsheet.runtime.clock import Clock

REPORT_SECONDS = 15.0
"""Time over which a rate is measured."""

_log = structlog.get_logger()


class ReportedShard(Protocol):
    """A shard of this process as its load is reported."""

    @property
    def usage(self) -> Usage:
        """The bytes and CPU that it took so far."""
        ...

    @property
    def lag(self) -> Lag | None:
        """Its lag; None unless it is a standby with a recovery log."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPolicy:
    """The content of a member's reports, and their interval."""

    capacity: int = 0
    """Load that this process can carry; 0: its limit."""
    measure: bool
    """Whether to tell what shards take."""
    report_seconds: float = REPORT_SECONDS
    """Time over which a rate is measured."""


class LoadReporter:
    """Measures and writes. `run` until cancelled."""

    def __init__(
        self,
        membership: LocalMember,
        *,
        lease: Callable[[], LeaseId],
        shards: Callable[[], Mapping[ItemId, ReportedShard]],
        policy: ReportPolicy,
        clock: Clock,
    ) -> None:
        """Bind the reporter; nothing is written yet.

        Args:
            membership: Of this process.
            lease: Returns the session's lease.
            shards: Returns the shards of this process, primaries and standbys.
            policy: What to report.
            clock: Time.
        """
        self._etcd = membership.etcd
        keys = AuxiliaryKeys(membership.key_space.keys.root)
        self._key = keys.load(membership.member_id)
        self._lease = lease
        self._shards = shards
        self._policy = policy
        self._clock = clock
        self._report = RoundedReport(capacity=policy.capacity)
        self._written = RoundedReport().encode()
        self._before: Mapping[ItemId, Usage] = {}
        self._looked_at_monotonic_seconds = clock.monotonic_seconds()
        self.looks = 0
        """Times that rates were measured."""

    async def run(self) -> None:
        """Write reports until cancelled."""
        while True:
            await self._tell()
            await asyncio.sleep(self._policy.report_seconds)
            lags = {item_id: shard.lag for item_id, shard in self._shards().items()}
            self._report = self._report.after_lags(
                {item_id: lag for item_id, lag in lags.items() if lag is not None}
            )
            if self._policy.measure:
                self._look()

    def _look(self) -> None:
        self.looks += 1
        now = self._clock.monotonic_seconds()
        elapsed = now - self._looked_at_monotonic_seconds
        usages = {item_id: shard.usage for item_id, shard in self._shards().items()}
        if elapsed > 0.0:
            loads = {
                item_id: _rate(self._before[item_id], usage, elapsed)
                for item_id, usage in usages.items()
                if item_id in self._before
            }
            self._report = self._report.after(loads)
        self._before, self._looked_at_monotonic_seconds = usages, now

    async def _tell(self) -> None:
        value = self._report.encode()
        if value == self._written:
            return
        try:
            await self._etcd.txn((), (Put(self._key, value, lease=self._lease()),))
        except EtcdError as error:
            # The next look reports again.
            _log.warning("load_report.write_failed", cause=str(error))
            return
        self._written = value


def _rate(before: Usage, now: Usage, elapsed_seconds: float) -> ReplicaLoad:
    """Return the rate per second; an attempt that began meanwhile began at zero."""
    consumed, cpu = now.consumed_bytes, now.cpu_seconds
    if consumed >= before.consumed_bytes and cpu >= before.cpu_seconds:
        consumed -= before.consumed_bytes
        cpu -= before.cpu_seconds
    return ReplicaLoad(bytes_per_second=consumed / elapsed_seconds, cpu_ratio=cpu / elapsed_seconds)
