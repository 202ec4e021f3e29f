"""The Elastic service: splits and merges of shards, divisions of journals, and what members ask each other for them.

SplitShard, CancelSplit     by any member: one transaction in etcd; the child's replica does the rest
MergeShards, CancelMerge    by any member: one transaction in etcd; the survivor's primary does the rest
ListSplits, ListMerges      by any member, from etcd
PrepareFork                 by the member of the primary that is to rest, for the child's or the survivor's
SplitJournal                by any member: one key in etcd; the leader's member does the rest
ListJournalSplits           by any member, from etcd
LeaveJournal                by the member of the primary that publishes, for the leader's
RollBackTransaction         by any member: one append
SourceProgress              by the member of the primary that reads, for the leader's
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog

from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.consumer.application import Application, FollowingApplication, MessageProducer
from broadsheet.consumer.elastic.family import Ownership, absorbed_by, is_fork
from broadsheet.consumer.elastic.flip import (
    HeldKey,
    Rest,
    begin_merge_txn,
    begin_txn,
    cancel_merge_txn,
    cancel_txn,
)
from broadsheet.consumer.elastic.fork import (
    ForkRecord,
    forks_prefix,
    read_forks,
)
from broadsheet.consumer.elastic.group_load import GroupSummary
from broadsheet.consumer.elastic.merge import (
    MergeRecord,
    decode_merge,
    merges_prefix,
)
from broadsheet.consumer.elastic.merge_plan import MergePlan, plan_merge
from broadsheet.consumer.elastic.progress import merge_progress, split_progress
from broadsheet.consumer.elastic.split_plan import SplitPlan, SplitWish, plan_split
from broadsheet.consumer.errors import ShardNotFoundError, SplitConflictError, SplitDelayedError
from broadsheet.consumer.recoverylog.hint_store import fetch_hints
from broadsheet.consumer.recoverylog.hints import history_of, recovery_log_of
from broadsheet.consumer.registry.key_space import (
    PRIMARY_SLOT,
    is_visible,
    process_of,
)
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.resolver.resolver import LocalMember, Peers, answer_of_peer
from broadsheet.consumer.rpc.family_guard import FamilyGuard
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.journal_messages import JournalMessages
from broadsheet.consumer.rpc.journal_splits import JournalSplits
from broadsheet.consumer.rpc.stored_shards import StoredShards
from broadsheet.consumer.rpc.transaction_rollback import TransactionRollback
from broadsheet.consumer.shard.holding import order_of
from broadsheet.consumer.shard.primary import indivisible
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.security.auth import Capability, Claims, ClientAuth, expiring
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire import elastic_pb2_grpc
from broadsheet.wire.alphabet import validate_journal, validate_journal_name
from broadsheet.wire.elastic_pb2 import (
    CancelMergeRequest,
    CancelMergeResponse,
    CancelSplitRequest,
    CancelSplitResponse,
    LeaveJournalRequest,
    LeaveJournalResponse,
    ListJournalSplitsRequest,
    ListJournalSplitsResponse,
    ListMergesRequest,
    ListMergesResponse,
    ListSplitsRequest,
    ListSplitsResponse,
    MergeShardsRequest,
    MergeShardsResponse,
    PrepareForkRequest,
    PrepareForkResponse,
    RollBackTransactionRequest,
    RollBackTransactionResponse,
    SourceProgressRequest,
    SourceProgressResponse,
    SplitJournalRequest,
    SplitJournalResponse,
    SplitShardRequest,
    SplitShardResponse,
)
from broadsheet.wire.key_range import GROUPS
from broadsheet.wire.labels import FORK_OF, ID, is_scoped, label_set, selector, value_of
from broadsheet.wire.shard_pb2 import ShardSpec
from broadsheet.wire.validation_shard import validate_shard_id

_log = structlog.get_logger()
_ATTEMPT = re.compile(r"[0-9a-f]{16}")
CATCH_UP_SECONDS = 10.0
"""Longest wait of a parent's member until it sees the fork."""

