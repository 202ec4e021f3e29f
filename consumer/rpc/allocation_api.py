"""The Allocation service: Plan, ApplyPlan, Explain, ListMoves, ListOperations, ListMembers, CordonMembers.

Only the leader knows the current plan, the waiting changes, and the changes that time will bring; so a member that does
not lead forwards the request, once. The leader that made a plan keeps it. Applying a plan is one transaction, which
compares the leader's epoch and everything that it writes, and an order to adopt that plan and no other.

Invariants: plans are applied one after another, each once the key space shows the one before it. Long computations run
in a dedicated thread, one inquiry at a time, so that no number of them delays the leader's decisions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.leadership import Leadership
from broadsheet.allocator.leader.loop import AllocationLoop
from broadsheet.allocator.leader.move_records import Cause
from broadsheet.allocator.leader.state import LeaderState
from broadsheet.allocator.model import Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import TXN_OPERATIONS_MAX, Compare, Delete, Operation, Put
from broadsheet.allocator.placement.plan import Plan, PlanRefused
from broadsheet.allocator.whatif.explain import explain
from broadsheet.allocator.whatif.leader_snapshot import LeaderSnapshot
from broadsheet.allocator.whatif.moves import moves_of
from broadsheet.allocator.whatif.preview import PlanPreview, preview_plan
from broadsheet.consumer.errors import ResolverStoppedError
from broadsheet.consumer.registry.key_space import is_visible, process_of, shard_of, spec_of
from broadsheet.consumer.resolver.resolver import LocalMember, Peers, answer_of_peer
from broadsheet.consumer.rpc.allocation_messages import (
    MoveListing,
    explain_response,
    hypothesis_of,
    plan_response,
)
from broadsheet.consumer.rpc.cordon import Cordon
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.operations import operations_response
from broadsheet.consumer.rpc.plan_cache import CachedPlan, PlanCache
from broadsheet.consumer.rpc.shard_changes import UNCONDITIONAL
from broadsheet.runtime.errors import BoundExceededError, EndpointError
from broadsheet.security.actor import ACTOR, FORWARDED, actor_of, is_forwarded
from broadsheet.security.auth import Capability, Claims, ClientAuth, expiring
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire import allocation_pb2_grpc
from broadsheet.wire.allocation_pb2 import (
    AllocationStatus as Status,
    ApplyPlanRequest,
    ApplyPlanResponse,
    CordonMembersRequest,
    CordonMembersResponse,
    ExplainRequest,
    ExplainResponse,
    ListMembersRequest,
    ListMembersResponse,
    ListMovesRequest,
    ListMovesResponse,
    ListOperationsRequest,
    ListOperationsResponse,
    PlanRequest,
    PlanResponse,
)
from broadsheet.wire.labels import is_scoped
from broadsheet.wire.shard_pb2 import ApplyRequest, ConsumerSpec
from broadsheet.wire.validation_shard import validate_shard_apply_request

HOP_SECONDS_MAX = 60.0
"""Deadline of a forwarded request, if its caller set none."""
ADOPTION_SECONDS_MAX = 30.0
"""Longest wait for the allocation loop to adopt an ordered plan."""
CATCH_UP_SECONDS_MAX = 5.0
"""Longest wait until the mirror shows the writes of others, before a plan is judged by it."""
LEADER_SECONDS_MAX = 2.0
"""Longest wait for a leader to be known."""
LEADER_LOOK_SECONDS = 0.05
"""Interval between two checks for a leader."""

_log = structlog.get_logger()

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Message)

# `Any`: grpc.aio passes each servicer method its context.
Context = Any


class MemberForwarder:
    """Forwards requests from this member to another, once each, with a token for just the request."""

    def __init__(self, membership: LocalMember, peers: Peers, auth: ClientAuth) -> None:
        """Create the forwarder.

        Args:
            membership: Of this process.
            peers: Channels to other members.
            auth: Signs forwarded requests.
        """
        self.membership = membership
        self._peers = peers
        self._auth = auth

    async def forward(
        self,
        member: Member,
        method_of: Callable[[grpc.aio.Channel], Any],
        request: Message,
        context: Context,
        capability: Capability,
    ) -> Any:
        """Forward a request to a member, once.

        Raises:
            EndpointError: the member could not be reached.
        """
        endpoint = process_of(member).process_spec.endpoint
        remaining = context.time_remaining()
        timeout_seconds = HOP_SECONDS_MAX if remaining is None else min(remaining, HOP_SECONDS_MAX)
        caller = claims_of(context)
        claims = replace(
            expiring(
                capability, caller.selector, life_seconds=timeout_seconds, subject=caller.subject
            ),
            is_hop=True,
        )
        try:
            call = method_of(self._peers.channel_at(endpoint))(
                request,
                timeout=timeout_seconds,
                metadata=(
                    (FORWARDED, "1"),
                    (ACTOR, _actor_of(context)),
                    *self._auth.metadata(claims),
                ),
            )
            return await answer_of_peer(call, endpoint)
        except grpc.aio.AioRpcError as error:
            # The member could not be reached, which is not the caller's fault; other statuses are its answer.
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise EndpointError(endpoint, error.details() or "") from error
            raise


class LeaderForwarder:
    """Forwards requests from this member to the leader, once each."""

    def __init__(self, leadership: Leadership, members: MemberForwarder) -> None:
        """Create the forwarder.

        Args:
            leadership: Names the leader.
            members: Forwards to the member that leads.
        """
        self._leadership = leadership
        self._membership = members.membership
        self._members = members

    async def forward(
        self,
        method_of: Callable[[grpc.aio.Channel], Any],
        request: Message,
        context: Context,
        capability: Capability,
    ) -> Any:
        """Forward a request to the leader, once."""
        leader = await self._other_leader(context)
        if leader is None:
            raise ResolverStoppedError("no leader is known yet: try again in a moment")
        member = self._membership.key_space.members.get(leader)
        if member is None:
            raise ResolverStoppedError(f"the leader {leader} is gone: try again in a moment")
        return await self._members.forward(member, method_of, request, context, capability)

    async def _other_leader(self, context: Context) -> MemberId | None:
        """Return the leader, if it is another member; wait a moment if none is known yet."""
        # The other member took us for the leader. A second hop could go in a circle, so the caller must try again.
        if was_forwarded(context):
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(LEADER_SECONDS_MAX):
                # Polled, because no event signals a new leader; the wait is rare, and short.
                while self._leadership.leader_id in (None, self._membership.member_id):  # noqa: ASYNC110
                    await asyncio.sleep(LEADER_LOOK_SECONDS)
                return self._leadership.leader_id
        return None


class AllocationApi(allocation_pb2_grpc.AllocationServiceServicer):
    """The `broadsheet.v1.AllocationService` of one member."""

    def __init__(
        self,
        allocation: AllocationLoop,
        forwarder: LeaderForwarder,
        cordon: Cordon,
        membership: LocalMember,
        *,
        hot_standbys_max: int,
    ) -> None:
        """Create the service.

        Args:
            allocation: Holds the leader's state, if we lead.
            forwarder: Forwards requests to the leader, if we do not.
            cordon: Lists and cordons members.
            membership: Of this process.
            hot_standbys_max: Bound on every shard's standbys.
        """
        self._allocation = allocation
        self._forwarder = forwarder
        self._cordon = cordon
        self._key_space = membership.key_space
        self._etcd = membership.etcd
        self._member_id = membership.member_id
        self._hot_standbys_max = hot_standbys_max
        self._plans = PlanCache()
        self._applying = asyncio.Lock()
        self._inquiring = asyncio.Lock()
        self._moves = MoveListing(allocation.move_log, membership.key_space)
        self._inquiries = ThreadPoolExecutor(1, thread_name_prefix="allocation-inquiry")

    async def Plan(self, request: PlanRequest, context: Context) -> PlanResponse:  # noqa: N802 - gRPC's name
        """Return the moves that a change would cause; change nothing."""
        _require_unscoped(claims_of(context))
        _validate_plan_request(request)
        if self._allocation.leader_state is None:
            stub = allocation_pb2_grpc.AllocationServiceStub
            plan: PlanResponse = await self._forwarder.forward(
                lambda channel: stub(channel).Plan, request, context, Capability.LIST
            )
            return plan
        async with self._inquiring:
            proposal = await self._proposal(self._leader_snapshot(), request)
        self._plans.keep(CachedPlan.of(proposal, request), basis=self._allocation.basis())
        return plan_response(proposal, leader=self._member_id)

    async def ApplyPlan(self, request: ApplyPlanRequest, context: Context) -> ApplyPlanResponse:  # noqa: N802 - gRPC's name
        """Apply a plan unchanged, or refuse."""
        _require_unscoped(claims_of(context))
        if self._allocation.leader_state is None:
            stub = allocation_pb2_grpc.AllocationServiceStub
            applied: ApplyPlanResponse = await self._forwarder.forward(
                lambda channel: stub(channel).ApplyPlan, request, context, Capability.APPLY
            )
            return applied
        cause = Cause(plan_id=request.plan_id, actor=_actor_of(context))
        async with self._applying:
            return await self._apply(cause)

    async def ListMoves(self, request: ListMovesRequest, context: Context) -> ListMovesResponse:  # noqa: N802 - gRPC's name
        """List past moves of replicas, a page at a time."""
        return await self._moves.page(request, claims_of(context))

    async def ListMembers(  # noqa: N802 - gRPC's name
        self, request: ListMembersRequest, context: Context
    ) -> ListMembersResponse:
        """List the members and what each holds."""
        del request
        _require_unscoped(claims_of(context))
        return await self._cordon.members()

    async def CordonMembers(  # noqa: N802 - gRPC's name
        self, request: CordonMembersRequest, context: Context
    ) -> CordonMembersResponse:
        """Cordon or uncordon members: a cordoned member gets no new replicas."""
        _require_unscoped(claims_of(context))
        return await self._cordon.mark(request, actor=_actor_of(context))

    async def ListOperations(  # noqa: N802 - gRPC's name
        self, request: ListOperationsRequest, context: Context
    ) -> ListOperationsResponse:
        """List the drains and moves that are under way, as the leader knows them."""
        _require_unscoped(claims_of(context))
        if self._allocation.leader_state is None:
            stub = allocation_pb2_grpc.AllocationServiceStub
            listed: ListOperationsResponse = await self._forwarder.forward(
                lambda channel: stub(channel).ListOperations, request, context, Capability.LIST
            )
            return listed
        async with self._inquiring:
            leader = self._leader_snapshot()
            moves = await self._inquire(lambda _: moves_of(leader))
        return operations_response(
            moves, self._cordon.drains.progress(), revision=leader.snapshot.revision
        )

    async def Explain(self, request: ExplainRequest, context: Context) -> ExplainResponse:  # noqa: N802 - gRPC's name
        """Explain the placement of a shard, and what it waits for."""
        item = self._key_space.items.get(ItemId(request.shard))
        if item is None or not is_visible(spec_of(item), claims_of(context).selector):
            return ExplainResponse(status=Status.ALLOCATION_STATUS_SHARD_NOT_FOUND)
        if self._allocation.leader_state is None:
            stub = allocation_pb2_grpc.AllocationServiceStub
            explained: ExplainResponse = await self._forwarder.forward(
                lambda channel: stub(channel).Explain, request, context, Capability.LIST
            )
            return explained
        async with self._inquiring:
            leader = self._leader_snapshot()
            explanation = await self._inquire(lambda _: explain(leader, ItemId(request.shard)))
        if explanation is None:
            return ExplainResponse(status=Status.ALLOCATION_STATUS_SHARD_NOT_FOUND)
        explained = explain_response(explanation)
        if refused := shard_of(item).standbys_refused:
            explained.notes.append(refused)
        return explained

    def _leader_snapshot(self) -> LeaderSnapshot:
        leader = self._allocation.snapshot()
        if leader is None:
            raise ResolverStoppedError("leadership was lost meanwhile: try again in a moment")
        return leader

    async def _proposal(self, leader: LeaderSnapshot, request: PlanRequest) -> PlanPreview:
        hypothesis = hypothesis_of(
            request,
            keys=self._key_space.keys,
            members=leader.snapshot.members,
            items=leader.snapshot.items,
            hot_standbys_max=self._hot_standbys_max,
        )
        proposal = await self._inquire(
            lambda is_wanted: preview_plan(leader, hypothesis, is_wanted=is_wanted)
        )
        if isinstance(proposal, PlanRefused):
            broken = "; ".join(map(str, proposal.violations)) or str(proposal.error)
            raise AssertionError(f"the solver's answer breaks a rule: {broken}")
        return proposal

    async def _inquire(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Run a long computation in the thread of inquiries; it can ask whether its caller still waits."""
        gone = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._inquiries, lambda: work(lambda: not gone.is_set())
            )
        # A thread cannot be cancelled, so the work polls whether its caller is gone.
        finally:
            gone.set()

    async def _apply(self, cause: Cause) -> ApplyPlanResponse:
        plan_id = cause.plan_id
        if plan_id not in self._plans:
            return ApplyPlanResponse(status=Status.ALLOCATION_STATUS_PLAN_NOT_FOUND)
        is_newest = await self._key_space.catch_up(timeout_seconds=CATCH_UP_SECONDS_MAX)
        kept = self._plans.find(plan_id, basis=self._allocation.basis())
        if kept is None or not is_newest:
            return ApplyPlanResponse(status=Status.ALLOCATION_STATUS_CLUSTER_CHANGED)
        # A plan for hypothetical members can be applied only once they have joined.
        if not kept.can_be_applied:
            return ApplyPlanResponse(status=Status.ALLOCATION_STATUS_MEMBERS_MISSING)
        key_space = self._key_space
        compares, operations = _transaction(
            kept, keys=key_space.keys, items=key_space.items, members=key_space.members
        )
        leader = self._allocation.order(kept.plan, cause)
        if leader is None:
            return ApplyPlanResponse(status=Status.ALLOCATION_STATUS_CLUSTER_CHANGED)
        revision = 0
        if operations:
            try:
                result = await self._etcd.txn((*leader.fence.compares, *compares), operations)
            except BaseException:
                # Whether it was applied is unknown. The caller is told so, and the order is withdrawn, so that it is
                # not followed at a later time.
                leader.settle_order()
                raise
            if not result.succeeded:
                leader.settle_order()
                return ApplyPlanResponse(status=Status.ALLOCATION_STATUS_CLUSTER_CHANGED)
            revision = result.header.revision
        adopted = await _adopted(leader, kept.plan)
        _log.info("plan.applied", plan=kept.id, revision=revision, adopted=adopted)
        status = (
            Status.ALLOCATION_STATUS_OK if adopted else Status.ALLOCATION_STATUS_PLAN_SUPERSEDED
        )
        return ApplyPlanResponse(status=status, revision=revision)


