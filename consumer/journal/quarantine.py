"""Client calls about a broker's quarantine: only brokers of this project have one."""

from __future__ import annotations

from collections.abc import Sequence

from consumer.journal.transport import UNARY_TIMEOUT_SECONDS, JournalTransport, answer_of
from consumer.protocol.auth import APPLY_TOKEN_LIFE_SECONDS, TOKEN_LIFE_SECONDS, Capability
from consumer.protocol.fragments_pb2 import (
    ListQuarantineRequest,
    ListQuarantineResponse,
    PurgeQuarantineRequest,
    QuarantineEntry,
)
from consumer.protocol.fragments_pb2_grpc import FragmentServiceStub
from consumer.protocol.journal_pb2 import LabelSelector


async def list_quarantine(transport: JournalTransport) -> Sequence[QuarantineEntry]:
    """Return what the broker moved aside, oldest first.

    Raises:
        RpcFailedError: the broker has no quarantine (UNIMPLEMENTED).
        EndpointError: it could not be reached.
    """
    peer = transport.default_peer()
    stub = FragmentServiceStub(transport.channels.channel(peer.endpoint))
    metadata = transport.metadata(Capability.LIST, LabelSelector(), life_seconds=TOKEN_LIFE_SECONDS)
    call = stub.ListQuarantine(
        ListQuarantineRequest(), metadata=metadata, timeout=UNARY_TIMEOUT_SECONDS
    )
    response: ListQuarantineResponse = await answer_of(call, peer.endpoint)
    return response.entries


async def purge_quarantine(transport: JournalTransport, entry: str) -> None:
    """Remove one entry for ever.

    Raises:
        RpcFailedError: there is no such entry, or the broker has no quarantine.
        EndpointError: it could not be reached.
    """
    peer = transport.default_peer()
    stub = FragmentServiceStub(transport.channels.channel(peer.endpoint))
    metadata = transport.metadata(
        Capability.APPLY, LabelSelector(), life_seconds=APPLY_TOKEN_LIFE_SECONDS
    )
    request = PurgeQuarantineRequest(id=entry)
    await answer_of(
        stub.PurgeQuarantine(request, metadata=metadata, timeout=UNARY_TIMEOUT_SECONDS),
        peer.endpoint,
    )