# `Any`: grpc.aio passes each servicer method its context.
Context = Any


class ElasticApi(elastic_pb2_grpc.ElasticServiceServicer):
    """The `broadsheet.v1.ElasticService` of one member."""

    def __init__(
        self,
        membership: LocalMember,
        local_shards: LocalShards,
        journals: JournalClient,
        # The store's type is known to the application only.
        application: Application[Any],
        *,
        spread: Callable[[str], Awaitable[GroupSummary]],
        clock: Clock,
    ) -> None:
        """Create the service.

        Args:
            membership: Of this process; splits are written to its etcd.
            local_shards: The shards that run here.
            journals: Tells whether the child's log is there.
            application: Whether its shards can divide keys.
            spread: Returns how a shard's measured load is spread over its groups of keys.
            clock: Time.
        """
        self._key_space: KeySpace = membership.key_space
        self._keys = membership.key_space.keys
        self._etcd: Etcd = membership.etcd
        self._local_shards = local_shards
        self._journals = journals
        self._indivisible = _why_not_split(application)
        self._unmergeable = self._indivisible or _why_not_merged(application)
        self._spread = spread
        self._stored = StoredShards(self._etcd, self._key_space, self._keys)
        self._families = FamilyGuard(membership, self._stored)
        self._journal_splits = JournalSplits(membership, local_shards, journals)
        self._transactions = TransactionRollback(
            membership, journals, JournalMessages(journals, application, clock=clock), clock=clock
        )

    async def SplitShard(  # noqa: N802 - gRPC's name
        self, request: SplitShardRequest, context: Context
    ) -> SplitShardResponse:
        """Begin a split, or return its plan."""
        validate_shard_id(request.shard, "shard")
        if request.child:
            validate_shard_id(request.child, "child")
        if request.at_group >= GROUPS:
            raise ValidationError("at_group", f"expected 1 to {GROUPS - 1}, got {request.at_group}")
        allowed = claims_of(context)
        parent, revision = await self._visible_spec(request.shard, allowed)
        if self._indivisible:
            raise ValidationError(
                "shard", f"shard {parent.id} cannot be split, because {self._indivisible}"
            )
        family = Ownership.of(parent).family
        family_revision = await self._families.seen_revision(family)
        spread = await self._spread(request.shard)
        plan = plan_split(
            parent,
            SplitWish(
                at_group=request.at_group or None,
                median_group=spread.median_group,
                child=request.child,
            ),
            ids=self._key_space.items.keys(),
            members=self._families.members_of(family),
            history=await self._history_of(parent),
        )
        if not is_visible(plan.child, allowed.selector):
            raise NotAuthorizedError(
                f"shard {plan.child.id}: the token's selector does not cover its labels"
            )
        response = _plan_answer(plan)
        response.quantile_groups.extend(spread.quantile_groups)
        if request.dry_run:
            return response
        await self._require_log(plan.child)
        # Last, because the level never falls: what is refused anyway must not raise it.
        await self._families.require_ranges()
        checkpoint = begin_txn(
            plan, self._keys, parent_revision=revision, family_revision=family_revision
        )
        result = await self._etcd.txn(checkpoint.compares, checkpoint.operations)
        if not result.succeeded:
            raise SplitConflictError(
                f"shard {parent.id}, or another of its family, changed meanwhile; nothing was changed: split again"
            )
        _log.info(
            "split.begun",
            shard=parent.id,
            child=plan.child.id,
            kept=str(plan.kept),
            given=str(plan.given),
        )
        await self._key_space.read_back(result.header.revision)
        response.revision = result.header.revision
        return response

    async def CancelSplit(  # noqa: N802 - gRPC's name
        self, request: CancelSplitRequest, context: Context
    ) -> CancelSplitResponse:
        """Give a split up, as long as the child does not serve."""
        validate_shard_id(request.child, "child")
        child, revision = await self._visible_spec(request.child, claims_of(context))
        if not is_fork(child):
            raise ValidationError(
                "child",
                f"shard {child.id} serves already, or no split is making it: nothing can be cancelled",
            )
        parent = value_of(child.labels, FORK_OF)
        checkpoint = cancel_txn(child, revision, parent, self._keys)
        result = await self._etcd.txn(checkpoint.compares, checkpoint.operations)
        if not result.succeeded:
            raise SplitConflictError(
                f"shard {child.id} changed meanwhile, and may serve by now; nothing was changed"
            )
        _log.info("split.cancelled", shard=parent, child=child.id)
        await self._key_space.read_back(result.header.revision)
        return CancelSplitResponse(revision=result.header.revision)

    async def ListSplits(  # noqa: N802 - gRPC's name
        self, request: ListSplitsRequest, context: Context
    ) -> ListSplitsResponse:
        """Return the splits that are not over, of shards that the caller may see."""
        del request
        allowed = claims_of(context).selector
        prefix = forks_prefix(self._keys.root)
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        response = ListSplitsResponse()
        for child, _, record in read_forks(found.kvs, self._keys.root):
            item = self._key_space.items.get(ItemId(child))
            spec = None if item is None else _spec_of(item.kv.value)
            if spec is None or not is_visible(spec, allowed):
                continue
            if isinstance(record, DocumentError):
                response.splits.add(child=child, reason=str(record))
                continue
            response.splits.append(_split_of(child, record))
        return response

    async def MergeShards(  # noqa: N802 - gRPC's name
        self, request: MergeShardsRequest, context: Context
    ) -> MergeShardsResponse:
        """Begin a merge, or return its plan."""
        validate_shard_id(request.shard, "shard")
        validate_shard_id(request.other, "other")
        if request.survivor:
            validate_shard_id(request.survivor, "survivor")
        allowed = claims_of(context)
        first, first_revision = await self._visible_spec(request.shard, allowed)
        second, second_revision = await self._visible_spec(request.other, allowed)
        if self._unmergeable:
            raise ValidationError(
                "shard", f"shard {first.id} cannot be merged, because {self._unmergeable}"
            )
        family = Ownership.of(first).family
        # Before the splits that are under way are read: one that begins, or is committed, meanwhile changes it.
        family_revision = await self._families.seen_revision(family)
        plan = plan_merge(
            first,
            second,
            survivor=request.survivor,
            others=self._families.members_of(family),
            splitting=await self._splitting(),
        )
        response = _merge_plan_answer(plan)
        if request.dry_run:
            return response
        await self._families.require_ranges()
        revisions = {first.id: first_revision, second.id: second_revision}
        checkpoint = begin_merge_txn(
            plan,
            self._keys,
            survivor_revision=revisions[plan.survivor.id],
            absorbed_revision=revisions[plan.absorbed.id],
            family_revision=family_revision,
        )
        result = await self._etcd.txn(checkpoint.compares, checkpoint.operations)
        if not result.succeeded:
            raise SplitConflictError(
                f"shard {first.id}, {second.id}, or another of their family, changed meanwhile; nothing was changed: "
                "merge again"
            )
        _log.info(
            "merge.begun", shard=plan.survivor.id, absorbed=plan.absorbed.id, owned=str(plan.owned)
        )
        await self._key_space.read_back(result.header.revision)
        response.revision = result.header.revision
        return response

    async def CancelMerge(  # noqa: N802 - gRPC's name
        self, request: CancelMergeRequest, context: Context
    ) -> CancelMergeResponse:
        """Give a merge up, as long as the absorbed shard serves."""
        validate_shard_id(request.survivor, "survivor")
        survivor, revision = await self._visible_spec(request.survivor, claims_of(context))
        if not absorbed_by(survivor):
            raise ValidationError(
                "survivor",
                f"shard {survivor.id} takes over no other one, or has done so: nothing can be cancelled",
            )
        checkpoint = cancel_merge_txn(survivor, revision, self._keys)
        result = await self._etcd.txn(checkpoint.compares, checkpoint.operations)
        if not result.succeeded:
            raise SplitConflictError(
                f"shard {survivor.id} changed meanwhile, and may have all keys by now; nothing was changed"
            )
        _log.info("merge.cancelled", shard=survivor.id, absorbed=absorbed_by(survivor))
        await self._key_space.read_back(result.header.revision)
        return CancelMergeResponse(revision=result.header.revision)

    async def ListMerges(  # noqa: N802 - gRPC's name
        self, request: ListMergesRequest, context: Context
    ) -> ListMergesResponse:
        """Return the merges that are not over, of shards that the caller may see."""
        del request
        allowed = claims_of(context).selector
        prefix = merges_prefix(self._keys.root)
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        response = ListMergesResponse()
        for kv in found.kvs:
            survivor = kv.key[len(prefix) :].decode(errors="replace")
            item = self._key_space.items.get(ItemId(survivor))
            spec = None if item is None else _spec_of(item.kv.value)
            if spec is None or not is_visible(spec, allowed):
                continue
            try:
                record = decode_merge(kv.value)
            except DocumentError as error:
                response.merges.add(survivor=survivor, reason=str(error))
                continue
            response.merges.append(_merge_of(survivor, record))
        return response

    async def SplitJournal(  # noqa: N802 - gRPC's name
        self, request: SplitJournalRequest, context: Context
    ) -> SplitJournalResponse:
        """Begin to divide a journal, or return the plan."""
        validate_journal_name(request.journal)
        if request.at_group >= GROUPS:
            raise ValidationError("at_group", f"expected 1 to {GROUPS - 1}, got {request.at_group}")
        if is_scoped(claims_of(context).selector):
            raise NotAuthorizedError(
                f"journal {request.journal}: it is divided for all shards, and the token names some"
            )
        return await self._journal_splits.begin(request)

    async def ListJournalSplits(  # noqa: N802 - gRPC's name
        self, request: ListJournalSplitsRequest, context: Context
    ) -> ListJournalSplitsResponse:
        """Return the divisions of journals that are not over."""
        del request
        if is_scoped(claims_of(context).selector):
            return ListJournalSplitsResponse()
        return await self._journal_splits.list()

    async def LeaveJournal(  # noqa: N802 - gRPC's name
        self, request: LeaveJournalRequest, context: Context
    ) -> LeaveJournalResponse:
        """Have a primary here publish into the parts of a divided journal, and settle what it published before."""
        validate_shard_id(request.shard, "shard")
        validate_journal_name(request.journal)
        await self._visible_spec(request.shard, claims_of(context))
        return await self._journal_splits.leave(request.shard, request.journal)

    async def RollBackTransaction(  # noqa: N802 - gRPC's name
        self, request: RollBackTransactionRequest, context: Context
    ) -> RollBackTransactionResponse:
        """Roll back a transaction that a dead program left open, or tell it."""
        validate_journal_name(request.journal)
        if not 0 < request.producer < 1 << 48:
            raise ValidationError(
                "producer", f"expected a producer's 48 bits, not 0, got {request.producer}"
            )
        if is_scoped(claims_of(context).selector):
            raise NotAuthorizedError(
                f"journal {request.journal}: all shards read it, and the token names some"
            )
        return await self._transactions.roll_back(request)

    async def SourceProgress(  # noqa: N802 - gRPC's name
        self, request: SourceProgressRequest, context: Context
    ) -> SourceProgressResponse:
        """Tell how far the committed checkpoint of a primary here has read a source."""
        validate_shard_id(request.shard, "shard")
        validate_journal(request.source, "source")
        await self._visible_spec(request.shard, claims_of(context))
        return self._journal_splits.source_progress(request.shard, request.source)

    async def _splitting(self) -> frozenset[str]:
        """Return the shards with a part in a split that is not over."""
        prefix = forks_prefix(self._keys.root)
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        splitting = set[str]()
        for child, _, record in read_forks(found.kvs, self._keys.root):
            item = self._key_space.items.get(ItemId(child))
            # A record of a family that was deleted meanwhile does not count.
            if item is None:
                continue
            splitting.add(child)
            if isinstance(record, DocumentError):
                # It does not say which shard is the parent: one of the family.
                family = Ownership.of(_spec_of(item.kv.value)).family
                splitting.update(each.id for each in self._families.members_of(family))
            else:
                splitting.add(record.parent)
        return frozenset(splitting)

    async def PrepareFork(  # noqa: N802 - gRPC's name
        self, request: PrepareForkRequest, context: Context
    ) -> PrepareForkResponse:
        """Have the parent's primary rest."""
        validate_shard_id(request.parent, "parent")
        validate_shard_id(request.child, "child")
        if not _ATTEMPT.fullmatch(request.attempt):
            raise ValidationError(
                "attempt", f"expected 16 hexadecimal digits, got {request.attempt!r:.40}"
            )
        await self._visible_spec(request.parent, claims_of(context))
        # The parent's labels are as old as the child's spec: it must see them before it relies on them.
        async with asyncio.timeout(CATCH_UP_SECONDS):
            await self._key_space.read_back(request.child_revision)
        item = self._key_space.items.get(ItemId(request.child))
        child = ShardSpec() if item is None else _spec_of(item.kv.value)
        fqn = self._keys.item(ItemId(request.child)).decode()
        order = order_of(request, child, fqn)
        shard = self._local_shards.shards.get(ItemId(request.parent))
        if shard is None or not shard.primary:
            raise SplitDelayedError(f"shard {request.parent} has no primary here")
        held = await shard.prepare_fork(order)
        return PrepareForkResponse(
            assignment_key=held.assignment.key,
            assignment_create_revision=held.assignment.create_revision,
            read_through=held.read_through,
        )

    async def _visible_spec(self, shard_id: str, allowed: Claims) -> tuple[ShardSpec, int]:
        found = (await self._etcd.get_range(self._keys.item(ItemId(shard_id)))).kvs
        spec = _spec_of(found[0].value) if found else None
        if spec is None or not is_visible(spec, allowed.selector):
            raise ShardNotFoundError(shard_id)
        return spec, found[0].mod_revision

    async def _history_of(self, parent: ShardSpec) -> frozenset[str]:
        hints = (await fetch_hints(self._etcd, parent)).primary
        return frozenset() if hints is None else history_of(hints)

    async def _require_log(self, child: ShardSpec) -> None:
        log = recovery_log_of(child)
        try:
            await self._journals.get(log)
        except JournalNotFoundError as error:
            raise ValidationError(
                "child", f"its recovery log {log} does not exist: create that journal first"
            ) from error


