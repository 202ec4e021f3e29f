"""Members' load reports, read from etcd for the leader.

    /broadsheet.v1{root}/loads/ ──now and then──► smoothed (`state.load`) ──► the derived state, if anything changed

Reports are rounded, and count only if they persist, so they need no watch.

Decoding the reports of thousands of shards takes seconds, so it is done away from the event loop.

Invariants: a leader reads the reports before it makes its first plan, so that a change of leader does not change loads;
later, if etcd does not answer, the last known loads stay. A report that cannot be decoded counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import structlog

from broadsheet.allocator.config import Runtime
from broadsheet.allocator.errors import EtcdError, KeyDecodeError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import AuxiliaryKeys, member_id_below
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue, prefix_range_end
from broadsheet.allocator.policy import LoadPolicy
from broadsheet.allocator.state.derived_state import DerivedState
from broadsheet.allocator.state.load import MeasuredLoads, MemberReport
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import ValidationError

LOOK_SECONDS = 15.0
"""Time between two reads of the reports."""

_log = structlog.get_logger()

DecodeReport = Callable[[bytes], MemberReport]
"""Decodes a report; raises `ValidationError` for an invalid one."""


class LoadFeed:
    """Keeps the measured loads and declared capacities of a derived state up to date."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        *,
        policy: LoadPolicy,
        decode: DecodeReport,
        runtime: Runtime,
    ) -> None:
        """Prepare the feed; nothing is read yet.

        Args:
            etcd: Where reports are read.
            key_space: Provides the items and the root.
            policy: Whether and how measurements are used.
            decode: Decodes a report; called away from the event loop.
            runtime: Time, and the way away from the event loop.
        """
        self._etcd = etcd
        self._key_space = key_space
        self._keys = AuxiliaryKeys(key_space.keys.root)
        self._policy = policy
        self._decode = decode
        self._clock = runtime.clock
        self._offload = runtime.offload
        self._derived: DerivedState | None = None
        self._measured = MeasuredLoads(policy)
        self._loads: Mapping[ItemId, int] | None = None
        self._read_at_monotonic_seconds: float | None = None

    async def update(self, derived: DerivedState) -> None:
        """Update a derived state with the current loads. For a new one, reports are read first, however long that
        takes.
        """
        if derived is not self._derived:
            self._measured, self._loads = MeasuredLoads(self._policy), None
            self._read_at_monotonic_seconds = None
            await self._look()
            self._derived = derived
            self._give(derived)
        elif await self._look():
            self._give(derived)
        else:
            # Lags change while loads in force do not. They need no new plan, because they decide only promotions.
            derived.lags = self._measured.lags

    async def _look(self) -> bool:
        """Read reports if they are due. Return whether any load in force changed."""
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
                _log.warning("loads.read_failed", cause=str(error))
                # The last known loads stay in force. A new leader has none, so it keeps trying before its first plan.
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
        """Merge new reports into the known ones. Return whether any load in force changed."""
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

    def _give(self, derived: DerivedState) -> None:
        derived.set_loads(self._loads, self._measured.capacities, self._policy)
        derived.lags = self._measured.lags
