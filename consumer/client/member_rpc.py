"""RPCs to a cluster's members: channels, a token for each request, and errors as exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from broadsheet.consumer.client.endpoints import Addresses, KnownEndpoints
from broadsheet.consumer.errors import (
    NoShardPrimaryError,
    NotShardPrimaryError,
    ShardError,
    ShardNotFoundError,
    ShardStoppedError,
)
from broadsheet.consumer.resolver.resolver import CHANNEL_OPTIONS
from broadsheet.consumer.rpc.grpc_status import CAUSE_METADATA
from broadsheet.journals.request_errors import never_connected
from broadsheet.runtime.errors import (
    BoundExceededError,
    BroadsheetError,
    EndpointError,
    RpcFailedError,
    ValidationError,
)
from broadsheet.security.actor import ACTOR, local_actor
from broadsheet.security.auth import Capability, Claims, ClientAuth, NoAuth, expiring
from broadsheet.security.endpoints import FAILING_STATES, open_channel, parse_endpoints
from broadsheet.security.errors import NotAuthorizedError, ProxyHeaderError, UnauthenticatedError
from broadsheet.security.tls import TlsConfig, handshake_advice
from broadsheet.serving.tracing import tracing
from broadsheet.wire.journal_pb2 import Header, LabelSelector, Route
from broadsheet.wire.labels import ID, label_set, selector
from broadsheet.wire.shard_pb2 import Status

ResponseT = TypeVar("ResponseT", bound=Message)
TOKEN_LIFE_SECONDS = 60.0
"""Life of the token made for one request; the server ends a longer one with it."""
CONNECT_SECONDS_MAX = 2.0
"""How long a member may take to be connected before another is asked."""
CONNECT_LOOK_SECONDS = 0.01
"""Between two looks whether it is."""
DOUBT_SECONDS_FIRST, DOUBT_RATIO = 1.0, 2.0
"""How long a member may take to answer before it must show that it takes a new connection, and how much longer each
further time: one that is stopped or cut off keeps its old ones, and nothing else tells before the deadline."""
_READY = grpc.ChannelConnectivity.READY
PassedOver: TypeAlias = Callable[[EndpointError], None]
_log = structlog.get_logger()

# Outcomes of Shard requests as exceptions: the inverse of `broadsheet.consumer.rpc.grpc_status`.

_ERROR_BY_STATUS: dict[int, type[ShardError]] = {
    Status.SHARD_NOT_FOUND: ShardNotFoundError,
    Status.NO_SHARD_PRIMARY: NoShardPrimaryError,
    Status.NOT_SHARD_PRIMARY: NotShardPrimaryError,
    Status.SHARD_STOPPED: ShardStoppedError,
}


def error_of_status(
    shard_id: str, status: Status.ValueType, header: Header | None, cause: str = ""
) -> ShardError:
    """Return the exception for a shard's status other than OK."""
    kind = _ERROR_BY_STATUS.get(status)
    if kind is None:
        name = Status.Name(status) if status in Status.values() else str(status)
        return ShardError(shard_id, header, f"the server answered {name}")
    return kind(shard_id, header, cause)


