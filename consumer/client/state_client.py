"""A client of the State service: how far the replicas of one member have come."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from consumer.client.member_rpc import TOKEN_LIFE_SECONDS, MemberRpc
from consumer.protocol.auth import Capability, ClientAuth, expiring
from consumer.protocol.journal_pb2 import LabelSelector
from consumer.protocol.state_pb2 import ListReplicasRequest, ListReplicasResponse
from consumer.protocol.state_pb2_grpc import StateServiceStub


class StateClient:
    """Asks one member about the replicas that it has. `async with` connects and closes it."""

    def __init__(
        self, address: str, *, auth: ClientAuth | None = None, timeout_seconds: float = 10.0
    ) -> None:
        """Create a client.

        Args:
            address: Of the member: `http://host:port` or `host:port`.
            auth: Signs each request; None attaches nothing.
            timeout_seconds: Deadline of each request.

        Raises:
            ValidationError: `address` is no address.
        """
        self._rpc = MemberRpc(address, auth=auth, timeout_seconds=timeout_seconds)

    async def list_replicas(self, wanted: LabelSelector | None = None) -> ListReplicasResponse:
        """Return how far the member's replicas of the selected shards have come; of all, without a selector."""
        request = ListReplicasRequest(selector=wanted)
        claims = expiring(Capability.LIST, request.selector, life_seconds=TOKEN_LIFE_SECONDS)
        response, _ = await self._rpc.request(
            StateServiceStub, "ListReplicas", request, claims, ListReplicasResponse
        )
        return response

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
