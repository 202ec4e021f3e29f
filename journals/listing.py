"""Listings, watches and changes of journals, and listings of their fragments.

Source: gazette/core broker/client/list.go, apply.go; broker/list_apply_api.go (snapshots, resumption).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import grpc
import structlog

from broadsheet.journals.request_errors import error_of_rpc, error_of_status
from broadsheet.journals.transport import (
    STREAM_LIFE_SECONDS,
    UNARY_TIMEOUT_SECONDS,
    JournalTransport,
    answer_of,
    cancelled_by_peer,
    patiently,
)
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import EndpointError, RpcFailedError, ServiceError, ValidationError
from broadsheet.security.auth import APPLY_TOKEN_LIFE_SECONDS, TOKEN_LIFE_SECONDS, Capability
from broadsheet.wire.alphabet import require
from broadsheet.wire.broker_metadata import VERSION, WALL_TIME
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import (
    ApplyRequest,
    ApplyResponse,
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    FragmentStoreHealthResponse,
    Header,
    LabelSelector,
    ListRequest,
    ListResponse,
    Status,
)
from broadsheet.wire.labels import NAME, label_set
from broadsheet.wire.validation_journal import (
    validate_apply_request,
    validate_fragments_request,
    validate_list_request,
    validate_store_health_request,
)
from broadsheet.wire.validation_journal_response import (
    validate_apply_response,
    validate_fragments_response,
    validate_list_response,
)

BACKOFF_SECONDS_MAX = 2.0
"""Longest pause of a watch between attempts."""
_ASKED_ABOUT = "broadsheet/reachable"
"""Name of a journal that need not exist: an empty listing is an answer."""
_INVALID = "INVALID_ANSWER"
"""Replaces the gRPC status in the error about an answer that breaks a rule."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ListResult:
    """Journals that match a selector, as of one revision."""

    header: Header
    journals: list[ListResponse.Journal]
    """Ascending by name."""


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """The version and the clock that a broker sends with an answer."""

    version: str = ""
    """Empty: it does not say, as Gazette's brokers do not, or it refused."""
    wall_seconds: float | None = None
    """Its clock, seconds since 1970; None: it does not say."""


async def list_journals(transport: JournalTransport, selector: LabelSelector) -> ListResult:
    """List the matching journals; retries for the transport's patience while no broker can be reached.

    Raises:
        ValidationError: the selector is malformed.
        EndpointError: no broker could be reached.
    """
    request = ListRequest(selector=selector)
    validate_list_request(request)
    async for attempt in patiently(transport, _is_unreachable):
        with attempt:
            async with _Listing(transport, request, UNARY_TIMEOUT_SECONDS) as listing:
                snapshot = await listing.read_snapshot(endless=False)
            if snapshot is None:
                raise EndpointError(listing.address, "the broker ended the listing")
            for journal in snapshot.journals:
                transport.routes.update(journal.spec.name, journal.route)
            return snapshot
    raise AssertionError("the retrier returns or raises")


async def ask_once(transport: JournalTransport, *, timeout_seconds: float) -> BrokerAnswer:
    """Check that a broker answers at all, by listing a journal that need not exist.

    Args:
        transport: Finds the broker.
        timeout_seconds: Longest wait for its answer, a refusal included.

    Raises:
        EndpointError: it did not answer.
    """
    request = ListRequest(selector=LabelSelector(include=label_set((NAME, _ASKED_ABOUT))))
    try:
        async with _Listing(transport, request, timeout_seconds) as listing:
            await listing.read_snapshot(endless=False)
            return await listing.told()
    except EndpointError:
        raise
    except ServiceError as error:
        _log.debug("ask_once.refused", cause=str(error))  # a refusal is an answer, too.
        return BrokerAnswer()