def error_of_rpc(address: str, error: grpc.aio.AioRpcError) -> BroadsheetError | TimeoutError:
    """Return the exception for a failed request.

    Args:
        address: The endpoint that was asked.
        error: What gRPC raised.
    """
    code, detail = error.code(), error.details() or "no details"
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            advice = handshake_advice(address, detail)
            shown = f"{advice} ({detail})" if advice else detail
            return EndpointError(address, shown, never_connected=never_connected(detail))
        case grpc.StatusCode.CANCELLED:
            # The server cancelled, because it is stopping: our own cancellation is CancelledError.
            return EndpointError(address, f"it ended the call: {detail}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimeoutError(f"{address} did not answer in time: {detail}")
        case grpc.StatusCode.INVALID_ARGUMENT:
            field_path, _, problem = detail.partition(": ")
            return ValidationError(field_path if problem else "", problem or detail)
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(f"{address}: {detail}")
        case grpc.StatusCode.PERMISSION_DENIED:
            return NotAuthorizedError(f"{address}: {detail}")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ProxyHeaderError(f"{address}: {detail}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BoundExceededError(f"{address}: {detail}")
        case _:
            return RpcFailedError(address, code.name, detail)


@dataclass(frozen=True, slots=True)
class RpcMethod(Generic[ResponseT]):
    """A method of a member's service."""

    # `Any`: a service's stub, whose methods differ in their types alone, which the response's type restores.
    stub: Callable[[grpc.aio.Channel], Any]
    name: str
    response_type: type[ResponseT]

    @property
    def full_name(self) -> str:
        """`/package.Service/Method`."""
        service = self.stub.__name__.removesuffix("Stub")
        return f"/{self.response_type.DESCRIPTOR.file.package}.{service}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, independent of the member that receives it."""

    method: RpcMethod[Any]
    message: Message
    claims: Claims

    @property
    def may_repeat(self) -> bool:
        """Report whether the request changes nothing, so that it may be sent again even if a member has performed
        it.
        """
        return not self.claims.capability & Capability.APPLY


class MemberRpc:
    """Sends requests to one of the members that it knows. `async with` connects and closes it.

    A member is skipped, within the request's deadline, if it cannot be reached or has fallen silent on an open
    connection. A request that changes something is sent to another member only if the first one cannot have received
    it; if it is not answered in time, the next request goes to another member.
    """

    def __init__(
        self,
        address: Addresses,
        *,
        auth: ClientAuth | None = None,
        timeout_seconds: float = 10.0,
        on_passed_over: PassedOver | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        """Prepare; see `MemberClient`."""
        self._on_passed_over = on_passed_over or _log_passed_over
        self._known = KnownEndpoints(parse_endpoints(address, may_be_tls=True))
        self._tls = tls
        self._auth = auth or NoAuth()
        self._timeout_seconds = timeout_seconds
        self._actor = local_actor()
        self._tracing = tracing()
        self._channels: dict[str, grpc.aio.Channel] | None = None
        self._stubs: dict[tuple[str, Callable[[grpc.aio.Channel], Any]], Any] = {}
        """By endpoint and class: one is as expensive to make as a short call."""

    @property
    def address(self) -> str:
        """The member that is asked first."""
        return self._known.current

    def learn(self, routes: Iterable[Route]) -> None:
        """Keep the members that an answer names as a reserve."""
        self._known.learn(endpoint for route in routes for endpoint in route.endpoints)

    async def request(
        self,
        method: RpcMethod[ResponseT],
        message: Message,
        claims: Claims,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[ResponseT, str]:
        """Perform one RPC; return its answer and the cause that a stopped shard gave.

        Raises:
            EndpointError: no member can be reached; or the one that was asked is gone, and may have made the change.
            TimeoutError: the deadline passed.
            BroadsheetError: what the server met.
        """
        wanted = _Request(method, message, claims)
        deadline = _now() + (timeout_seconds or self._timeout_seconds)
        if self._tracing is None:
            return await self._request(wanted, deadline)
        with self._tracing.calling(method.full_name):
            return await self._request(wanted, deadline)

    # `Any`: the method's response, as in `request`.
    async def _request(self, wanted: _Request, deadline: float) -> tuple[Any, str]:
        endpoints = self._known.in_turn()
        for number, endpoint in enumerate(endpoints, start=1):
            is_last = number == len(endpoints)
            try:
                if not is_last:
                    await self._connect(endpoint, deadline)
                call = self._call(endpoint, wanted, deadline)
                if not is_last and wanted.may_repeat:
                    await self._answered_or_silent(endpoint, call, deadline)
                response = await self._answer(endpoint, call)
            except TimeoutError:
                self._known.fell_silent(endpoint)
                raise
            except EndpointError as error:
                if is_last:
                    raise _of_all(endpoints, error) from error
                if self._channels is None or not (error.never_connected or wanted.may_repeat):
                    raise
                self._known.fell_silent(endpoint)
                self._on_passed_over(error)
                continue
            assert isinstance(response, wanted.method.response_type), (
                "a stub returns its method's response"
            )
            self._known.answered(endpoint)
            return response, _cause_in(await call.trailing_metadata() or ())
        raise AssertionError("a client knows at least one member")

    async def stream(
        self,
        method: RpcMethod[ResponseT],
        message: Message,
        claims: Claims,
        *,
        timeout_seconds: float,
        silence_seconds: float | None = None,
    ) -> AsyncGenerator[ResponseT, None]:
        """Perform one RPC that answers with a stream; yield its responses.

        Args:
            method: What to call.
            message: The request.
            claims: What it needs.
            timeout_seconds: Deadline of all of it.
            silence_seconds: Longest time between two responses of a member that lives; None: any.

        Raises:
            EndpointError: no member can be reached, or the one that was asked is gone or silent.
            TimeoutError: the deadline passed.
            BroadsheetError: what the server met.
        """
        wanted = _Request(method, message, claims)
        deadline = _now() + timeout_seconds
        endpoint = await self._connected(deadline)
        call = self._call(endpoint, wanted, deadline)
        responses = aiter(call)
        try:
            while True:
                async with asyncio.timeout(silence_seconds):
                    response = await anext(responses, None)
                if response is None:
                    return
                self._known.answered(endpoint)
                assert isinstance(response, method.response_type), (
                    "a stub returns its method's response"
                )
                yield response
        except TimeoutError as error:
            self._known.fell_silent(endpoint)
            raise EndpointError(endpoint, f"no response for {silence_seconds} s") from error
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._known.fell_silent(endpoint)
            raise error_of_rpc(endpoint, error) from error
        finally:
            call.cancel()

    async def _connected(self, deadline: float) -> str:
        """Return the first member that can be reached, or the last one."""
        *others, last = self._known.in_turn()
        for endpoint in others:
            try:
                await self._connect(endpoint, deadline)
            except EndpointError as error:
                self._on_passed_over(error)
                continue
            self._known.answered(endpoint)
            return endpoint
        return last

    async def _connect(self, endpoint: str, deadline: float) -> None:
        """Wait until a member is connected, if another could be asked instead.

        A request to the last member needs no such wait: gRPC says why it could not be sent.

        Raises:
            EndpointError: it cannot be reached.
        """
        await _ready(self._channel(endpoint), endpoint, deadline)

    async def _answered_or_silent(self, endpoint: str, call: Any, deadline: float) -> None:
        """Return once a call is done.

        Raises:
            EndpointError: it is not done, and its member takes no new connection.
        """
        patience_seconds = DOUBT_SECONDS_FIRST
        try:
            while not call.done():
                await _done_or_late(call, patience_seconds)
                if call.done():
                    return
                patience_seconds *= DOUBT_RATIO
                async with self._new_channel(endpoint) as channel:
                    await _ready(channel, endpoint, deadline)
        except EndpointError as error:
            if call.done():
                return
            raise EndpointError(endpoint, f"no answer, and {error.detail}") from error
        finally:
            if not call.done():
                call.cancel()

    def _call(self, endpoint: str, wanted: _Request, deadline: float) -> Any:
        method = wanted.method
        stub = self._stubs.get((endpoint, method.stub))
        if stub is None:
            stub = self._stubs[endpoint, method.stub] = method.stub(self._channel(endpoint))
        perform: Callable[..., Any] = getattr(stub, method.name)
        return perform(
            wanted.message,
            timeout=max(0.0, deadline - _now()),
            metadata=self._metadata(wanted.claims),
        )

    async def _answer(self, endpoint: str, call: Any) -> object:
        """Return a call's answer, or raise its error."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise error_of_rpc(endpoint, error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                # We were not cancelled: this is how gRPC says that the channel was closed during the call.
                raise EndpointError(endpoint, "the client was closed") from None
            raise

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        assert self._channels is not None, "use the client in `async with`"
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._new_channel(endpoint)
        return channel

    def _new_channel(self, endpoint: str) -> grpc.aio.Channel:
        return open_channel(endpoint, self._tls, options=CHANNEL_OPTIONS)

    def _metadata(self, claims: Claims) -> Sequence[tuple[str, str]]:
        shown = (*self._auth.metadata(claims), (ACTOR, self._actor))
        return shown if self._tracing is None else (*shown, *self._tracing.metadata())

    async def __aenter__(self) -> Self:
        self._channels = {}
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        channels, self._channels = self._channels or {}, None
        self._stubs.clear()
        for channel in channels.values():
            await channel.close(None)


class MemberClient:
    """Base of the clients of a member's services. `async with` connects and closes it."""

    def __init__(
        self,
        address: Addresses,
        *,
        auth: ClientAuth | None = None,
        timeout_seconds: float = 10.0,
        on_passed_over: PassedOver | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        """Create a client; it connects with its first request.

        Args:
            address: Of any member, or of several: `http://host:port`, `https://host:port` or `host:port`, separated by
                commas. One that cannot be reached is passed over.
            auth: Signs each request with no wider claims than it needs; None attaches nothing.
            timeout_seconds: Deadline of each request, unless a call says otherwise.
            on_passed_over: Called when a member cannot be reached and another is asked; None: a log event.
            tls: Files for `https://`; None: members' certificates must be signed by a public authority.

        Raises:
            ValidationError: `address` is no address.
        """
        self._rpc = MemberRpc(
            address,
            auth=auth,
            timeout_seconds=timeout_seconds,
            on_passed_over=on_passed_over,
            tls=tls,
        )

    @property
    def address(self) -> str:
        """The member that is asked."""
        return self._rpc.address

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


def shard_claims(
    capability: Capability,
    shard_id: str,
    *further_ids: str,
    life_seconds: float = TOKEN_LIFE_SECONDS,
) -> Claims:
    """Return the claims of a request about these shards, of which there is at least one: none would mean all."""
    return expiring(capability, _naming((shard_id, *further_ids)), life_seconds=life_seconds)


@lru_cache(maxsize=1_024)
def _naming(shard_ids: tuple[str, ...]) -> LabelSelector:
    """Return the selector of shards, which is not to be changed; a client asks for the same ones again and again."""
    return selector(label_set(*((ID, shard_id) for shard_id in shard_ids)))


async def _done_or_late(call: Any, seconds: float) -> None:
    """Return once a call is done, or some time has passed: one future, because this is a part of every short call."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    call.add_done_callback(wake)
    timer = loop.call_later(seconds, wake)
    try:
        await woken
    finally:
        timer.cancel()


async def _ready(channel: grpc.aio.Channel, endpoint: str, deadline: float) -> None:
    """Wait until a channel is connected, for `CONNECT_SECONDS_MAX` at most.

    Raises:
        EndpointError: it is not.
    """
    ends = min(deadline, _now() + CONNECT_SECONDS_MAX)
    while (state := channel.get_state(try_to_connect=True)) is not _READY:
        if state in FAILING_STATES or _now() >= ends:
            raise EndpointError(endpoint, "no connection", never_connected=True)
        # gRPC's own watches outlive a cancelled wait.
        await asyncio.sleep(CONNECT_LOOK_SECONDS)


def _cause_in(metadata: Any) -> str:
    values = [value for key, value in metadata if key == CAUSE_METADATA]
    return values[0].decode(errors="replace") if values else ""


def _of_all(endpoints: Sequence[str], last: EndpointError) -> EndpointError:
    """Return the error of the member that was asked last, which names all that were asked."""
    if len(endpoints) == 1:
        return last
    return EndpointError(", ".join(endpoints), last.detail, never_connected=last.never_connected)


def _log_passed_over(error: EndpointError) -> None:
    _log.warning("client.member_unreachable", address=error.address, cause=error.detail)


def _now() -> float:
    return asyncio.get_running_loop().time()