class PeerParentCaller:
    """Reaches the primary of a parent; implements `broadsheet.consumer.shard.environment.ParentCaller`."""

    def __init__(self, key_space: KeySpace, peers: Peers, auth: ClientAuth) -> None:
        """Keep the arguments; no call is made yet.

        Args:
            key_space: Says which member is a shard's primary.
            peers: Channels to members.
            auth: Signs requests.
        """
        self._key_space = key_space
        self._peers = peers
        self._auth = auth

    async def prepare(self, request: PrepareForkRequest, *, timeout_seconds: float) -> Rest:
        """Have it rest; return its assignment, and where it stands.

        Raises:
            SplitDelayedError: it does not rest now, or has no primary.
            EndpointError: its member cannot be reached.
        """
        response = await self._answer_of(
            request.parent,
            lambda stub: stub.PrepareFork,
            request,
            allowed=Capability.APPLY,
            refused="does not rest",
            timeout_seconds=timeout_seconds,
        )
        return Rest(
            assignment=HeldKey(response.assignment_key, response.assignment_create_revision),
            read_through=dict(response.read_through),
        )

    async def leave(self, shard_id: str, journal: str, *, timeout_seconds: float) -> HeldKey:
        """Have a shard's primary leave a divided journal; return its assignment, by which that holds.

        Raises:
            SplitDelayedError: it does not now, or has no primary.
            EndpointError: its member cannot be reached.
        """
        response = await self._answer_of(
            shard_id,
            lambda stub: stub.LeaveJournal,
            LeaveJournalRequest(shard=shard_id, journal=journal),
            allowed=Capability.APPLY,
            refused=f"did not leave {journal}",
            timeout_seconds=timeout_seconds,
        )
        return HeldKey(response.assignment_key, response.assignment_create_revision)

    async def committed_through(self, shard_id: str, source: str, *, timeout_seconds: float) -> int:
        """Return through where the committed checkpoint of a shard's primary has read a source, bytes.

        Raises:
            SplitDelayedError: it does not serve now, or has no primary.
            EndpointError: its member cannot be reached.
        """
        response: SourceProgressResponse = await self._answer_of(
            shard_id,
            lambda stub: stub.SourceProgress,
            SourceProgressRequest(shard=shard_id, source=source),
            allowed=Capability.READ,
            refused=f"does not tell how far it has read {source}",
            timeout_seconds=timeout_seconds,
        )
        return response.read_through

    # `Any`: grpc's stubs do not tell the types of their calls.
    async def _answer_of(
        self,
        shard_id: str,
        call_of: Callable[[Any], Any],
        request: object,
        *,
        allowed: Capability,
        refused: str,
        timeout_seconds: float,
    ) -> Any:
        """Ask the member of a shard's primary, which checks claims for that shard alone."""
        endpoint = self._endpoint_of(shard_id)
        claims = expiring(
            allowed, selector(label_set((ID, shard_id))), life_seconds=timeout_seconds
        )
        call = call_of(elastic_pb2_grpc.ElasticServiceStub(self._peers.channel_at(endpoint)))
        metadata = self._auth.metadata(claims)
        try:
            return await answer_of_peer(
                call(request, timeout=timeout_seconds, metadata=metadata), endpoint
            )
        except grpc.aio.AioRpcError as error:
            details = error.details() or error.code().name
            raise SplitDelayedError(f"shard {shard_id} {refused}: {details}") from error

    def _endpoint_of(self, parent: str) -> str:
        for assignment in self._key_space.assignments_of(ItemId(parent)):
            if assignment.slot == PRIMARY_SLOT:
                member = self._key_space.members.get(assignment.member_id)
                if member is not None:
                    return process_of(member).process_spec.endpoint
        raise EndpointError(parent, "it has no primary now")


