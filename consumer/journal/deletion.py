"""Removes fragments of journals: what brokers of this project can, and Gazette's cannot."""

from __future__ import annotations

from collections.abc import Sequence

from consumer.errors import EndpointError
from consumer.journal.outcomes import error_of_status
from consumer.journal.transport import (
    UNARY_TIMEOUT_SECONDS,
    JournalTransport,
    answer_of,
    patiently,
)
from consumer.protocol.auth import APPLY_TOKEN_LIFE_SECONDS, Capability
from consumer.protocol.fragments_pb2 import DeleteFragmentsRequest, DeleteFragmentsResponse
from consumer.protocol.fragments_pb2_grpc import FragmentServiceStub
from consumer.protocol.journal_pb2 import Fragment, Status
from consumer.protocol.validation_fragments import (
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
