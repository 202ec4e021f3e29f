"""The State service: ListReplicas, DescribeState, ScanState.

A member answers for the replicas that it has: whoever wants the whole cluster asks each, and knows by List whom to ask.
"""

from __future__ import annotations

from typing import Any

from allocator.core.model import MemberId
from allocator.key_space import KeySpace
from consumer.application import Application, MessageProducer
from consumer.core.resolution import header_of
from consumer.journal.client import JournalClient
from consumer.key_space import is_visible
from consumer.protocol import state_pb2_grpc
from consumer.protocol.claims_context import current_claims
from consumer.protocol.journal_pb2 import Header
from consumer.protocol.state_pb2 import ListReplicasRequest, ListReplicasResponse
from consumer.protocol.validation_terms import validate_selector
from consumer.resolver.local_shards import LocalShards
from consumer.shard.replica_progress import progress_of

# `Any`: grpc.aio passes each servicer method its context.
Context = Any


class StateApi(state_pb2_grpc.StateServiceServicer):
    """Serves `broadsheet.v1.StateService` for one member."""

    def __init__(
        self,
        local_shards: LocalShards,
        key_space: KeySpace,
        journals: JournalClient,
        *,
        member_id: MemberId,
        application: Application[Any],
    ) -> None:
        """Create the service.

        Args:
            local_shards: The replicas of this process.
            key_space: The mirror.
            journals: Tells how much there is to read.
            member_id: This process.
            application: What the shards run.
        """
        self._local_shards = local_shards
        self._key_space = key_space
        self._journals = journals
        self._member_id = member_id
        self._reads_journals = not isinstance(application, MessageProducer)

    async def ListReplicas(  # noqa: N802 - gRPC's name
        self, request: ListReplicasRequest, context: Context
    ) -> ListReplicasResponse:
        """Tell how far the replicas here have come that the request and the caller's claims select."""
        del context
        validate_selector(request.selector, "selector")
        allowed = current_claims().selector
        shards = [
            shard
            for shard in self._local_shards.shards.values()
            if is_visible(shard.spec, request.selector) and is_visible(shard.spec, allowed)
        ]
        replicas = await progress_of(shards, self._journals, reads_journals=self._reads_journals)
        return ListReplicasResponse(header=self._header(), replicas=replicas)

    def _header(self) -> Header:
        announced = self._member_id in self._key_space.members
        return header_of(self._member_id if announced else None, self._key_space.header)
