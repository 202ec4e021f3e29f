"""Requests resets of sources: checks shard and journal, and stores the reset in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import AssignmentKey, AuxiliaryKeys, Keys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import Compare, Delete, Get, KeyValue, prefix_range_end
from broadsheet.consumer.shard.source_resets import SourceReset, SourceResets
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.journals.guard import Present
from broadsheet.wire.alphabet import split_journal
from broadsheet.wire.recovery_pb2 import ResetSourceStatus, SourceReset as SourceResetMessage
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec

_MessageT = TypeVar("_MessageT", ShardSpec, ReplicaStatus)

WRITE_HEAD = -1
RESET_ID_BYTES = 16

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """A requested reset of one source."""

    spec_kv: KeyValue
    """Of the shard, as it was judged."""
    journal: str
    """One of its sources."""
    offset: int
    """Where reading goes on, bytes; -1 is the write head."""


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The effect of a request."""

    status: ResetSourceStatus.ValueType
    reset: SourceResetMessage
    failed: tuple[KeyValue, ...] = ()
    """Assignments of replicas that failed."""


class SourceResetter:
    """Plans and requests resets below one cluster root."""

    def __init__(self, etcd: Etcd, journals: JournalClient, keys: Keys) -> None:
        self._etcd = etcd
        self._journals = journals
        self._keys = keys
        self._records = SourceResets(etcd, AuxiliaryKeys(keys.root))

    async def plan(self, request: ResetRequest) -> ResetPlan:
        """Return the effect of a reset; change nothing.

        Raises:
            KeyDecodeError: the spec, or the status of a replica, is malformed.
            EtcdUnavailableError: etcd did not answer.
            JournalError, EndpointError: the journal cannot be looked at.
        """
        spec = _decoded(request.spec_kv, ShardSpec)
        found = [source for source in spec.sources if source.journal == request.journal]
        if not found:
            return _refused(ResetSourceStatus.RESET_SOURCE_STATUS_NOT_A_SOURCE)
        prefix = self._keys.assignments_of(ItemId(spec.id))
        read = await self._etcd.txn((), (Get(prefix, prefix_range_end(prefix)),))
        codes = [(kv, _decoded(kv, ReplicaStatus).code) for kv in read.gets[0]]
        if any(code == ReplicaStatus.PRIMARY for _, code in codes):
            return _refused(ResetSourceStatus.RESET_SOURCE_STATUS_HAS_PRIMARY)
        try:
            present = await self._journals.present(split_journal(request.journal)[0])
        except JournalNotFoundError:
            return _refused(ResetSourceStatus.RESET_SOURCE_STATUS_JOURNAL_NOT_FOUND)
        if request.offset > present.write_head:
            return _refused(ResetSourceStatus.RESET_SOURCE_STATUS_BEYOND_HEAD, present)
        if _offset_of(request, present) < found[0].min_offset:
            # Reading would begin at the lower bound anyway, and silently skip everything below.
            return _refused(
                ResetSourceStatus.RESET_SOURCE_STATUS_BELOW_MIN_OFFSET,
                present,
                offset=found[0].min_offset,
            )
        failed = tuple(kv for kv, code in codes if code == ReplicaStatus.FAILED)
        return self._planned(request, present, failed, revision=read.header.revision)

    def _planned(
        self,
        request: ResetRequest,
        present: Present,
        failed: Sequence[KeyValue],
        *,
        revision: int,
    ) -> ResetPlan:
        message = SourceResetMessage(
            revision=revision,
            offset=_offset_of(request, present),
            write_head=present.write_head,
            epoch=present.epoch,
            unassigned=[self._member_of(kv) for kv in failed],
        )
        return ResetPlan(ResetSourceStatus.RESET_SOURCE_STATUS_OK, message, tuple(failed))

    def _member_of(self, kv: KeyValue) -> str:
        parsed = self._keys.parse(kv.key)
        assert isinstance(parsed, AssignmentKey), "a range of assignments holds no other keys"
        return str(parsed.member_id)

    async def perform(self, request: ResetRequest) -> ResetPlan:
        """Store a reset, and remove failed replicas, so that a primary starts again.

        Raises:
            KeyDecodeError: the spec, or the status of a replica, is malformed.
            EtcdUnavailableError: etcd did not answer; it may have been done.
            JournalError, EndpointError: the journal cannot be looked at; nothing was done.
        """
        plan = await self.plan(request)
        if plan.status != ResetSourceStatus.RESET_SOURCE_STATUS_OK:
            return plan
        message, spec = plan.reset, _decoded(request.spec_kv, ShardSpec)
        reset = SourceReset(
            id=secrets.token_bytes(RESET_ID_BYTES),
            journal=request.journal,
            offset=message.offset,
            epoch=message.epoch if message.HasField("epoch") else None,
        )
        compares = [Compare.mod_revision(request.spec_kv.key, request.spec_kv.mod_revision)]
        compares += [Compare.mod_revision(kv.key, kv.mod_revision) for kv in plan.failed]
        removals = [Delete(kv.key) for kv in plan.failed]
        result = await self._etcd.txn(
            tuple(compares), (self._records.put(spec.id, reset), *removals)
        )
        if not result.succeeded:
            return _refused(ResetSourceStatus.RESET_SOURCE_STATUS_CHANGED)
        message.revision = result.header.revision
        _log.info(
            "source_reset.stored",
            shard=spec.id,
            journal=request.journal,
            offset=message.offset,
            write_head=message.write_head,
            unassigned=list(message.unassigned),
            revision=message.revision,
        )
        return plan


def _offset_of(request: ResetRequest, present: Present) -> int:
    return present.write_head if request.offset == WRITE_HEAD else request.offset


def _refused(
    status: ResetSourceStatus.ValueType, present: Present | None = None, *, offset: int = 0
) -> ResetPlan:
    head = 0 if present is None else present.write_head
    return ResetPlan(status, SourceResetMessage(offset=offset, write_head=head))


def _decoded(kv: KeyValue, kind: type[_MessageT]) -> _MessageT:
    try:
        return kind.FromString(kv.value)
    except DecodeError as error:
        raise KeyDecodeError(kv.key, str(error)) from error
