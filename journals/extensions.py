"""Client calls that only brokers of this project support: deletion, quarantine and verification."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc

from broadsheet.journals.request_errors import error_of_rpc, error_of_status
from broadsheet.journals.transport import (
    STREAM_LIFE_SECONDS,
    UNARY_TIMEOUT_SECONDS,
    JournalTransport,
    answer_of,
    patiently,
)
from broadsheet.runtime.errors import EndpointError
from broadsheet.security.auth import APPLY_TOKEN_LIFE_SECONDS, TOKEN_LIFE_SECONDS, Capability
from broadsheet.wire.fragments_pb2 import (
    DeleteFragmentsRequest,
    DeleteFragmentsResponse,
    ListQuarantineRequest,
    ListQuarantineResponse,
    PurgeQuarantineRequest,
    QuarantineEntry,
    VerifyJournalRequest,
    VerifyJournalResponse,
)
from broadsheet.wire.fragments_pb2_grpc import FragmentServiceStub
from broadsheet.wire.journal_pb2 import Fragment, LabelSelector, Status
from broadsheet.wire.validation_journal import (
    FRAGMENTS_DELETED_MAX,
    validate_delete_fragments_request,
)


async def delete_fragments(
    transport: JournalTransport, journal: str, fragments: Sequence[Fragment]
) -> list[Fragment]:
    """Remove fragments as they were listed; return the begin and end of those that are gone now, ascending.

    Raises:
        ValidationError: the journal or a fragment is malformed.
        JournalError: the journal does not exist, or its disk failed.
        RpcFailedError: the broker cannot do that (UNIMPLEMENTED); nothing was removed.
        EndpointError: no broker could be reached, or its answer was lost.
    """
    deleted: list[Fragment] = []
    for begin in range(0, len(fragments), FRAGMENTS_DELETED_MAX):
        part = fragments[begin : begin + FRAGMENTS_DELETED_MAX]
        request = DeleteFragmentsRequest(journal=journal, fragments=part)
        validate_delete_fragments_request(request)
        async for attempt in patiently(transport, _is_unreachable):
            with attempt:
                response = await _delete(transport, request)
        deleted += response.deleted
    return deleted


async def _delete(
    transport: JournalTransport, request: DeleteFragmentsRequest
) -> DeleteFragmentsResponse:
    peer = transport.peer_for(request.journal, primary=True)
    stub = FragmentServiceStub(transport.channels.channel(peer.endpoint))
    metadata = transport.journal_metadata(
        Capability.APPLY, request.journal, life_seconds=APPLY_TOKEN_LIFE_SECONDS
    )
    try:
        response: DeleteFragmentsResponse = await answer_of(
            stub.DeleteFragments(request, metadata=metadata, timeout=UNARY_TIMEOUT_SECONDS),
            peer.endpoint,
        )
    except EndpointError:
        transport.routes.forget(request.journal)
        raise
    if response.status != Status.OK:
        raise error_of_status(request.journal, response.status)
    return response


def _is_unreachable(error: BaseException) -> bool:
    return isinstance(error, EndpointError)


# Calls about a broker's quarantine.
async def list_quarantine(transport: JournalTransport) -> Sequence[QuarantineEntry]:
    """Return the data that the broker moved aside, oldest first.

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
    """Remove one entry permanently.

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


# Verification of the content that a broker stores.


async def verify_journal(
    transport: JournalTransport, journal: str, *, discard_damaged: bool
) -> AsyncIterator[VerifyJournalResponse]:
    """Yield the number of fragments, then the result of each.

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
