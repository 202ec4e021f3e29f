"""The Recovery service: PlanPrune, Prune, PlanRewind, Rewind, PlanResetSource, ResetSource.

Any member can answer, from etcd and the brokers alone, without its mirror, which may lag, and whatever it serves.
A prune concerns every shard, because any shard may need any log; a rewind concerns one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import DecodeError

from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.recoverylog.prune_plan import LogPlan, PruneCounts, SegmentFate
from broadsheet.consumer.recoverylog.pruner import PruneOutcome, Pruner
from broadsheet.consumer.recoverylog.rewinder import Rewinder
from broadsheet.consumer.registry.key_space import is_visible
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.shard.source_resetter import WRITE_HEAD, ResetRequest, SourceResetter
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import Claims
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire import recovery_pb2_grpc
from broadsheet.wire.alphabet import validate_journal
from broadsheet.wire.labels import is_scoped
from broadsheet.wire.recovery_pb2 import (
    FragmentTally,
    PlanPruneRequest,
    PlanPruneResponse,
    PlanResetSourceRequest,
    PlanResetSourceResponse,
    PlanRewindRequest,
    PlanRewindResponse,
    PrunedLog,
    PruneRequest,
    PruneResponse,
    ResetSourceRequest,
    ResetSourceResponse,
    ResetSourceStatus,
    RewindRequest,
    RewindResponse,
    RewindStatus,
)
from broadsheet.wire.shard_pb2 import ShardSpec
from broadsheet.wire.validation_shard import validate_shard_id

DELAY_SECONDS_MAX = 10 * 365 * 86_400.0
"""Maximum time for which dead fragments are kept."""

# `Any`: grpc.aio passes each servicer method its context.
Context = Any


class RecoveryApi(recovery_pb2_grpc.RecoveryServiceServicer):
    """The `broadsheet.v1.RecoveryService` of one member."""

    def __init__(self, etcd: Etcd, journals: JournalClient, keys: Keys, *, clock: Clock) -> None:
        """Create the service.

        Args:
            etcd: Holds specs, hints and assignments.
            journals: Lists and removes fragments of logs.
            keys: Of the cluster's root.
            clock: Measures how long a fragment has been dead.
        """
        self._pruner = Pruner(etcd, journals, keys, clock=clock)
        self._rewinder = Rewinder(etcd, journals, keys)
        self._resetter = SourceResetter(etcd, journals, keys)

    async def PlanPrune(  # noqa: N802 - gRPC's name
        self, request: PlanPruneRequest, context: Context
    ) -> AsyncIterator[PlanPruneResponse]:
        """Return the fragments that a prune would remove, log by log; change nothing."""
        _require_unscoped(claims_of(context))
        _validate_delay(request.delay_seconds)
        async for plan in self._pruner.plan(delay_seconds=request.delay_seconds):
            yield PlanPruneResponse(log=planned_log(plan))

    async def Prune(  # noqa: N802 - gRPC's name
        self, request: PruneRequest, context: Context
    ) -> AsyncIterator[PruneResponse]:
        """Prune log by log."""
        _require_unscoped(claims_of(context))
        _validate_delay(request.delay_seconds)
        async for outcome in self._pruner.prune(delay_seconds=request.delay_seconds):
            yield PruneResponse(log=pruned_log(outcome))

    async def PlanRewind(self, request: PlanRewindRequest, context: Context) -> PlanRewindResponse:  # noqa: N802 - gRPC's name
        """Return the plan of a rewind; change nothing."""
        spec = await self._visible_spec(request.shard, claims_of(context))
        if spec is None:
            return PlanRewindResponse(status=RewindStatus.REWIND_STATUS_SHARD_NOT_FOUND)
        plan = await self._rewinder.plan(spec, backup=_backup(request), force=request.force)
        return PlanRewindResponse(status=plan.status, rewind=plan.rewind)

    async def Rewind(self, request: RewindRequest, context: Context) -> RewindResponse:  # noqa: N802 - gRPC's name
        """Replace a shard's primary hints by a backup, or refuse."""
        spec = await self._visible_spec(request.shard, claims_of(context))
        if spec is None:
            return RewindResponse(status=RewindStatus.REWIND_STATUS_SHARD_NOT_FOUND)
        plan = await self._rewinder.perform(spec, backup=_backup(request), force=request.force)
        return RewindResponse(status=plan.status, rewind=plan.rewind)

    async def PlanResetSource(  # noqa: N802 - gRPC's name
        self, request: PlanResetSourceRequest, context: Context
    ) -> PlanResetSourceResponse:
        """Return the plan of a reset of a source; change nothing."""
        wanted = await self._reset_request(request, claims_of(context))
        if wanted is None:
            return PlanResetSourceResponse(
                status=ResetSourceStatus.RESET_SOURCE_STATUS_SHARD_NOT_FOUND
            )
        plan = await self._resetter.plan(wanted)
        return PlanResetSourceResponse(status=plan.status, reset=plan.reset)

    async def ResetSource(  # noqa: N802 - gRPC's name
        self, request: ResetSourceRequest, context: Context
    ) -> ResetSourceResponse:
        """Set the offset of a source at which a shard's next primary continues, or refuse."""
        wanted = await self._reset_request(request, claims_of(context))
        if wanted is None:
            return ResetSourceResponse(status=ResetSourceStatus.RESET_SOURCE_STATUS_SHARD_NOT_FOUND)
        plan = await self._resetter.perform(wanted)
        return ResetSourceResponse(status=plan.status, reset=plan.reset)

    async def _reset_request(
        self, request: PlanResetSourceRequest | ResetSourceRequest, claims: Claims
    ) -> ResetRequest | None:
        """Return the validated reset; None if the caller sees no such shard."""
        validate_journal(request.journal, "journal")
        if request.offset < WRITE_HEAD:
            raise ValidationError(
                "offset", f"expected -1 (the write head) or more, got {request.offset}"
            )
        spec_kv = await self._visible_spec(request.shard, claims)
        if spec_kv is None:
            return None
        return ResetRequest(spec_kv=spec_kv, journal=request.journal, offset=request.offset)

    async def _visible_spec(self, shard_id: str, claims: Claims) -> KeyValue | None:
        """Return a spec that the caller may see; the transaction requires that it has not changed since."""
        validate_shard_id(shard_id, "shard")
        kv = await self._rewinder.spec_of(shard_id)
        if kv is None or not is_visible(_spec_or_bare(kv.value, shard_id), claims.selector):
            return None
        return kv


