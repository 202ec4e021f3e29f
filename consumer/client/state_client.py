"""Client of the State service: progress of one member's replicas, and the contents of their stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from broadsheet.consumer.client.member_rpc import (
    TOKEN_LIFE_SECONDS,
    MemberRpc,
    RpcMethod,
    error_of_status,
)
from broadsheet.security.auth import Capability, ClientAuth, expiring
from broadsheet.security.tls import TlsConfig
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import ID, label_set, selector
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


class StateClient:
    """Queries one member about its replicas. `async with` connects and closes it."""

    def __init__(
        self,
        address: str,
        *,
        auth: ClientAuth | None = None,
        timeout_seconds: float = 10.0,
        tls: TlsConfig | None = None,
    ) -> None:
        """Create a client.

        Args:
            address: Of the member: `http://host:port`, `https://host:port` or `host:port`.
            auth: Signs each request; None attaches nothing.
            timeout_seconds: Deadline of each request.
            tls: Files for `https://`; None: members' certificates must be signed by a public authority.

        Raises:
            ValidationError: `address` is no address.
        """
        self._rpc = MemberRpc(address, auth=auth, timeout_seconds=timeout_seconds, tls=tls)

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
            expiring(
                Capability.READ,
                selector(label_set((ID, shard_id))),
                life_seconds=TOKEN_LIFE_SECONDS,
            ),
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
        named = selector(label_set((ID, shard_id)))
        responses = self._rpc.stream(
            _SCAN_STATE,
            request,
            expiring(Capability.READ, named, life_seconds=timeout_seconds),
            timeout_seconds=timeout_seconds,
        )
        async with aclosing(responses):
            async for response in responses:
                if response.status != Status.OK:
                    raise error_of_status(
                        shard_id, response.status, response.header, response.cause
                    )
                yield response

    async def __aenter__(self) -> Self:
        await self._rpc.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._rpc.__aexit__(kind, error, trace)
