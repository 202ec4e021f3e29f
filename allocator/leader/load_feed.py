"""What members say of their loads, read from etcd for the one that leads.

    /broadsheet.v1{root}/loads/ ──now and then──► made steady (`core.load`) ──► the tracker, if anything changed

Reports are rounded, and count only once they persist, so they need no watch.

Reading what thousands of shards weigh takes seconds, so that is done away from the event loop.

Invariants: a leader knows the reports before it makes its first plan, so that a change of leader is no change of loads;
later, an etcd that does not answer leaves what was known. A report that cannot be read counts as none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import structlog

from broadsheet.allocator.config import Offload
from broadsheet.allocator.errors import EtcdError, KeyDecodeError, ValidationError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import AuxiliaryKeys, member_id_below
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue, prefix_range_end
from broadsheet.allocator.policy import LoadPolicy
from broadsheet.allocator.runtime.backoff import Backoff
from broadsheet.allocator.runtime.clock import Clock
from broadsheet.allocator.state.derived_state import DerivedState
from broadsheet.allocator.state.load import MeasuredLoads, MemberReport

LOOK_SECONDS = 15.0
"""Time between two reads of the reports."""

_log = structlog.get_logger()

DecodeReport = Callable[[bytes], MemberReport]
"""Reads a report; raises `ValidationError` for what is none."""


class LoadFeed:
    """Keeps a tracker's measured loads and declared capacities up to date."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        *,
        policy: LoadPolicy,
        clock: Clock,
        decode: DecodeReport,
        offload: Offload,
    ) -> None:
        """Bind the feed; nothing is read yet.

        Args:
            etcd: Where reports are read.
            key_space: Tells which items there are, and below which root.
            policy: Whether and how measurements are used.
            clock: Time.
            decode: Reads a report; called wherever `offload` runs it.
            offload: Runs what takes long, away from the event loop.
        """
        self._etcd = etcd
        self._key_space = key_space
        self._keys = AuxiliaryKeys(key_space.keys.root)
        self._policy = policy
        self._clock = clock
        self._decode = decode
        self._offload = offload
        self._tracker: DerivedState | None = None
        self._measured = MeasuredLoads(policy)
        self._loads: Mapping[ItemId, int] | None = None
        self._read_at_monotonic_seconds: float | None = None

    async def update(self, tracker: DerivedState) -> None:
        """Give a tracker what is known now. For a new one, reports are read first, however long that takes."""
        if tracker is not self._tracker:
            self._measured, self._loads = MeasuredLoads(self._policy), None
            self._read_at_monotonic_seconds = None
            await self._look()
            self._tracker = tracker
            self._give(tracker)
        elif await self._look():
            self._give(tracker)
        else:
            tracker.lags = self._measured.lags

    async def _look(self) -> bool:
        """Read reports if it is time. Return whether anything that is in force changed."""
        read_at = self._read_at_monotonic_seconds
        if read_at is not None and self._clock.monotonic_seconds() - read_at < LOOK_SECONDS:
            return False
        prefix = self._keys.loads_prefix
        backoff = Backoff()
        while True:
            try:
                kvs = (await self._etcd.get_range(prefix, prefix_range_end(prefix))).kvs
                break
            except EtcdError as error:
                _log.warning("loads.not_read", cause=str(error))
                if read_at is not None:
                    self._read_at_monotonic_seconds = self._clock.monotonic_seconds()
                    return False
            await backoff.sleep()
        now = self._read_at_monotonic_seconds = self._clock.monotonic_seconds()
        item_ids = frozenset(self._key_space.items)
        return await self._offload(lambda: self._take_over(kvs, item_ids, now))

    def _take_over(
        self, kvs: Collection[KeyValue], item_ids: Collection[ItemId], now: float
    ) -> bool:
        """Add what was read to what is known. Return whether anything that is in force changed."""
        self._measured.forget_all_but(item_ids)
        changed = self._measured.observe(self._decoded(kvs), now)
        if changed or self._loads is None:
            self._loads = self._measured.loads
        return changed

    def _decoded(self, kvs: Collection[KeyValue]) -> Mapping[MemberId, MemberReport]:
        prefix = self._keys.loads_prefix
        found: dict[MemberId, MemberReport] = {}
        for kv in kvs:
            try:
                found[member_id_below(prefix, kv.key)] = self._decode(kv.value)
            except (KeyDecodeError, ValidationError) as error:
                _log.warning(
                    "loads.undecodable", key=kv.key.decode(errors="replace"), cause=str(error)
                )
        return found

    def _give(self, tracker: DerivedState) -> None:
        tracker.set_loads(self._loads, self._measured.capacities, self._policy)
        tracker.lags = self._measured.lags
