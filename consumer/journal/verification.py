"""Client call that has a broker verify what it keeps: only brokers of this project can."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from consumer.journal.outcomes import error_of_rpc, error_of_status
from consumer.journal.transport import STREAM_LIFE_SECONDS, JournalTransport
from consumer.protocol.auth import TOKEN_LIFE_SECONDS, Capability
from consumer.protocol.fragments_pb2 import VerifyJournalRequest, VerifyJournalResponse
from consumer.protocol.fragments_pb2_grpc import FragmentServiceStub
from consumer.protocol.journal_pb2 import Status


async def verify_journal(
    transport: JournalTransport, journal: str, *, discard_damaged: bool
) -> AsyncIterator[VerifyJournalResponse]:
    """Yield the number of fragments, then what each turned out to be.

    Raises:
        ValidationError: the journal's name is malformed.
        JournalError: the journal does not exist.
        RpcFailedError: the broker cannot do that (UNIMPLEMENTED).
        EndpointError: no broker could be reached, or its answer was lost.
    """
    peer = transport.peer_for(journal, primary=True)
    stub = FragmentServiceStub(transport.channels.channel(peer.endpoint))
    capability = Capability.APPLY if discard_damaged else Capability.READ
    call = stub.VerifyJournal(
        VerifyJournalRequest(journal=journal, discard_damaged=discard_damaged),
        metadata=transport.journal_metadata(capability, journal, life_seconds=TOKEN_LIFE_SECONDS),
        timeout=STREAM_LIFE_SECONDS,
    )
    try:
        async for response in call:
            if response.status != Status.OK:
                raise error_of_status(journal, response.status)
            yield response
    except grpc.aio.AioRpcError as error:
        raise error_of_rpc(peer.endpoint, error) from error