def planned_log(plan: LogPlan) -> PrunedLog:
    """Encode a log's prune plan."""
    if plan.spared:
        return PrunedLog(log=plan.log, shards=plan.shards, spared=plan.spared)
    return PrunedLog(
        log=plan.log,
        shards=plan.shards,
        needed=_tally(plan.tallies[SegmentFate.NEEDED]),
        unpersisted=_tally(plan.tallies[SegmentFate.UNPERSISTED]),
        elsewhere=_tally(plan.tallies[SegmentFate.ELSEWHERE]),
        quarantined=_tally(plan.tallies[SegmentFate.QUARANTINED]),
        quarantined_until=plan.quarantined_until,
        removed=_tally(plan.tallies[SegmentFate.DEAD]),
        failed=FragmentTally(),
    )


def pruned_log(outcome: PruneOutcome) -> PrunedLog:
    """Encode a log's prune outcome."""
    message = planned_log(outcome.plan)
    if not outcome.plan.spared:
        message.removed.CopyFrom(_tally(outcome.removed))
        message.failed.CopyFrom(_tally(outcome.failed))
        message.failure = outcome.failure
    return message


def _backup(request: PlanRewindRequest | RewindRequest) -> int | None:
    return None if request.whole_log else request.backup


def _tally(tally: PruneCounts) -> FragmentTally:
    return FragmentTally(fragments=tally.fragments, bytes=tally.bytes)


def _spec_or_bare(value: bytes, shard_id: str) -> ShardSpec:
    """Return a stored spec; if it cannot be decoded, one with only its id, which claims can still match."""
    try:
        return ShardSpec.FromString(value)
    except DecodeError:
        return ShardSpec(id=shard_id)


def _validate_delay(delay_seconds: float) -> None:
    if not 0 <= delay_seconds <= DELAY_SECONDS_MAX:
        raise ValidationError(
            "delay_seconds", f"expected 0 to {DELAY_SECONDS_MAX:.0f}, got {delay_seconds}"
        )


def _require_unscoped(claims: Claims) -> None:
    """Refuse claims restricted to some shards, because any other shard may need a log."""
    if is_scoped(claims.selector):
        raise NotAuthorizedError(
            "a prune concerns every shard: the token must not be restricted to some of them"
        )