async def watch_journals(
    transport: JournalTransport, selector: LabelSelector
) -> AsyncIterator[ListResult]:
    """Yield a whole listing now and at each change until the client closes; broken streams resume.

    Raises:
        ServiceError: the first listing failed; later failures are retried.
    """
    seen = await list_journals(transport, selector)
    yield seen
    backoff = Backoff(max_seconds=BACKOFF_SECONDS_MAX)
    while not transport.channels.closed:
        request = ListRequest(selector=selector, watch=True, watch_resume=seen.header)
        try:
            async with _Listing(transport, request, STREAM_LIFE_SECONDS) as listing:
                while (snapshot := await listing.read_snapshot(endless=True)) is not None:
                    _require_newer(listing.address, snapshot.header, seen.header)
                    backoff.reset()
                    seen = snapshot
                    yield seen
        except ServiceError as error:
            _log.warning("watch.retrying", attempt=backoff.attempt + 1, error=str(error))
        await transport.pause(backoff.next_seconds())


class _Listing:
    """One List RPC."""

    def __init__(
        self, transport: JournalTransport, request: ListRequest, timeout_seconds: float
    ) -> None:
        peer = transport.default_peer()
        self.address = peer.endpoint
        metadata = transport.metadata(
            Capability.LIST, request.selector, life_seconds=TOKEN_LIFE_SECONDS
        )
        self._call = peer.stub.List(request, metadata=metadata, timeout=timeout_seconds)

    async def __aenter__(self) -> _Listing:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()

    async def told(self) -> BrokerAnswer:
        """Return what the broker said of itself before its first message."""
        told = dict(await self._call.initial_metadata() or ())
        version, nanoseconds = str(told.get(VERSION, "")), str(told.get(WALL_TIME, ""))
        # 19 digits last until the year 2286; what is longer is no time.
        is_time = nanoseconds.isdecimal() and len(nanoseconds) <= 19
        return BrokerAnswer(version, int(nanoseconds) / 1e9 if is_time else None)

    async def read_snapshot(self, *, endless: bool) -> ListResult | None:
        """Return the next snapshot, or None if the stream ended before it began.

        Args:
            endless: Whether this is a watch: its snapshots end in a message without journals.
        """
        first: ListResponse | None = None
        journals: list[ListResponse.Journal] = []
        while True:
            response = await self._read(endless=endless)
            if response is None:
                if first is None:
                    return None
                # A snapshot of a watch ends with an empty message, so this one is incomplete.
                if endless:
                    raise EndpointError(self.address, "the broker ended the watch in a snapshot")
                return ListResult(first.header, journals)
            if endless and first is None and not response.ByteSize():
                continue  # closes an empty snapshot, which the first message already reported
            self._check(response, is_first=first is None, endless=endless)
            journals.extend(response.journals)
            # The first message of an empty snapshot is also its last.
            if endless and not response.journals:
                return ListResult((first or response).header, journals)
            first = first or response

    async def _read(self, *, endless: bool) -> ListResponse | None:
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            if endless and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return None  # the stream reached its time limit
            raise error_of_rpc(self.address, error) from error
        except asyncio.CancelledError as error:
            if cancelled_by_peer():
                raise EndpointError(self.address, "the broker cancelled the listing") from error
            raise
        return response if isinstance(response, ListResponse) else None

    def _check(self, response: ListResponse, *, is_first: bool, endless: bool) -> None:
        try:
            validate_list_response(response, first=is_first)
            require(
                is_first or endless or bool(response.journals),
                "journals",
                "expected at least one in each message after the first",
            )
        except ValidationError as error:
            raise RpcFailedError(self.address, _INVALID, str(error)) from error
        if response.status != Status.OK:
            raise RpcFailedError(self.address, Status.Name(response.status), "cannot list")


async def apply_changes(
    transport: JournalTransport, changes: Sequence[ApplyRequest.Change], batch_size: int | None
) -> ApplyResponse:
    """Apply changes in one transaction, or in one for each `batch_size` of them; return the last answer.

    With batches, those before a failing one stay applied.

    Raises:
        ValidationError: a change is malformed; nothing was applied.
        ApplyConflictError: a spec's revision is not the expected one.
        EndpointError: no broker could be reached, or an answer was lost and the outcome is unknown.
    """
    validate_apply_request(ApplyRequest(changes=changes))
    size = batch_size or max(len(changes), 1)
    response = ApplyResponse()
    for begin in range(0, max(len(changes), 1), size):
        response = await _apply_batch(
            transport, ApplyRequest(changes=changes[begin : begin + size])
        )
    return response