def _why_not_split(application: object) -> str:
    reason = indivisible(application)
    if not reason and isinstance(application, MessageProducer):
        return "its messages come from no journals, and other sources are read by one shard"
    return reason


def _why_not_merged(application: object) -> str:
    if isinstance(application, FollowingApplication):
        return ""
    return (
        f"{type(application).__name__} keeps no index of another shard's log that can be followed "
        "(`FollowingApplication`)"
    )


def _spec_of(value: bytes) -> ShardSpec:
    return ShardSpec.FromString(value)


def _plan_answer(plan: SplitPlan) -> SplitShardResponse:
    return SplitShardResponse(
        child=plan.child,
        kept_begin=plan.kept.begin,
        kept_end=plan.kept.end,
        given_begin=plan.given.begin,
        given_end=plan.given.end,
    )


def _split_of(child: str, record: ForkRecord) -> ListSplitsResponse.Split:
    return ListSplitsResponse.Split(
        parent=record.parent,
        child=child,
        given_begin=record.begin,
        given_end=record.end,
        progress=split_progress(child, record),
        reason=record.reason,
    )


def _merge_plan_answer(plan: MergePlan) -> MergeShardsResponse:
    return MergeShardsResponse(
        survivor=plan.survivor.id,
        absorbed=plan.absorbed.id,
        given_begin=plan.given.begin,
        given_end=plan.given.end,
        owned_begin=plan.owned.begin,
        owned_end=plan.owned.end,
    )


def _merge_of(survivor: str, record: MergeRecord) -> ListMergesResponse.Merge:
    return ListMergesResponse.Merge(
        survivor=survivor,
        absorbed=record.absorbed,
        given_begin=record.begin,
        given_end=record.end,
        progress=merge_progress(survivor, record),
        reason=record.reason,
    )
