"""One call to etcd: pick an endpoint, attach the token, and retry where that is safe until the deadline.

* An idempotent call is retried after any transient failure; a write only if the failure proves that no server saw it.
* Every answer must come from the cluster that answered first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import grpc
import grpc.aio
import tenacity
from google.protobuf.message import Message

from broadsheet.allocator.errors import AllocatorError, ClusterMismatchError, EtcdUnavailableError
from broadsheet.allocator.etcd import rpc_pb2
from broadsheet.allocator.etcd.channel import ChannelPool, EndpointChannel
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.etcd.status import EtcdFailure, outcome_of, translated
from broadsheet.runtime.clock import Clock

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
RETRY_DELAY_SECONDS_MAX = 0.5
AUTHENTICATE_PATH = "/etcdserverpb.Auth/Authenticate"

Metadata = tuple[tuple[str, str], ...]


class _HasHeader(Protocol):
    @property
    def header(self) -> rpc_pb2.ResponseHeader: ...


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """One of etcd's unary methods."""

    path: str
    response_type: type[ResponseT]

    async def invoke(
        self, channel: grpc.aio.Channel, request: RequestT, metadata: Metadata, timeout: float
    ) -> ResponseT:
        """Call the method once."""
        stub = channel.unary_unary(
            self.path,
            request_serializer=_serialized,
            response_deserializer=self.response_type.FromString,
        )
        return await stub(request, metadata=metadata, timeout=timeout)


Invocation = Callable[[grpc.aio.Channel, Metadata, float], Awaitable[ResponseT]]
"""One attempt on a channel, with metadata and a timeout in seconds."""


class CallObserver(Protocol):
    """Told of each unary call, for metrics."""

    def on_called(self, method: str, seconds: float, *, failed: bool) -> None:
        """Take the name of the method, `Txn`, and how long the call took, retries included."""
        ...


class NoAnswerError(Exception):
    """A stream ended without an error but also without an answer."""


@dataclass(slots=True)
class _Call:
    """One call in progress, over its attempts."""

    deadline_monotonic_seconds: float
    idempotent: bool
    told: EtcdUnavailableError | None = None
    """The last failure that gave a reason, rather than only that time ran out."""

    def explained(self, error: AllocatorError) -> AllocatorError:
        """Return `error`, the last one; with the last known reason if it only says that time ran out."""
        if self.told is None or self.told is error or not isinstance(error, EtcdUnavailableError):
            return error
        return EtcdUnavailableError(
            self.told.endpoints, f"{error.detail}; before that: {self.told.detail}"
        )


