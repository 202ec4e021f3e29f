"""Reports this member's capacity, and the load of its shards, to the leader.

    shards' sums ──every `REPORT_SECONDS`──► rates ──► rounded ──► written, if it differs from what was written

The key is beside the cluster's root and has the member's lease, so it vanishes with the member. A member that declares
no capacity, does not measure and whose standbys keep up writes nothing at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import LeaseId, Put
from broadsheet.allocator.state.load import Lag, ReplicaLoad
from broadsheet.consumer.elastic.group_load import UNKNOWN, Counts, GroupLoad
from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.member.load_report import RoundedReport
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.shard.progress import Usage
from broadsheet.consumer.stores.keyed_queries import KeyedQueryStore
from broadsheet.runtime.clock import Clock
from broadsheet.wire.key_range import key_range_of
from broadsheet.wire.shard_pb2 import ShardSpec

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

    @property
    def unread_bytes(self) -> int:
        """Bytes of its sources that its transactions have not read; 0 of a standby."""
        ...

    @property
    def store(self) -> object | None:
        """The store of a primary that serves."""
        ...

    @property
    def spec(self) -> ShardSpec:
        """Its spec."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPolicy:
    """The content of a member's reports, and their interval."""

    capacity: int = 0
    """Load that this process can carry; 0: its limit."""
    measure: bool
    """Whether to tell what shards take."""
    counts_groups: bool = False
    """Whether to tell how keyed shards' load is spread over groups of keys, and how large their state is."""
    report_seconds: float = REPORT_SECONDS
    """Time over which a rate is measured."""


@runtime_checkable
class GroupCounter(Protocol):
    """A store that counts the rows of groups of keys, once it is asked to."""

    def group_rows(self) -> Counts:
        """Return the rows handled since the first call, shape (GROUPS,); on any thread."""
        ...


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
        self._group_loads: dict[ItemId, GroupLoad] = {}
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
        shards = self._shards()
        usages = {item_id: shard.usage for item_id, shard in shards.items()}
        if elapsed > 0.0:
            loads = {
                item_id: self._with_groups(
                    item_id,
                    shards[item_id],
                    _rate(self._before[item_id], shards[item_id], elapsed),
                    elapsed,
                )
                for item_id in usages
                if item_id in self._before
            }
            self._group_loads = {
                item_id: each for item_id, each in self._group_loads.items() if item_id in loads
            }
            self._report = self._report.after(loads)
        self._before, self._looked_at_monotonic_seconds = usages, now

    def _with_groups(
        self, item_id: ItemId, shard: ReportedShard, load: ReplicaLoad, elapsed_seconds: float
    ) -> ReplicaLoad:
        """Add what is known of a primary's keys."""
        store = shard.store
        if not self._policy.counts_groups or store is None:
            return load
        spread, state_bytes = UNKNOWN, 0
        try:
            if isinstance(store, GroupCounter):
                of_groups = self._group_loads.setdefault(item_id, GroupLoad())
                of_groups.observe(store.group_rows(), elapsed_seconds)
                spread = of_groups.summary(key_range_of(shard.spec.labels))
            if isinstance(store, KeyedQueryStore):
                state_bytes = store.counts().state_bytes
        except StoreError:
            pass  # It is destroyed at this moment.
        return replace(
            load,
            median_group=spread.median_group,
            busiest_group_ratio=spread.busiest_ratio,
            state_bytes=state_bytes,
            quantile_groups=spread.quantile_groups,
        )

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


def _rate(before: Usage, shard: ReportedShard, elapsed_seconds: float) -> ReplicaLoad:
    """Return the rate per second; an attempt that began meanwhile began at zero."""
    now = shard.usage
    consumed, cpu = now.consumed_bytes, now.cpu_seconds
    if consumed >= before.consumed_bytes and cpu >= before.cpu_seconds:
        consumed -= before.consumed_bytes
        cpu -= before.cpu_seconds
    rate = consumed / elapsed_seconds
    return ReplicaLoad(
        bytes_per_second=rate,
        cpu_ratio=cpu / elapsed_seconds,
        # One that reads nothing fails, or waits for others: more shards would not help it.
        behind_seconds=shard.unread_bytes / rate if rate > 0.0 else 0.0,
    )