async def _adopted(leader: LeaderState, plan: Plan) -> bool:
    """Wait until the allocation loop uses the plan, or another one made after the order."""
    try:
        async with asyncio.timeout(ADOPTION_SECONDS_MAX):
            await leader.order_settled()
    except TimeoutError:
        # The loop has not adopted it in time, so the order must not be followed later.
        leader.settle_order()
    return leader.plan is not None and leader.plan.desired == plan.desired


def _transaction(
    kept: CachedPlan,
    *,
    keys: Keys,
    items: Mapping[ItemId, Item],
    members: Mapping[MemberId, Member],
) -> tuple[list[Compare], tuple[Operation, ...]]:
    """Return the operations that request the plan, and the compares that nothing has changed since."""
    compares: list[Compare] = []
    operations: list[Operation] = []
    for change in kept.asked.changes:
        item_id = ItemId(change.upsert.id or change.delete)
        key, known = keys.item(item_id), items.get(item_id)
        expected = change.expect_mod_revision
        if expected == UNCONDITIONAL:
            expected = known.kv.mod_revision if known is not None else 0
        compares.append(Compare.mod_revision(key, expected))
        if change.HasField("upsert"):
            operations.append(Put(key, change.upsert.SerializeToString(deterministic=True)))
        else:
            operations.append(Delete(key))
    for member_id in sorted(kept.drained):
        member = members[member_id]
        if member.value.is_exiting():
            continue
        spec = ConsumerSpec()
        spec.CopyFrom(process_of(member))
        spec.exiting = True
        compares.append(Compare.mod_revision(member.kv.key, member.kv.mod_revision))
        operations.append(
            Put(member.kv.key, spec.SerializeToString(deterministic=True), ignore_lease=True)
        )
    return compares, tuple(operations)


def _validate_plan_request(request: PlanRequest) -> None:
    if request.changes:
        validate_shard_apply_request(ApplyRequest(changes=request.changes))
    _require_distinct([change.upsert.id or change.delete for change in request.changes])
    count = len(request.changes) + len(request.drain)
    # Two of the comparisons belong to the fence.
    if count > TXN_OPERATIONS_MAX - 2:
        raise BoundExceededError(
            f"changes and drain: expected at most {TXN_OPERATIONS_MAX - 2} together, got {count}; "
            "apply some of them first"
        )


def _require_distinct(ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise BoundExceededError(f"changes: expected one change a shard, got a second of {twice!r}")


def _require_unscoped(claims: Claims) -> None:
    """Refuse claims restricted to some shards, because a placement concerns all of them."""
    if is_scoped(claims.selector):
        raise NotAuthorizedError(
            "plans and members concern every shard: the token must not be restricted to some of them"
        )


def _actor_of(context: Context) -> str:
    return actor_of(context.invocation_metadata() or (), context.peer())


def was_forwarded(context: Context) -> bool:
    """Report whether another member passed the call on."""
    metadata = tuple(context.invocation_metadata() or ())
    return is_forwarded(metadata, is_hop=claims_of(context).is_hop)
