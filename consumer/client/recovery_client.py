"""Client of the Recovery service: prune recovery logs, rewind shards to backups of their hints, reset sources."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broadsheet.consumer.client.member_rpc import (
    MemberClient,
    RpcMethod,
    shard_claims,
)
from broadsheet.consumer.errors import (
    RewindRefusedError,
    ShardNotFoundError,
    SourceResetRefusedError,
)
from broadsheet.security.auth import Capability, expiring
from broadsheet.wire.recovery_pb2 import (
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
    Rewind,
    RewindRequest,
    RewindResponse,
    RewindStatus,
    SourceReset,
)
from broadsheet.wire.recovery_pb2_grpc import RecoveryServiceStub

PRUNE_SECONDS_MAX = 3600.0
"""Deadline of a prune; what it removed until then is gone, and another one goes on."""
DELAY_SECONDS = 86_400.0
"""How long dead fragments wait, unless the caller says otherwise."""

_PLAN_PRUNE = RpcMethod(RecoveryServiceStub, "PlanPrune", PlanPruneResponse)
_PRUNE = RpcMethod(RecoveryServiceStub, "Prune", PruneResponse)
_PLAN_REWIND = RpcMethod(RecoveryServiceStub, "PlanRewind", PlanRewindResponse)
_REWIND = RpcMethod(RecoveryServiceStub, "Rewind", RewindResponse)
_PLAN_RESET_SOURCE = RpcMethod(RecoveryServiceStub, "PlanResetSource", PlanResetSourceResponse)
_RESET_SOURCE = RpcMethod(RecoveryServiceStub, "ResetSource", ResetSourceResponse)


class RecoveryClient(MemberClient):
    """Prunes recovery logs and rewinds shards. Any member can be asked.

    Prunes have a deadline of `PRUNE_SECONDS_MAX` instead of `timeout_seconds`.
    """

    async def plan_prune(self, *, delay_seconds: float = DELAY_SECONDS) -> AsyncIterator[PrunedLog]:
        """Yield, log by log, what a prune would remove and why the rest stays; change nothing.

        Args:
            delay_seconds: For how long a fragment must have been dead.

        Raises:
            ValidationError: the delay is negative, or longer than ten years.
            NotAuthorizedError: the token is restricted to some shards.
            EndpointError: the member, or its broker, cannot be reached.
        """
        async for response in self._rpc.stream(
            _PLAN_PRUNE,
            PlanPruneRequest(delay_seconds=delay_seconds),
            expiring(Capability.READ, life_seconds=PRUNE_SECONDS_MAX),
            timeout_seconds=PRUNE_SECONDS_MAX,
        ):
            yield response.log

    async def prune(self, *, delay_seconds: float = DELAY_SECONDS) -> AsyncIterator[PrunedLog]:
        """Remove fragments that no shard's hints need, and yield each log once it is pruned.

        Args:
            delay_seconds: For how long a fragment must have been dead.

        Raises:
            ValidationError: the delay is negative, or longer than ten years.
            NotAuthorizedError: the token is restricted to some shards.
            EndpointError: the member, or its broker, cannot be reached; the logs yielded are pruned.
        """
        async for response in self._rpc.stream(
            _PRUNE,
            PruneRequest(delay_seconds=delay_seconds),
            expiring(Capability.APPLY, life_seconds=PRUNE_SECONDS_MAX),
            timeout_seconds=PRUNE_SECONDS_MAX,
        ):
            yield response.log

    async def plan_rewind(
        self, shard_id: str, *, backup: int | None, force: bool = False
    ) -> Rewind:
        """Return the effect that `rewind` would have; change nothing.

        Raises:
            ShardNotFoundError: there is no such shard.
            RewindRefusedError: it would be refused; the message says why and what to do.
        """
        response, _ = await self._rpc.request(
            _PLAN_REWIND,
            PlanRewindRequest(
                shard=shard_id, backup=backup or 0, force=force, whole_log=backup is None
            ),
            shard_claims(Capability.READ, shard_id),
        )
        return _accepted(shard_id, backup, response)

    async def rewind(self, shard_id: str, *, backup: int | None, force: bool = False) -> Rewind:
        """Replace a shard's primary hints by backup number `backup`, or drop all hints.

        Args:
            shard_id: The shard.
            backup: From 0, the newest. None: all hints are set aside, and the next recovery plays the whole log.
            force: Also if it has a primary: then all its replicas are taken away in the same transaction.

        Raises:
            ShardNotFoundError: there is no such shard.
            RewindRefusedError: it was refused; the message says why and what to do.
        """
        response, _ = await self._rpc.request(
            _REWIND,
            RewindRequest(
                shard=shard_id, backup=backup or 0, force=force, whole_log=backup is None
            ),
            shard_claims(Capability.APPLY, shard_id),
        )
        return _accepted(shard_id, backup, response)

    async def plan_reset_source(self, shard_id: str, *, journal: str, offset: int) -> SourceReset:
        """Return the effect that `reset_source` would have; change nothing.

        Raises:
            ShardNotFoundError: there is no such shard.
            SourceResetRefusedError: it would be refused; the message says why and what to do.
        """
        response, _ = await self._rpc.request(
            _PLAN_RESET_SOURCE,
            PlanResetSourceRequest(shard=shard_id, journal=journal, offset=offset),
            shard_claims(Capability.READ, shard_id),
        )
        return _accepted_reset(shard_id, journal, response)

    async def reset_source(self, shard_id: str, *, journal: str, offset: int) -> SourceReset:
        """Make a shard's next primary continue at another offset of a source that has lost what the shard had read.

        The reset is stored in etcd, applied once, and committed with the shard's next transaction. It is deleted
        unapplied if the source still holds what was read. Failed replicas of the shard are taken away in the same
        transaction.

        Args:
            shard_id: The shard.
            journal: The source, as in the shard's spec.
            offset: Where reading goes on, bytes; -1 is the write head.

        Raises:
            ShardNotFoundError: there is no such shard.
            SourceResetRefusedError: it was refused; the message says why and what to do.
        """
        response, _ = await self._rpc.request(
            _RESET_SOURCE,
            ResetSourceRequest(shard=shard_id, journal=journal, offset=offset),
            shard_claims(Capability.APPLY, shard_id),
        )
        return _accepted_reset(shard_id, journal, response)


def _accepted(
    shard_id: str, backup: int | None, response: PlanRewindResponse | RewindResponse
) -> Rewind:
    status = response.status
    if status == RewindStatus.REWIND_STATUS_SHARD_NOT_FOUND:
        raise ShardNotFoundError(shard_id)
    if status == RewindStatus.REWIND_STATUS_OK:
        return response.rewind
    problem = {
        RewindStatus.REWIND_STATUS_NO_RECOVERY_LOG: "it has no recovery log, and so no hints",
        RewindStatus.REWIND_STATUS_BACKUP_NOT_FOUND: (
            f"it has no backup {backup}; shardctl shards hints {shard_id} shows what it has"
        ),
        RewindStatus.REWIND_STATUS_BACKUP_UNREADABLE: (
            f"backup {backup} cannot be recovered from ({response.rewind.restored.unreadable}); take another"
        ),
        RewindStatus.REWIND_STATUS_HAS_PRIMARY: (
            "it has a primary, which would soon overwrite the hints; to take that and all other replicas away in the "
            "same transaction, use --force"
        ),
        RewindStatus.REWIND_STATUS_LOG_PRUNED: (
            "the beginning of its log was pruned, so it cannot be played without hints; take a backup"
        ),
        RewindStatus.REWIND_STATUS_CHANGED: (
            "its spec, hints or assignments changed at the same time, so nothing was done; try again"
        ),
    }.get(status, RewindStatus.Name(status))
    raise RewindRefusedError(shard_id, problem)


def _accepted_reset(
    shard_id: str, journal: str, response: PlanResetSourceResponse | ResetSourceResponse
) -> SourceReset:
    status = response.status
    if status == ResetSourceStatus.RESET_SOURCE_STATUS_SHARD_NOT_FOUND:
        raise ShardNotFoundError(shard_id)
    if status == ResetSourceStatus.RESET_SOURCE_STATUS_OK:
        return response.reset
    problem = {
        ResetSourceStatus.RESET_SOURCE_STATUS_NOT_A_SOURCE: "the shard's spec names no such source",
        ResetSourceStatus.RESET_SOURCE_STATUS_JOURNAL_NOT_FOUND: (
            "the journal does not exist; apply it first, or remove it from the shard's spec"
        ),
        ResetSourceStatus.RESET_SOURCE_STATUS_HAS_PRIMARY: (
            "the shard serves, so the source holds what was read of it, or will be found not to; nothing is to be reset"
        ),
        ResetSourceStatus.RESET_SOURCE_STATUS_BEYOND_HEAD: (
            f"the offset is above the journal's write head, {response.reset.write_head}"
        ),
        ResetSourceStatus.RESET_SOURCE_STATUS_BELOW_MIN_OFFSET: (
            f"the source's min_offset in the shard's spec is {response.reset.offset}, and reading would begin there; "
            "lower it first if it is of the old journal, or reset to an offset that is not below it"
        ),
        ResetSourceStatus.RESET_SOURCE_STATUS_CHANGED: (
            "its spec or assignments changed at the same time, so nothing was done; try again"
        ),
    }.get(status, ResetSourceStatus.Name(status))
    raise SourceResetRefusedError(shard_id, journal, problem)
