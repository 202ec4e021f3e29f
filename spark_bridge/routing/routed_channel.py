"""A `grpc.Channel` that leads to a shard's current primary, for an application's generated stub.

Methods with one request are retried while the shard moves; those with a stream of responses, until the first one came.
A stream of requests is collected first if it has one response. Methods in which both sides stream are refused, because
they could not be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, NoReturn

import grpc

from broadsheet.spark_bridge.routing.attempts import (
    Call,
    CallAttempt,
    CallTarget,
    of_unary,
    perform,
)
from broadsheet.spark_bridge.routing.channels import this_worker
from broadsheet.spark_bridge.routing.retry_policy import Outcome, of_answer, of_error

# `Any` throughout, because gRPC's callables are generic in their messages only, which differ by method.
Serializer = Callable[[Any], bytes] | None
Deserializer = Callable[[bytes], Any] | None
Metadata = Iterable[tuple[str, str | bytes]] | None


class RoutedChannel(grpc.Channel):
    """A channel to one shard's primary, over connections that the worker shares among its channels."""

    def __init__(self, target: CallTarget) -> None:
        self._target = target

    def unary_unary(
        self,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return the callable of a method."""
        return _UnaryUnary(self._target, method, request_serializer, response_deserializer)

    def unary_stream(
        self,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return the callable of a method that answers with a stream."""
        return _UnaryStream(self._target, method, request_serializer, response_deserializer)

    def stream_unary(
        self,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return the callable of a method that takes a stream."""
        return _StreamUnary(self._target, method, request_serializer, response_deserializer)

    def stream_stream(
        self,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return a callable that refuses."""

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise NotImplementedError(
                f"{method}: what both sides stream cannot be sent again to the shard's next primary; "
                "give the method one request, or one response"
            )

        return refuse

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> NoReturn:
        """Refuse, because the channel has no connection with a state."""
        raise NotImplementedError("a shard's channel has no connection of its own to subscribe to")

    def unsubscribe(self, callback: Any) -> None:
        """Do nothing, because `subscribe` always refuses."""

    def close(self) -> None:
        """Do nothing, because the worker owns the connections."""

    def __enter__(self) -> RoutedChannel:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Callable:
    """A method of a shard's service."""

    def __init__(
        self, target: CallTarget, method: str, serialize: Serializer, deserialize: Deserializer
    ) -> None:
        self._target = target
        self._method = method
        self._serialize = serialize
        self._deserialize = deserialize

    def _call(
        self, request: Any, timeout: float | None, metadata: Metadata, compression: Any
    ) -> Call:
        return Call(
            method=self._method,
            request=request,
            timeout_seconds=timeout,
            metadata=tuple(metadata or ()),
            compression=compression,
        )


class _OneResponse(_Callable):
    """A method with one response. `credentials` and `wait_for_ready` are ignored, because routing sets both."""

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        """Return the response."""
        return self.with_call(request, timeout, metadata, compression=compression)[0]

    def with_call(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        """Return the response, and the call that brought it."""
        del credentials, wait_for_ready
        call = self._call(self._sendable(request), timeout, metadata, compression)
        return perform(self._target, call, self._attempt)

    def future(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Future[Any]:
        """Start the call on one of the worker's threads; return a future of the response."""
        request = self._sendable(request)
        return this_worker().threads.submit(
            self, request, timeout, metadata, compression=compression
        )

    def _sendable(self, request: Any) -> Any:
        return request

    def _attempt(self, attempt: CallAttempt) -> tuple[Any, Outcome]:
        raise NotImplementedError


class _UnaryUnary(_OneResponse):
    def _attempt(self, attempt: CallAttempt) -> tuple[Any, Outcome]:
        method = attempt.channel.unary_unary(self._method, self._serialize, self._deserialize)
        return of_unary(self._target.shard_id, attempt, method.with_call)


class _StreamUnary(_OneResponse):
    def _sendable(self, request: Any) -> Any:
        # Collected, because an iterator could not be sent to a second member.
        return request if isinstance(request, tuple) else tuple(request)

    def _attempt(self, attempt: CallAttempt) -> tuple[Any, Outcome]:
        method = attempt.channel.stream_unary(self._method, self._serialize, self._deserialize)

        def begin(requests: Any, **options: Any) -> Any:
            return method.with_call(iter(requests), **options)

        return of_unary(self._target.shard_id, attempt, begin)


class _UnaryStream(_Callable):
    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Metadata = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> RoutedStream:
        """Return the responses. Errors before the first response are retried, later ones are raised."""
        del credentials, wait_for_ready
        call = self._call(request, timeout, metadata, compression)
        return perform(self._target, call, self._attempt)

    def _attempt(self, attempt: CallAttempt) -> tuple[RoutedStream | None, Outcome]:
        method = attempt.channel.unary_stream(self._method, self._serialize, self._deserialize)
        call = method(
            attempt.request,
            timeout=attempt.seconds,
            metadata=attempt.metadata,
        )
        if not call.add_callback(attempt.release):
            attempt.release()  # it is over already
        shard_id = self._target.shard_id
        try:
            first = next(call, None)
        except grpc.RpcError as error:
            return None, of_error(shard_id, error)
        outcome = of_answer(shard_id, first, call.initial_metadata(), asked=attempt.asked)
        return RoutedStream(call, first), outcome


class RoutedStream(Iterator[Any]):
    """The responses of one call whose first response has arrived."""

    def __init__(self, call: Any, first: Any) -> None:
        self._call = call
        self._first = first

    def __next__(self) -> Any:
        first, self._first = self._first, None
        return next(self._call) if first is None else first

    def cancel(self) -> None:
        """End the call before its last response."""
        self._call.cancel()

    def initial_metadata(self) -> Any:
        """Return the metadata that came before the first response."""
        return self._call.initial_metadata()

    def trailing_metadata(self) -> Any:
        """Return the metadata that came after the last response."""
        return self._call.trailing_metadata()
