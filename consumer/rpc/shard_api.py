"""The Shard service: Stat, List, Apply, GetHints, Unassign.

Every request is validated first. A request that can be answered gets a `Status` and a header; an exception becomes a
gRPC status in `broadsheet.consumer.rpc.grpc_status`.

    Stat                     by the shard's primary; proxied once, with claims no wider than the request
    List                     by any member, from its mirror
    Apply, Unassign          by any member: one transaction, all or nothing, read back before the answer
    GetHints                 by any member, from etcd

Source: gazette/core consumer/shard_api.go (handlers); validation of all requests, the authorized hop and two-sided
authorization are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from broadsheet.allocator.errors import TxnConflictError
from broadsheet.allocator.etcd.txn_batch import apply_checkpoints
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.leader.move_records import Cause
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.consumer.recoverylog.hint_store import fetch_hints
from broadsheet.consumer.recoverylog.hints import encode_hints
from broadsheet.consumer.recoverylog.log_claims import check_logs
from broadsheet.consumer.registry.key_space import is_visible, spec_of
from broadsheet.consumer.registry.move_messages import UNASSIGNED
from broadsheet.consumer.resolver.resolver import LocalMember, ShardResolution, ShardResolver
from broadsheet.consumer.rpc.family_guard import FamilyGuard
from broadsheet.consumer.rpc.grpc_status import CAUSE_METADATA, cause_metadata
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.primary_hop import PrimaryHop
from broadsheet.consumer.rpc.shard_changes import (
    certainly_writes,
    plan_apply,
    plan_unassign,
)
from broadsheet.consumer.rpc.shard_listing import list_shards
from broadsheet.consumer.rpc.stored_shards import StoredShards
from broadsheet.runtime.errors import BoundExceededError
from broadsheet.security.actor import actor_of
from broadsheet.security.auth import ClientAuth
from broadsheet.wire import shard_pb2_grpc
from broadsheet.wire.journal_pb2 import Header
from broadsheet.wire.labels import is_scoped
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import (
    ApplyRequest,
    ApplyResponse,
    GetHintsRequest,
    GetHintsResponse,
    ListRequest,
    ListResponse,
    ShardSpec,
    StatRequest,
    StatResponse,
    Status,
    UnassignRequest,
    UnassignResponse,
)
from broadsheet.wire.validation_shard import (
    validate_hints_request,
    validate_list_request,
    validate_shard_apply_request,
    validate_stat_request,
    validate_unassign_request,
)

_log = structlog.get_logger()

READ_BACK_SECONDS_MAX = 30.0
"""Longest wait until the watch shows our own write; it is durable already, so the response stays OK."""

# `Any`: grpc.aio passes each servicer method its context; requests and responses vary by method.
Context = Any


class ShardApi(shard_pb2_grpc.ShardServicer):
    """The `consumer.Shard` service of one member."""

    def __init__(
        self,
        resolver: ShardResolver,
        membership: LocalMember,
        *,
        move_log: MoveLog,
        auth: ClientAuth,
    ) -> None:
        """Create the service.

        Args:
            resolver: Finds and lends out shards.
            membership: Of this process; Apply and Unassign write to its etcd, and GetHints reads there.
            move_log: Log of moves, which records each Unassign.
            auth: Signs the one hop of a proxied Stat.
        """
        self._resolver = resolver
        self._membership = membership
        self._key_space = membership.key_space
        self._etcd = membership.etcd
        self._keys = membership.key_space.keys
        self._stored = StoredShards(self._etcd, self._key_space, self._keys)
        self._families = FamilyGuard(membership, self._stored)
        self._move_log = move_log
        self._hop = PrimaryHop(resolver, auth)

    async def Stat(self, request: StatRequest, context: Context) -> StatResponse:  # noqa: N802 - gRPC's name
        """Return the shard's progress, once it has read through the request's offsets."""
        validate_stat_request(request)
        proxied = request.HasField("header")
        async with await self._resolver.resolve(
            request.shard,
            claims=claims_of(context),
            # A proxied request is not forwarded a second time.
            may_proxy=not proxied,
            proxy_header=request.header if proxied else None,
            read_through=request.read_through,
        ) as resolution:
            if resolution.status == Status.OK and resolution.shard is None:
                return await self._forward(request, resolution, context)
            response = StatResponse(status=resolution.status, header=resolution.header)
            if resolution.shard is not None:
                read_through, publish_at = resolution.shard.progress()
                response.read_through.update(read_through)
                response.publish_at.update(publish_at)
            elif resolution.cause:
                context.set_trailing_metadata(cause_metadata(resolution.cause))
            return response

    async def List(self, request: ListRequest, context: Context) -> ListResponse:  # noqa: N802 - gRPC's name
        """List specs, routes and statuses of the shards that the request and the caller's claims select."""
        validate_list_request(request)
        # From before the rows, which may be newer: who watches from its revision misses nothing.
        header = self._header()
        response = await list_shards(
            self._key_space, wanted=request.selector, allowed=claims_of(context).selector
        )
        response.status = Status.OK
        response.header.CopyFrom(header)
        return response

    async def Apply(self, request: ApplyRequest, context: Context) -> ApplyResponse:  # noqa: N802 - gRPC's name
        """Create, update and delete shards: all of the request's changes, or none."""
        validate_shard_apply_request(request)
        _require_batch(len(request.changes), field_name="changes")
        allowed = claims_of(context).selector
        restricted = is_scoped(allowed)
        # Claims that cover every shard need no specs to judge by.
        stored = await self._stored.specs(_ids(request)) if restricted else None
        checkpoint = plan_apply(
            request.changes,
            self._keys,
            allowed=allowed,
            stored=stored or {},
            encode_hints=encode_hints,
        )
        # The deletion of a hidden shard has compares alone.
        if not (checkpoint.operations or checkpoint.compares):
            return ApplyResponse(status=Status.OK, header=self._header())
        # After the plan, which authorizes: a refusal names other shards.
        checkpoint = await self._families.guarded(request.changes, checkpoint, allowed=allowed)
        logs = await self._stored.logs(request.changes, stored)
        if restricted:
            # Of a hidden shard, nothing is told; its transaction fails.
            logs = {
                shard_id: held
                for shard_id, held in logs.items()
                if held.spec is None or is_visible(held.spec, allowed)
            }
        check_logs(request.changes, root=self._keys.root, stored=logs, spec_of=self._spec_or_none)
        result = await self._etcd.txn(checkpoint.compares, checkpoint.operations)
        header = self._header(revision=result.header.revision)
        if not result.succeeded:
            return ApplyResponse(status=Status.ETCD_TRANSACTION_FAILED, header=header)
        # A transaction that may write nothing has a revision that the watch may never show.
        if certainly_writes(request.changes):
            await self._read_back(result.header.revision)
        else:
            seen = [
                change
                for change in request.changes
                if not stored
                or change.delete not in stored
                or is_visible(stored[change.delete].spec, allowed)
            ]
            await self._await_deletion(seen, result.header.revision)
        return ApplyResponse(status=Status.OK, header=header)

    async def GetHints(self, request: GetHintsRequest, context: Context) -> GetHintsResponse:  # noqa: N802 - gRPC's name
        """Fetch the recovery hints of a shard; a shard without a recovery log has none."""
        validate_hints_request(request)
        item = self._key_space.items.get(ItemId(request.shard))
        if item is None or not is_visible(spec_of(item), claims_of(context).selector):
            return GetHintsResponse(status=Status.SHARD_NOT_FOUND, header=self._header())
        hints = await fetch_hints(self._etcd, spec_of(item))
        return GetHintsResponse(
            status=Status.OK,
            header=self._header(),
            primary_hints=_hints_answer(hints.primary),
            backup_hints=[_hints_answer(backup) for backup in hints.backups],
        )

    async def Unassign(self, request: UnassignRequest, context: Context) -> UnassignResponse:  # noqa: N802 - gRPC's name
        """Remove replicas from their members, so that the allocator creates new ones: a restart."""
        validate_unassign_request(request)
        checkpoint, affected = plan_unassign(
            request.shards,
            self._key_space,
            self._keys,
            allowed=claims_of(context).selector,
            only_failed=request.only_failed,
        )
        if request.dry_run or not checkpoint.operations:
            return UnassignResponse(status=Status.OK, shards=affected)
        actor = actor_of(context.invocation_metadata() or (), context.peer())
        report = await apply_checkpoints(
            self._etcd,
            (checkpoint,),
            note=partial(
                self._move_log.note,
                reasons={checkpoint.subject: UNASSIGNED},
                cause=Cause(actor=actor),
            ),
        )
        for culprit in report.culprits:
            if not isinstance(culprit.cause, TxnConflictError):
                raise culprit.cause
            return UnassignResponse(status=Status.ETCD_TRANSACTION_FAILED)
        await self._read_back(report.revision)
        return UnassignResponse(status=Status.OK, shards=affected)

    async def _forward(
        self, request: StatRequest, resolution: ShardResolution, context: Context
    ) -> StatResponse:
        response, call = await self._hop.perform(
            shard_pb2_grpc.ShardStub, "Stat", request, resolution.header, context
        )
        assert isinstance(response, StatResponse), "a stub returns its method's response"
        cause = [(k, v) for k, v in await call.trailing_metadata() or () if k == CAUSE_METADATA]
        context.set_trailing_metadata(tuple(cause))
        return response

    def _spec_or_none(self, shard_id: str) -> ShardSpec | None:
        item = self._key_space.items.get(ItemId(shard_id))
        return None if item is None else spec_of(item)

    async def _read_back(self, revision: int) -> None:
        try:
            async with asyncio.timeout(READ_BACK_SECONDS_MAX):
                await self._key_space.read_back(revision)
        except TimeoutError:
            _log.warning("shard_api.read_back_timeout", revision=revision)

    async def _await_deletion(self, changes: Sequence[ApplyRequest.Change], revision: int) -> None:
        """Wait until the mirror lacks what was deleted.

        An unconditional delete of absent keys writes nothing, so its revision may never come by the watch.
        """
        deleted = [ItemId(change.delete) for change in changes]
        try:
            async with asyncio.timeout(READ_BACK_SECONDS_MAX):
                while any(self._has_older(item_id, revision) for item_id in deleted):
                    await self._key_space.wait_for_update()
        except TimeoutError:
            _log.warning("shard_api.read_back_timeout", revision=revision)

    def _has_older(self, item_id: ItemId, revision: int) -> bool:
        item = self._key_space.items.get(item_id)
        return item is not None and item.kv.mod_revision <= revision

    def _header(self, *, revision: int | None = None) -> Header:
        header = self._membership.unrouted_header()
        if revision is not None:
            header.etcd.revision = revision
        return header


def _ids(request: ApplyRequest) -> list[str]:
    return [change.upsert.id or change.delete for change in request.changes]


def _require_batch(count: int, *, field_name: str) -> None:
    # Checked before anything is read; the plan checks the exact bound later.
    if count > TXN_OPERATIONS_MAX:
        raise BoundExceededError(
            f"{field_name}: expected at most {TXN_OPERATIONS_MAX} a request, got {count}; "
            "send several requests (shardctl's --max-txn-size does it)"
        )


def _hints_answer(hints: FSMHints | None) -> GetHintsResponse.ResponseHints:
    return GetHintsResponse.ResponseHints(hints=hints)
