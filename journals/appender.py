"""Append of bytes to a journal as one operation: contiguous and atomic, or not at all.

The answer may come before everything was sent, and is then a refusal. If the answer is lost after the commit was sent,
the outcome is unknown, which has a separate error (`AppendOutcomeUnknownError`): repeating such an append may write its
bytes twice. Every other error means that nothing was written.

    connected, and not too long               one message of a call that stays open, if the broker supports that
        depends on appends in progress        also pipelined after those (`broadsheet.journals.pipelining`)
    else                                      a separate call: parameters, chunks, commit

Source: gazette/core broker/client/appender.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import grpc

from broadsheet.journals.append_stream import AppendNotSentError
from broadsheet.journals.channels import AppendUnderWay
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalError,
    JournalProtocolError,
    JournalUnavailableError,
    PredecessorNotCommittedError,
    RegisterMismatchError,
)
from broadsheet.journals.pipelining import AppendToken, Pipelined
from broadsheet.journals.request_errors import error_of_rpc, error_of_status
from broadsheet.journals.transport import (
    CHUNK_BYTES,
    JournalTransport,
    Peer,
    RpcMetadata,
    cancelled_by_peer,
    patiently,
)
from broadsheet.journals.wire import encode_append_chunk
from broadsheet.runtime.errors import EndpointError, ServiceError, ValidationError
from broadsheet.security.auth import TOKEN_LIFE_SECONDS, Capability
from broadsheet.serving.tracing import APPEND_METHOD, JOURNAL_ATTRIBUTE
from broadsheet.wire.alphabet import require
from broadsheet.wire.appends_pb2 import AppendStreamRequest
from broadsheet.wire.journal_pb2 import AppendRequest, AppendResponse, Status
from broadsheet.wire.validation_journal import validate_append_request
from broadsheet.wire.validation_journal_response import validate_append_response

_OK = Status.OK
APPEND_TIMEOUT_SECONDS = 60.0
"""Longest wait for one append, in addition to the time of its content at `APPEND_BYTES_PER_SECOND_MIN`."""
APPEND_BYTES_PER_SECOND_MIN = 64 << 10
"""Lowest rate that a wait allows for. Brokers abort slower senders, so a longer wait gains nothing."""

CallT = TypeVar("CallT", bound="grpc.aio.Call | AppendUnderWay")

# These end a request before a broker acts on it, even if the commit was already sent.
_REFUSING_CODES = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


def check_append(request: AppendRequest, content_bytes: int) -> None:
    """Check an append before any of it is sent.

    Raises:
        ValidationError: the request is malformed, or changes registers without appending.
    """
    validate_append_request(request, first=True)
    changes = request.HasField("union_registers") or request.HasField("subtract_registers")
    require(
        content_bytes > 0 or not changes,
        "union_registers" if request.HasField("union_registers") else "subtract_registers",
        "expected content: registers change only when at least one byte is appended",
    )


async def append_once(
    transport: JournalTransport,
    request: AppendRequest,
    content: Sequence[bytes | memoryview],
    in_turn: Pipelined | None = None,
) -> AppendResponse:
    """Append once.

    Args:
        transport: Finds the broker.
        request: The parameters; `content` must be empty.
        content: What to append, in order; none at all makes a barrier.
        in_turn: Its place in the pipelined order. One without predecessors that cannot be pipelined is sent alone.

    Raises:
        AppendOutcomeUnknownError: the commit was sent and its answer lost.
        PredecessorNotCommittedError: its predecessors are not known to have succeeded; nothing was written.
        JournalUnavailableError: no broker serves the journal now; nothing was written.
        EndpointError: no broker could be reached; nothing was written.
        RegisterMismatchError: this writer is fenced; nothing was written.
        JournalError: another refusal, by its class; nothing was written.
    """
    append = _Append(transport, request, content, in_turn)
    traced = transport.tracing
    # Only as a part of somebody's trace: recovery logs and acknowledgements are appended all the time.
    if traced is None or not traced.has_current:
        return await append.run()
    with traced.calling(APPEND_METHOD, {JOURNAL_ATTRIBUTE: request.journal}):
        return await append.run()


async def append_patiently(
    transport: JournalTransport, request: AppendRequest, content: Sequence[bytes | memoryview]
) -> AppendResponse:
    """Append, and repeat failures that wrote nothing for the transport's patience; raises as `append_once`."""
    async for attempt in patiently(transport, is_safe_to_repeat):
        with attempt:
            return await append_once(transport, request, content)
    raise AssertionError("the retrier returns or raises")