async def _apply_batch(transport: JournalTransport, request: ApplyRequest) -> ApplyResponse:
    peer = transport.default_peer()
    # Only a connection that was never made is tried again. An apply whose answer was lost may have
    # been done, and would then conflict with itself.
    async for attempt in patiently(transport, _was_refused):
        with attempt:
            metadata = transport.metadata(
                Capability.APPLY, LabelSelector(), life_seconds=APPLY_TOKEN_LIFE_SECONDS
            )
            response: ApplyResponse = await answer_of(
                peer.stub.Apply(request, metadata=metadata, timeout=UNARY_TIMEOUT_SECONDS),
                peer.endpoint,
            )
    try:
        validate_apply_response(response)
    except ValidationError as error:
        raise RpcFailedError(peer.endpoint, _INVALID, str(error)) from error
    if response.status == Status.ETCD_TRANSACTION_FAILED:
        raise ApplyConflictError(response.header)
    if response.status != Status.OK:
        raise RpcFailedError(peer.endpoint, Status.Name(response.status), "cannot apply")
    transport.applied_revision = max(transport.applied_revision, response.header.etcd.revision)
    return response


async def list_fragments(
    transport: JournalTransport, request: FragmentsRequest
) -> list[FragmentsResponse.ListedFragment]:
    """Return a journal's fragments, all pages joined, ascending by begin.

    Raises:
        ValidationError: the request is malformed.
        JournalError: the journal does not exist, is suspended, or may not be read.
        EndpointError: no broker could be reached.
    """
    validate_fragments_request(request)
    page = FragmentsRequest()
    page.CopyFrom(request)
    fragments: list[FragmentsResponse.ListedFragment] = []
    while True:
        async for attempt in patiently(transport, _is_unreachable):
            with attempt:
                response = await _fragments_page(transport, page)
        fragments.extend(response.fragments)
        # Zero is the end; a token that does not advance would repeat pages without end.
        if response.next_page_token <= page.next_page_token:
            return fragments
        page.next_page_token = response.next_page_token


async def _fragments_page(
    transport: JournalTransport, request: FragmentsRequest
) -> FragmentsResponse:
    peer = transport.peer_for(request.journal, primary=False)
    metadata = transport.journal_metadata(
        Capability.READ, request.journal, life_seconds=TOKEN_LIFE_SECONDS
    )
    try:
        response: FragmentsResponse = await answer_of(
            peer.stub.ListFragments(request, metadata=metadata, timeout=UNARY_TIMEOUT_SECONDS),
            peer.endpoint,
        )
    except EndpointError:
        transport.routes.forget(request.journal)
        raise
    try:
        validate_fragments_response(response)
    except ValidationError as error:
        raise RpcFailedError(peer.endpoint, _INVALID, str(error)) from error
    if response.status != Status.OK:
        raise error_of_status(request.journal, response.status)
    return response


async def probe_store(transport: JournalTransport, store: str) -> str:
    """Let the broker write, read and remove a file in a fragment store; return what went wrong, empty if nothing.

    Raises:
        ValidationError: the store is no URL.
        EndpointError: no broker could be reached.
    """
    request = FragmentStoreHealthRequest(fragment_store=store)
    validate_store_health_request(request)
    peer = transport.default_peer()
    metadata = transport.metadata(Capability.READ, LabelSelector(), life_seconds=TOKEN_LIFE_SECONDS)
    response: FragmentStoreHealthResponse = await answer_of(
        peer.stub.FragmentStoreHealth(request, metadata=metadata, timeout=UNARY_TIMEOUT_SECONDS),
        peer.endpoint,
    )
    if response.status == Status.OK:
        return ""
    return response.store_health_error or Status.Name(response.status)


def _require_newer(address: str, header: Header, seen: Header) -> None:
    if header.etcd.revision <= seen.etcd.revision:
        raise RpcFailedError(
            address,
            _INVALID,
            f"expected a snapshot after revision {seen.etcd.revision}, got {header.etcd.revision}",
        )


def _is_unreachable(error: BaseException) -> bool:
    return isinstance(error, EndpointError)


def _was_refused(error: BaseException) -> bool:
    return isinstance(error, EndpointError) and error.never_connected
