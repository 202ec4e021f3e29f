"""One member's services, as clients reach them: a channel, a token a request, and failures as our own exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from consumer.client.client_errors import error_of_rpc
from consumer.errors import EndpointError
from consumer.journal.channels import parse_endpoint
from consumer.protocol.actor import ACTOR, local_actor
from consumer.protocol.auth import Claims, ClientAuth, NoAuth
from consumer.resolver.peers import CHANNEL_OPTIONS
from consumer.rpc.grpc_status import CAUSE_METADATA

ResponseT = TypeVar("ResponseT", bound=Message)

TOKEN_LIFE_SECONDS = 60.0
"""Life of the token made for one request; the server ends a longer one with it."""


class MemberRpc:
    """Sends requests to one member. `async with` connects and closes it."""

    def __init__(
        self, address: str, *, auth: ClientAuth | None = None, timeout_seconds: float = 10.0
    ) -> None:
        """Prepare.

        Args:
            address: Of any member: `http://host:port` or `host:port`.
            auth: Signs each request with no wider claims than it needs; None attaches nothing.
            timeout_seconds: Deadline of each request, unless a call says otherwise.

        Raises:
            ValidationError: `address` is no address.
        """
        self.address = address
        self._target = parse_endpoint(address).address
        self._auth = auth or NoAuth()
        self._timeout_seconds = timeout_seconds
        self._actor = local_actor()
        self._channel: grpc.aio.Channel | None = None

    async def request(
        self,
        # `Any`: a service's stub, whose methods differ in their types alone, which `response_type` restores.
        stub: Callable[[grpc.aio.Channel], Any],
        method: str,
        request: Message,
        claims: Claims,
        response_type: type[ResponseT],
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[ResponseT, str]:
        """Perform one RPC; return its answer and the cause that a stopped shard gave.

        Raises:
            EndpointError: the member cannot be reached.
            TimeoutError: the deadline passed.
            ConsumerError, AllocatorError: what the server met.
        """
        assert self._channel is not None, "use the client in `async with`"
        perform: Callable[..., Any] = getattr(stub(self._channel), method)
        call = perform(
            request,
            timeout=timeout_seconds or self._timeout_seconds,
            metadata=self._metadata(claims),
        )
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            raise error_of_rpc(self.address, error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                # Nobody cancelled us: gRPC's way to say that the channel was closed under the call.
                raise EndpointError(self.address, "the client was closed") from None
            raise
        assert isinstance(response, response_type), "a stub returns its method's response"
        return response, _cause_in(await call.trailing_metadata() or ())

    async def stream(
        self,
        # `Any`: as above.
        stub: Callable[[grpc.aio.Channel], Any],
        method: str,
        request: Message,
        claims: Claims,
        response_type: type[ResponseT],
        *,
        timeout_seconds: float,
    ) -> AsyncGenerator[ResponseT, None]:
        """Perform one RPC that answers with a stream; yield what it sends.

        Raises:
            EndpointError: the member cannot be reached.
            TimeoutError: the deadline passed.
            ConsumerError, AllocatorError: what the server met.
        """
        assert self._channel is not None, "use the client in `async with`"
        perform: Callable[..., Any] = getattr(stub(self._channel), method)
        call = perform(request, timeout=timeout_seconds, metadata=self._metadata(claims))
        try:
            async for response in call:
                assert isinstance(response, response_type), "a stub returns its method's response"
                yield response
        except grpc.aio.AioRpcError as error:
            raise error_of_rpc(self.address, error) from error
        finally:
            call.cancel()

    def _metadata(self, claims: Claims) -> Sequence[tuple[str, str]]:
        return (*self._auth.metadata(claims), (ACTOR, self._actor))

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._channel is not None:
            await self._channel.close(None)


def _cause_in(metadata: Any) -> str:
    values = [value for key, value in metadata if key == CAUSE_METADATA]
    return values[0].decode(errors="replace") if values else ""
