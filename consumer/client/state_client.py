"""Client of the State service: progress of one member's replicas, and the contents of their stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from broadsheet.consumer.client.member_rpc import (
    TOKEN_LIFE_SECONDS,
    MemberClient,
    RpcMethod,
    error_of_status,
    shard_claims,
)
from broadsheet.security.auth import Capability, expiring
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.shard_pb2 import Status
from broadsheet.wire.state_pb2 import (
    DescribeStateRequest,
    DescribeStateResponse,
    ListReplicasRequest,
    ListReplicasResponse,
    ScanStateRequest,
    ScanStateResponse,
)
from broadsheet.wire.state_pb2_grpc import StateServiceStub

SCAN_SECONDS_MAX = 3600.0
"""Deadline of a scan, if its caller sets none."""

_LIST_REPLICAS = RpcMethod(StateServiceStub, "ListReplicas", ListReplicasResponse)
_DESCRIBE_STATE = RpcMethod(StateServiceStub, "DescribeState", DescribeStateResponse)
_SCAN_STATE = RpcMethod(StateServiceStub, "ScanState", ScanStateResponse)


class StateClient(MemberClient):
    """Queries one member about its replicas: give it one address, because each member answers for itself alone."""

    async def list_replicas(self, wanted: LabelSelector | None = None) -> ListReplicasResponse:
        """Return the progress of the member's replicas of the selected shards; of all, without a selector."""
        request = ListReplicasRequest(selector=wanted)
        claims = expiring(Capability.LIST, request.selector, life_seconds=TOKEN_LIFE_SECONDS)
        response, _ = await self._rpc.request(_LIST_REPLICAS, request, claims)
        return response

    async def describe(
        self, shard_id: str, *, max_staleness_seconds: float = 0.0
    ) -> DescribeStateResponse:
        """Return the tables of a shard that the member serves.

        Args:
            shard_id: The shard.
            max_staleness_seconds: See `scan`.

        Raises:
            ShardError: the member cannot show it; `header` says who might.
            RpcFailedError: its store shows no tables.
        """
        response, _ = await self._rpc.request(
            _DESCRIBE_STATE,
            DescribeStateRequest(shard=shard_id, max_staleness_seconds=max_staleness_seconds),
            shard_claims(Capability.READ, shard_id),
        )
        if response.status != Status.OK:
            raise error_of_status(shard_id, response.status, response.header, response.cause)
        return response

    async def scan(
        self,
        shard_id: str,
        table: str = "",
        columns: Sequence[str] = (),
        *,
        max_staleness_seconds: float = 0.0,
        timeout_seconds: float = SCAN_SECONDS_MAX,
    ) -> AsyncGenerator[ScanStateResponse, None]:
        """Yield a shard's table as of its last commit: first a description, then parts of an Arrow stream.

        Args:
            shard_id: The shard.
            table: Of its store; empty: the only one.
            columns: Of the table; none: all.
            max_staleness_seconds: A standby may answer with all that was committed so long before; 0: only the primary.
            timeout_seconds: Deadline of all of it.

        Raises:
            ShardError: the member cannot show it; `header` says who might.
            ValidationError: there is no such table or column.
            RpcFailedError: its store shows no tables, or a value that its column cannot show.
        """
        request = ScanStateRequest(
            shard=shard_id,
            table=table,
            columns=columns,
            max_staleness_seconds=max_staleness_seconds,
        )
        responses = self._rpc.stream(
            _SCAN_STATE,
            request,
            shard_claims(Capability.READ, shard_id, life_seconds=timeout_seconds),
            timeout_seconds=timeout_seconds,
        )
        async with aclosing(responses):
            async for response in responses:
                if response.status != Status.OK:
                    raise error_of_status(
                        shard_id, response.status, response.header, response.cause
                    )
                yield response
