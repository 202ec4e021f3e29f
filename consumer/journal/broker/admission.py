"""What every call passes before anything else: a place among the others, then its token, then the size of its message.

Messages arrive as raw bytes and are parsed last: objects made of a hostile message take many times its length.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from allocator.errors import ValidationError
from consumer.journal.broker.faults import Context, answered
from consumer.journal.broker.limits import Limits
from consumer.journal.broker.resolution import Resolver
from consumer.protocol.auth import Capability, Claims

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Admission:
    """Lets calls in."""

    def __init__(self, resolver: Resolver, limits: Limits) -> None:
        """Take what authorizes, and what is bounded."""
        self._resolver = resolver
        self._limits = limits

    def call(
        self,
        inner: Callable[[Request, Claims, Context], Awaitable[Answer]],
        require: Capability,
        parse: Callable[[bytes], Request],
        *,
        bound: str = "request_bytes_max",
    ) -> Callable[[bytes, Context], Awaitable[Answer]]:
        """Return the handler of a method with one request.

        Args:
            inner: Serves a request of a caller with such claims.
            require: What the caller's token must permit.
            parse: Makes the request of its wire form.
            bound: Of the request's length.
        """

        async def admitted(message: bytes, context: Context) -> Answer:
            async with answered(context):
                with self._limits.calls.taken(context.peer()):
                    claims = self._resolver.authorize(context.invocation_metadata(), require)
                    bounds = self._limits.bounds
                    self._limits.refusals.require(len(message), bounds, bound, "request")
                    return await inner(_parsed(message, parse), claims, context)
            raise AssertionError("an aborted call has ended")

        return admitted

    def stream(
        self, inner: Callable[[object, Context], Awaitable[Answer]]
    ) -> Callable[[Any, Context], Awaitable[Answer]]:
        """Return the handler of a method with a stream of requests, which authorizes and parses them by itself."""

        async def admitted(requests: Any, context: Context) -> Answer:
            async with answered(context):
                with self._limits.calls.taken(context.peer()):
                    return await inner(requests, context)
            raise AssertionError("an aborted call has ended")

        return admitted


def _parsed(message: bytes, parse: Callable[[bytes], Request]) -> Request:
    try:
        return parse(message)
    except DecodeError as error:
        raise ValidationError("request", f"malformed: {error}") from error
