"""Admission of a call: first its place among the others, then its token, then the size of its message.

Messages arrive as raw bytes and are parsed last, because the objects made from a hostile message take many times its
length.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from broadsheet.broker.faults import Context, answered, fault_of, malformed_fault
from broadsheet.broker.limits import BrokerLimits
from broadsheet.broker.resolution import JournalResolver
from broadsheet.security.audit import audit_record, audited
from broadsheet.security.auth import Capability, Claims
from broadsheet.serving.metrics import CallMetrics
from broadsheet.serving.places import host_of
from broadsheet.serving.standard_services import Handler

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Admission:
    """Admission control of calls."""

    def __init__(
        self, resolver: JournalResolver, limits: BrokerLimits, metrics: CallMetrics
    ) -> None:
        self._resolver = resolver
        self._limits = limits
        self.metrics = metrics

    @contextmanager
    def _place(self, context: Context) -> Iterator[None]:
        """Hold a call's place among all, and among those of its connection and its host."""
        peer = context.peer()
        with self._limits.calls.taken(peer), self._limits.calls_of_hosts.taken(host_of(peer)):
            yield

    def call(
        self,
        inner: Callable[[Request, Claims, Context], Awaitable[Answer]],
        require: Capability,
        parse: Callable[[bytes], Request],
        *,
        bound: str = "request_bytes_max",
        changes: str = "",
    ) -> Callable[[bytes, Context], Awaitable[Answer]]:
        """Return the handler of a method with one request.

        Args:
            inner: Serves a request of a caller with these claims.
            require: What the caller's token must permit.
            parse: Decodes the request from its wire form.
            bound: Of the request's length.
            changes: The method, `/package.Service/Method`, if it changes something, which is logged then.
        """

        async def admitted(message: bytes, context: Context) -> Answer:
            async with answered(context):
                with self._place(context):
                    claims = await self._resolver.authorize(context, require)
                    bounds = self._limits.bounds
                    self._limits.refusals.require(len(message), bounds, bound, "request")
                    request = _parsed(message, parse)
                    if not changes:
                        return await inner(request, claims, context)
                    record = audit_record(changes, request, claims, context)
                    with audited(record, _code_of) as told:
                        answer = await inner(request, claims, context)
                        if answer is not None:
                            told(answer)
                        return answer
            raise AssertionError("an aborted call has ended")

        return admitted

    def stream(
        self, inner: Callable[[object, Context], Awaitable[Answer]]
    ) -> Callable[[Any, Context], Awaitable[Answer]]:
        """Return the handler of a method with a stream of requests, which authorizes and parses them itself."""

        async def admitted(requests: Any, context: Context) -> Answer:
            async with answered(context):
                with self._place(context):
                    return await inner(requests, context)
            raise AssertionError("an aborted call has ended")

        return admitted

    def public(self, inner: Handler) -> Handler:
        """Return the handler of a method that anybody may call; it has bounds of its own."""

        async def admitted(request: object, context: Context) -> object:
            async with answered(context):
                with self._limits.public_calls.taken(context.peer()):
                    return await inner(request, context)
            raise AssertionError("an aborted call has ended")

        return admitted

    def private(self, inner: Handler) -> Handler:
        """Return the handler of a method that shows the broker's inside; it needs READ."""

        async def admitted(request: object, context: Context) -> object:
            async with answered(context):
                with self._place(context):
                    await self._resolver.authorize(context, Capability.READ)
                    return await inner(request, context)
            raise AssertionError("an aborted call has ended")

        return admitted


def _code_of(error: BaseException) -> str:
    fault = fault_of(error) if isinstance(error, Exception) else None
    return "UNKNOWN" if fault is None else fault.code.name


def _parsed(message: bytes, parse: Callable[[bytes], Request]) -> Request:
    try:
        return parse(message)
    except DecodeError as error:
        raise malformed_fault(f"request: {error}") from error
