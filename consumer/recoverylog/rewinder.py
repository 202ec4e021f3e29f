"""The rewinder of shards to backups of their hints, in etcd."""

from __future__ import annotations

import structlog
from google.protobuf.message import DecodeError

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.etcd.api import Etcd, TxnResult
from broadsheet.allocator.keys import AssignmentKey, Keys
from broadsheet.allocator.model import Assignment, ItemId
from broadsheet.allocator.ops import Get, KeyValue, prefix_range_end
from broadsheet.consumer.recoverylog.hints import has_recovery_log, recovery_log_of
from broadsheet.consumer.recoverylog.rewind_plan import (
    RewindBasis,
    RewindPlan,
    hint_keys_of,
    plan_rewind,
)
from broadsheet.journals.client import JournalClient
from broadsheet.wire.recovery_pb2 import Rewind, RewindStatus
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec

_log = structlog.get_logger()


class Rewinder:
    """The rewinder below one root: plans and performs."""

    def __init__(self, etcd: Etcd, journals: JournalClient, keys: Keys) -> None:
        """Take what to work with.

        Args:
            etcd: Holds specs, hints and assignments.
            journals: Tells where a log begins.
            keys: Of the root.
        """
        self._etcd = etcd
        self._journals = journals
        self._keys = keys

    async def spec_of(self, shard_id: str) -> KeyValue | None:
        """Return a shard's current spec in etcd; None if there is none."""
        found = await self._etcd.get_range(self._keys.item(ItemId(shard_id)))
        return found.kvs[0] if found.kvs else None

    async def plan(self, spec_kv: KeyValue, *, backup: int | None, force: bool) -> RewindPlan:
        """Return the plan of a rewind, and change nothing.

        Args:
            spec_kv: As `spec_of` returned it; a spec that has changed since is reported by the plan's status.
            backup: Number of the backup, from 0; None: no hints, so that the whole log is played.
            force: Also if the shard has a primary.

        Raises:
            KeyDecodeError: the spec, or the status of a replica, is malformed.
            EtcdUnavailableError: etcd did not answer.
            ServiceError: the whole log is to be played, and no broker tells where it begins.
        """
        try:
            spec = ShardSpec.FromString(spec_kv.value)
        except DecodeError as error:
            raise KeyDecodeError(spec_kv.key, str(error)) from error
        read = await self._read(spec)
        if not read.gets[0] or read.gets[0][0].mod_revision != spec_kv.mod_revision:
            return RewindPlan(RewindStatus.REWIND_STATUS_CHANGED, Rewind())
        basis = RewindBasis(
            spec=spec,
            spec_kv=spec_kv,
            assignments=[self._assignment(kv) for kv in read.gets[1]],
            assignments_prefix=self._keys.assignments_of(ItemId(spec.id)),
            log_begin=await self._begin_of(spec) if backup is None else 0,
            hints={kv.key: kv for kvs in read.gets[2:] for kv in kvs},
        )
        plan = plan_rewind(basis, backup=backup, force=force)
        plan.rewind.revision = read.header.revision
        return plan

    async def perform(self, spec_kv: KeyValue, *, backup: int | None, force: bool) -> RewindPlan:
        """Rewind in one transaction that depends on what was read; the returned plan is what it did.

        Raises:
            KeyDecodeError: the spec, or the status of a replica, is malformed.
            EtcdUnavailableError: etcd did not answer; it may have been done.
            EtcdLimitError: more hints must be set aside than one transaction takes.
        """
        plan = await self.plan(spec_kv, backup=backup, force=force)
        if plan.checkpoint is None:
            return plan
        result = await self._etcd.txn(plan.checkpoint.compares, plan.checkpoint.operations)
        if not result.succeeded:
            return RewindPlan(RewindStatus.REWIND_STATUS_CHANGED, Rewind())
        plan.rewind.revision = result.header.revision
        _log.info(
            "hints.rewound",
            log=plan.rewind.log,
            backup=backup,
            kept_at=plan.rewind.kept_at,
            set_aside=list(plan.rewind.set_aside),
            unassigned=list(plan.rewind.unassigned),
            revision=plan.rewind.revision,
        )
        return plan

    async def _begin_of(self, spec: ShardSpec) -> int:
        """Return the offset of the first byte of a shard's log, bytes; 0 if it has none."""
        return (
            await log_begin(self._journals, recovery_log_of(spec)) if has_recovery_log(spec) else 0
        )

    async def _read(self, spec: ShardSpec) -> TxnResult:
        """Read spec, assignments and hints at one revision."""
        prefix = self._keys.assignments_of(ItemId(spec.id))
        hint_keys = hint_keys_of(spec) if has_recovery_log(spec) else ()
        gets = (
            Get(self._keys.item(ItemId(spec.id))),
            Get(prefix, prefix_range_end(prefix)),
            *(Get(key) for key in hint_keys),
        )
        return await self._etcd.txn((), gets)

    def _assignment(self, kv: KeyValue) -> Assignment:
        parsed = self._keys.parse(kv.key)
        assert isinstance(parsed, AssignmentKey), "a range of assignments holds no other keys"
        try:
            status = ReplicaStatus.FromString(kv.value)
        except DecodeError as error:
            raise KeyDecodeError(kv.key, str(error)) from error
        return Assignment(
            item_id=parsed.item_id,
            member_id=parsed.member_id,
            slot=parsed.slot,
            value=status,
            kv=kv,
        )


async def log_begin(journals: JournalClient, log: str) -> int:
    """Return the offset of the first byte that a log still has, bytes; its head if all that it had is gone.

    Raises:
        ServiceError: no broker tells.
    """
    fragments = await journals.list_fragments(log)
    if fragments:
        return min(each.spec.begin for each in fragments)
    # Nothing was ever written, or everything was pruned or lost: to play that would begin with an empty store.
    return await journals.write_head(log)