def is_safe_to_repeat(error: BaseException) -> bool:
    """Tell whether a failed append wrote nothing, for a transient reason."""
    return isinstance(error, (JournalUnavailableError, EndpointError))


class _Append:
    """One append in progress."""

    def __init__(
        self,
        transport: JournalTransport,
        request: AppendRequest,
        content: Sequence[bytes | memoryview],
        in_turn: Pipelined | None,
    ) -> None:
        self._transport = transport
        self._request = request
        self._content = content
        self._in_turn = in_turn
        self._commit_sent = False
        self._size = sum(map(len, content))

    @property
    def _journal(self) -> str:
        return self._request.journal

    async def run(self) -> AppendResponse:
        await self._transport.channels.sweep()
        peer = self._transport.peer_for(self._journal, primary=True)
        response = await self._append_streamed(peer) if self._goes_streamed(peer) else None
        if response is None:
            self._require_no_predecessors()
            response = await self._exchanged(peer, self._open(peer), self._exchange)
        assert response is not None, "a stream has an answer, or fails"
        return self._checked(peer, response)

    async def _append_streamed(self, peer: Peer) -> AppendResponse | None:
        """Return the answer to a single message; None if it was not sent."""
        return await self._exchanged(peer, self._start(peer), partial(self._exchange_whole, peer))

    def _require_no_predecessors(self) -> None:
        if self._in_turn is not None and self._in_turn.after:
            problem = (
                "the broker does not pipeline appends, its predecessors went to another broker, "
                "or it is too long for one message"
            )
            raise PredecessorNotCommittedError(self._journal, problem)

    def _goes_streamed(self, peer: Peer) -> bool:
        # Before a connection is made, only a separate call tells whether anything was sent.
        after = self._in_turn.after if self._in_turn is not None else ()
        return (
            self._size <= self._transport.policy.single_message_bytes_max
            and peer.bulk.append_stream is not None
            and self._transport.channels.state(peer.endpoint) is grpc.ChannelConnectivity.READY
            and all(turn.endpoint == peer.endpoint for turn in after)
        )

    async def _exchanged(
        self,
        peer: Peer,
        call: CallT,
        exchange: Callable[[CallT], Awaitable[AppendResponse | None]],
    ) -> AppendResponse | None:
        """Return the answer of a call, or raise the exception for its failure."""
        try:
            return await exchange(call)
        except grpc.aio.AioRpcError as error:
            self._transport.note_failure(self._journal, error)
            raise self._translated(peer, error) from error
        except asyncio.CancelledError as error:
            call.cancel()
            if not cancelled_by_peer():
                raise
            lost = EndpointError(peer.endpoint, "the broker cancelled the append")
            raise (self._unknown(str(lost)) if self._commit_sent else lost) from error

    def _open(self, peer: Peer) -> grpc.aio.StreamUnaryCall[AppendRequest | bytes, AppendResponse]:
        call = peer.bulk.append(metadata=self._metadata(), timeout=self._timeout_seconds)
        self._transport.channels.track(peer.endpoint, call)
        return call

    def _start(self, peer: Peer) -> AppendUnderWay:
        assert peer.bulk.append_stream is not None, "asked before"
        in_turn = self._in_turn or Pipelined(b"")
        append = AppendStreamRequest.Append(
            parameters=self._request,
            name=in_turn.name,
            after=[turn.name for turn in in_turn.after],
            metadata=dict(self._metadata()),
        )
        call = peer.bulk.append_stream.start(
            append, self._content, timeout_seconds=self._timeout_seconds
        )
        self._transport.channels.track(peer.endpoint, call)
        if in_turn.name:
            in_turn.on_sent(AppendToken(peer.endpoint, in_turn.name))
        return call

    @property
    def _timeout_seconds(self) -> float:
        return APPEND_TIMEOUT_SECONDS + self._size / APPEND_BYTES_PER_SECOND_MIN

    def _metadata(self) -> RpcMetadata:
        return self._transport.journal_metadata(
            Capability.APPEND, self._journal, life_seconds=TOKEN_LIFE_SECONDS
        )

    async def _exchange_whole(self, peer: Peer, call: AppendUnderWay) -> AppendResponse | None:
        """Return the answer; None if the append was not sent, so that a separate call may send it."""
        # The single message includes the commit, so a lost answer leaves the outcome unknown.
        self._commit_sent = True
        try:
            return await call
        except AppendNotSentError as error:
            self._commit_sent = False
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                peer.bulk.append_stream = None
            # Otherwise the separate call tells what is wrong with the broker, and whether it takes this append.
            return None

    async def _exchange(
        self, call: grpc.aio.StreamUnaryCall[AppendRequest | bytes, AppendResponse]
    ) -> AppendResponse:
        try:
            await call.write(self._request)
            for chunk in chunks_of(self._content, self._transport.policy.chunk_bytes):
                await call.write(encode_append_chunk(chunk))
            # From here on the broker may commit, whatever happens here: a write that fails may have
            # arrived.
            self._commit_sent = True
            await call.write(AppendRequest())
            await call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.InternalError):
            # A connection that breaks during a write raises InternalError. A failed write only
            # means that there is something to read: an early answer, or the error itself.
            pass
        return await call

    def _translated(self, peer: Peer, error: grpc.aio.AioRpcError) -> ServiceError:
        # Only for a pipelined append does this code have a defined meaning. Otherwise the broker,
        # or a proxy in front of it, may mean anything.
        comes_after = self._in_turn is not None and self._in_turn.after
        if comes_after and error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return PredecessorNotCommittedError(self._journal, str(error.details()))
        translated = error_of_rpc(peer.endpoint, error)
        # After the commit, only codes that precede the broker's work prove that nothing was
        # written.
        if self._commit_sent and error.code() not in _REFUSING_CODES:
            return self._unknown(str(translated))
        return translated

    def _unknown(self, detail: str) -> AppendOutcomeUnknownError:
        return AppendOutcomeUnknownError(self._journal, f"the answer was lost: {detail}")

    def _checked(self, peer: Peer, response: AppendResponse) -> AppendResponse:
        """Return a good answer, or raise the exception for a refusal."""
        try:
            validate_append_response(response)
            require(
                # An earlier OK would acknowledge content that the broker cannot have.
                response.status != _OK or self._commit_sent,
                "status",
                "expected no OK before the commit was sent",
            )
        except ValidationError as error:
            raise JournalProtocolError(self._journal, f"{peer.endpoint}: {error}") from error
        self._transport.learn(self._journal, response.header)
        if response.status == _OK:
            return response
        if response.status == Status.REGISTER_MISMATCH:
            raise RegisterMismatchError(self._journal, response.registers)
        raise self._refusal(response)

    def _refusal(self, response: AppendResponse) -> JournalError:
        detail = response.store_health_error
        if response.status == Status.WRONG_APPEND_OFFSET:
            detail = f"it demanded offset {self._request.offset}"
        return error_of_status(self._journal, response.status, detail)


def chunks_of(
    content: Sequence[bytes | memoryview], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Sequence[bytes | memoryview]]:
    """Cut and group pieces, uncopied, into chunks of at most `chunk_bytes`.

    None is empty, because an empty one means commit.
    """
    small: list[bytes | memoryview] = []
    size = 0
    for piece in content:
        if size + len(piece) > chunk_bytes and small:
            yield small
            small, size = [], 0
        if len(piece) >= chunk_bytes:
            view = memoryview(piece)
            for begin in range(0, len(piece), chunk_bytes):
                yield [view[begin : begin + chunk_bytes]]
        elif piece:
            small.append(piece)
            size += len(piece)
    if small:
        yield small
