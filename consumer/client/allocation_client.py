"""Client of the Allocation service: plan changes, explain placements, list moves and members."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from broadsheet.consumer.client.member_rpc import (
    TOKEN_LIFE_SECONDS,
    MemberClient,
    RpcMethod,
    shard_claims,
)
from broadsheet.consumer.errors import PlanNotAppliedError, ShardNotFoundError
from broadsheet.security.auth import Capability, expiring
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
    NewMembers,
    PlanRequest,
    PlanResponse,
    ShardMove,
)
from broadsheet.wire.allocation_pb2_grpc import AllocationServiceStub
from broadsheet.wire.shard_pb2 import ApplyRequest

PLAN_SECONDS_MAX = 60.0
"""Deadline of a plan: a large cluster is solved and simulated for it."""

_PLAN = RpcMethod(AllocationServiceStub, "Plan", PlanResponse)
_APPLY_PLAN = RpcMethod(AllocationServiceStub, "ApplyPlan", ApplyPlanResponse)
_EXPLAIN = RpcMethod(AllocationServiceStub, "Explain", ExplainResponse)
_LIST_MEMBERS = RpcMethod(AllocationServiceStub, "ListMembers", ListMembersResponse)
_CORDON_MEMBERS = RpcMethod(AllocationServiceStub, "CordonMembers", CordonMembersResponse)
_LIST_OPERATIONS = RpcMethod(AllocationServiceStub, "ListOperations", ListOperationsResponse)
_LIST_MOVES = RpcMethod(AllocationServiceStub, "ListMoves", ListMovesResponse)

_PROBLEMS = {
    Status.ALLOCATION_STATUS_PLAN_NOT_FOUND: (
        "the leader does not know it: it was made too long ago, or by a former leader; plan again"
    ),
    Status.ALLOCATION_STATUS_CLUSTER_CHANGED: (
        "the cluster is not as it was when the plan was made, so nothing was changed; plan again"
    ),
    Status.ALLOCATION_STATUS_MEMBERS_MISSING: (
        "it supposes members that are not there; start them, then plan again"
    ),
    Status.ALLOCATION_STATUS_PLAN_SUPERSEDED: (
        "its changes were made, but the cluster changed at the same time, so the leader made another plan"
    ),
}


class AllocationClient(MemberClient):
    """Plans, applies plans, and explains. Any member can be asked, because it forwards to the leader.

    Requests that plan have a deadline of `PLAN_SECONDS_MAX` instead of `timeout_seconds`.
    """

    async def plan(
        self,
        *,
        changes: Sequence[ApplyRequest.Change] = (),
        drain: Sequence[str] = (),
        add: Sequence[NewMembers] = (),
    ) -> PlanResponse:
        """Return the moves that a change would cause, without changing anything.

        Args:
            changes: Of shards.
            drain: Members that would leave, `zone#suffix`.
            add: Members that would join.

        Raises:
            ValidationError: a field is wrong.
            NotAuthorizedError: the token is restricted to some shards.
        """
        response, _ = await self._rpc.request(
            _PLAN,
            PlanRequest(changes=changes, drain=drain, add=add),
            expiring(Capability.LIST, life_seconds=TOKEN_LIFE_SECONDS),
            timeout_seconds=PLAN_SECONDS_MAX,
        )
        return response

    async def apply_plan(self, plan_id: str) -> ApplyPlanResponse:
        """Apply a plan exactly as it was made.

        Raises:
            PlanNotAppliedError: it was refused, or could not be followed exactly; the message says what to do.
        """
        response, _ = await self._rpc.request(
            _APPLY_PLAN,
            ApplyPlanRequest(plan_id=plan_id),
            expiring(Capability.APPLY, life_seconds=TOKEN_LIFE_SECONDS),
            timeout_seconds=PLAN_SECONDS_MAX,
        )
        if response.status != Status.ALLOCATION_STATUS_OK:
            name = Status.Name(response.status)
            raise PlanNotAppliedError(plan_id, _PROBLEMS.get(response.status, name))
        return response

    async def explain(self, shard_id: str) -> ExplainResponse:
        """Return the reasons for a shard's placement, and what it waits for.

        Raises:
            ShardNotFoundError: there is no such shard.
        """
        response, _ = await self._rpc.request(
            _EXPLAIN,
            ExplainRequest(shard=shard_id),
            shard_claims(Capability.LIST, shard_id),
            timeout_seconds=PLAN_SECONDS_MAX,
        )
        if response.status != Status.ALLOCATION_STATUS_OK:
            raise ShardNotFoundError(shard_id)
        return response

    async def members(self) -> ListMembersResponse:
        """Return the members of the cluster, sorted by id, with the replicas of each.

        Raises:
            NotAuthorizedError: the token is restricted to some shards.
        """
        response, _ = await self._rpc.request(
            _LIST_MEMBERS,
            ListMembersRequest(),
            expiring(Capability.LIST, life_seconds=TOKEN_LIFE_SECONDS),
        )
        return response

    async def operations(self) -> ListOperationsResponse:
        """Return the drains and moves that are under way, as the leader knows them.

        Raises:
            NotAuthorizedError: the token is restricted to some shards.
        """
        response, _ = await self._rpc.request(
            _LIST_OPERATIONS,
            ListOperationsRequest(),
            expiring(Capability.LIST, life_seconds=TOKEN_LIFE_SECONDS),
            timeout_seconds=PLAN_SECONDS_MAX,
        )
        return response

    async def cordon(
        self, members: Sequence[str], *, cordoned: bool = True
    ) -> CordonMembersResponse:
        """Keep new replicas from members; existing replicas stay. Either all members are changed, or none.

        A cordon ends with the member's process, or when this is called again with `cordoned=False`.

        Args:
            members: From 1 to 64, `zone#suffix`.
            cordoned: False: let replicas come again.

        Raises:
            ValidationError: a member is not there, or is named twice; the message says which.
            NotAuthorizedError: the token is restricted to some shards, or may not change anything.
        """
        response, _ = await self._rpc.request(
            _CORDON_MEMBERS,
            CordonMembersRequest(members=members, cordoned=cordoned),
            expiring(Capability.APPLY, life_seconds=TOKEN_LIFE_SECONDS),
        )
        return response

    async def moves(
        self, *, shard_id: str = "", member: str = "", since: datetime | None = None
    ) -> AsyncGenerator[ShardMove, None]:
        """Yield moves of replicas, oldest first, from the beginning of the move log; read page by page.

        Args:
            shard_id: Only this shard's.
            member: Only this member's, `zone#suffix`.
            since: Only what was done then or later.
        """
        token = b""
        while True:
            page = await self.move_page(
                shard_id=shard_id, member=member, since=since, page_token=token
            )
            for move in page.moves:
                yield move
            token = page.next_page_token
            if not token:
                return

    async def move_page(
        self,
        *,
        shard_id: str = "",
        member: str = "",
        since: datetime | None = None,
        page_size: int = 0,
        page_token: bytes = b"",
    ) -> ListMovesResponse:
        """Return one page of the moves that `moves` yields.

        Args:
            shard_id: As there.
            member: As there.
            since: As there.
            page_size: Transactions to look through; 0: as many as the server thinks best.
            page_token: Of the page before; empty: the first page.

        Raises:
            ValidationError: the token is of no page.
        """
        request = ListMovesRequest(
            shard=shard_id, member=member, page_size=page_size, page_token=page_token
        )
        if since is not None:
            request.since.FromDatetime(since)
        claims = (
            shard_claims(Capability.LIST, shard_id)
            if shard_id
            else expiring(Capability.LIST, life_seconds=TOKEN_LIFE_SECONDS)
        )
        page, _ = await self._rpc.request(_LIST_MOVES, request, claims)
        return page