class _AttemptFailedError(Exception):
    """An attempt failed; `error` is raised unless the attempt is repeated, which `again` allows."""

    def __init__(self, error: AllocatorError, *, again: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.again = again


def _may_be_repeated(error: BaseException) -> bool:
    return isinstance(error, _AttemptFailedError) and error.again


class Caller:
    """Performs calls on a pool of channels."""

    def __init__(
        self,
        pool: ChannelPool,
        config: EtcdConfig,
        clock: Clock,
        observer: CallObserver | None = None,
    ) -> None:
        self.pool = pool
        self._observer = observer
        self._config = config
        self._request_seconds = config.deadlines.request
        self._clock = clock
        self._token: str | None = None
        self._cluster_id = 0
        self._told: EtcdUnavailableError | None = None
        """The last reason of a failure, until a call is answered: the next may wait for a connection all its time."""

    @property
    def clock(self) -> Clock:
        """The clock of the deadlines."""
        return self._clock

    @property
    def request_timeout_seconds(self) -> float:
        """Deadline of one call."""
        return self._request_seconds

    async def unary(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, idempotent: bool
    ) -> ResponseT:
        """Call a unary method; see `call`."""
        began = self._clock.monotonic_seconds()
        failed = True
        try:
            response = await self.call(
                lambda channel, metadata, timeout: method.invoke(
                    channel, request, metadata, timeout
                ),
                idempotent=idempotent,
            )
            failed = False
        finally:
            if self._observer is not None:
                seconds = self._clock.monotonic_seconds() - began
                name = method.path.rpartition("/")[2]
                self._observer.on_called(name, seconds, failed=failed)
        return response

    async def call(self, invocation: Invocation[ResponseT], *, idempotent: bool) -> ResponseT:
        """Attempt a call until it is answered, must not be repeated, or its deadline passes.

        Args:
            invocation: One attempt.
            idempotent: Whether it may be repeated although a server may have performed it.

        Raises:
            EtcdUnavailableError: no answer in time.
            EtcdError: the answer is a refusal.
        """
        call = _Call(
            self._clock.monotonic_seconds() + self._request_seconds, idempotent, self._told
        )
        try:
            try:
                return await self._attempt(invocation, call)
            except _AttemptFailedError as failed:
                # Nearly every call ends above, without the cost of the retry machinery below.
                remaining = call.deadline_monotonic_seconds - self._clock.monotonic_seconds()
                if not failed.again or remaining <= 0:
                    raise
            retrying = tenacity.AsyncRetrying(
                stop=tenacity.stop_before_delay(remaining),
                wait=tenacity.wait_random_exponential(multiplier=0.02, max=RETRY_DELAY_SECONDS_MAX),
                retry=tenacity.retry_if_exception(_may_be_repeated),
                reraise=True,
            )
            return await retrying(self._attempt, invocation, call)
        except _AttemptFailedError as failed:
            raise call.explained(failed.error) from failed.__cause__

    async def metadata(self, channel: EndpointChannel, *, timeout_seconds: float) -> Metadata:
        """Return the metadata that authenticates a call, logging in first if need be."""
        if self._config.username is None or self._config.password is None:
            return ()
        token = self._token
        if token is None:
            method: Method[rpc_pb2.AuthenticateRequest, rpc_pb2.AuthenticateResponse] = Method(
                AUTHENTICATE_PATH, rpc_pb2.AuthenticateResponse
            )
            request = rpc_pb2.AuthenticateRequest(
                name=self._config.username, password=self._config.password
            )
            response = await method.invoke(channel.channel, request, (), timeout_seconds)
            token = self._token = response.token
        return (("token", token),)

    def forget_token(self, metadata: Metadata) -> None:
        """Log in again before the next call, unless another call did since `metadata` was made."""
        if metadata == (("token", self._token),):
            self._token = None

    def check_cluster(self, header: rpc_pb2.ResponseHeader) -> None:
        """Verify that an answer comes from the cluster that answered first.

        Raises:
            ClusterMismatchError: it comes from another.
        """
        if header.cluster_id == self._cluster_id or not header.cluster_id:
            return
        if self._cluster_id:
            raise ClusterMismatchError(self._cluster_id, header.cluster_id)
        self._cluster_id = header.cluster_id

    async def _attempt(self, invocation: Invocation[ResponseT], call: _Call) -> ResponseT:
        remaining = call.deadline_monotonic_seconds - self._clock.monotonic_seconds()
        if remaining <= 0:
            late = EtcdUnavailableError(self.pool.endpoints, "the deadline passed")
            raise _AttemptFailedError(late, again=False)
        channel = await self.pool.pick(timeout_seconds=remaining)
        remaining = call.deadline_monotonic_seconds - self._clock.monotonic_seconds()
        # Leave time to ask another endpoint if this one turns out to be silent.
        share = 0.5 if call.idempotent and len(self.pool) > 1 else 1.0
        timeout_seconds = max(remaining * share, 0.001)
        metadata: Metadata = ()
        try:
            metadata = await self.metadata(channel, timeout_seconds=timeout_seconds)
            response = await invocation(channel.channel, metadata, timeout_seconds)
        except asyncio.CancelledError:
            # gRPC also cancels calls when their channel is closed, and that is no cancellation of our task.
            self.pool.check_not_closed_under_call()
            raise
        except grpc.aio.AioRpcError as error:
            failure = translated(error, self.pool.endpoints)
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                # It was connected but silent, so the next attempt asks another endpoint.
                self.pool.suspect(channel)
            elif isinstance(failure, EtcdUnavailableError):
                call.told = self._told = failure
            outcome = outcome_of(error)
            if outcome is EtcdFailure.NEW_TOKEN_NEEDED:
                self.forget_token(metadata)
            again = _may_repeat(outcome, had_token=bool(metadata), idempotent=call.idempotent)
            raise _AttemptFailedError(failure, again=again) from error
        except NoAnswerError as error:
            call.told = unanswered = EtcdUnavailableError(
                self.pool.endpoints, "the stream ended unanswered"
            )
            raise _AttemptFailedError(unanswered, again=call.idempotent) from error
        self._told = None
        # Every answer of etcd's has a header; the type of a generic message does not say so.
        self.check_cluster(cast("_HasHeader", response).header)
        return response


def _may_repeat(outcome: EtcdFailure, *, had_token: bool, idempotent: bool) -> bool:
    match outcome:
        case EtcdFailure.NOT_SENT:
            return True
        case EtcdFailure.NEW_TOKEN_NEEDED:
            # Without a token, the call that failed is the login itself.
            return had_token
        case EtcdFailure.UNKNOWN:
            return idempotent
        case EtcdFailure.REFUSED:
            return False


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
