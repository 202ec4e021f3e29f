"""The test application with a service in both conventions: by metadata, and with the fields of its messages.

Messages are borrowed: StatRequest asks, and `publish_at["total"]` of StatResponse is the sum of the shard's counts.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import Message

from broadsheet.consumer.application import Resolver
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.shard_call import serving_shard
from broadsheet.wire.shard_metadata import shard_in
from broadsheet.wire.shard_pb2 import GetHintsRequest, StatRequest, StatResponse, Status
from tests.support.tally import Tally, total_of

TOTAL = "total"

# `Any`: grpc.aio passes each handler its context.
Context = Any


class TallyStub:
    """What a generated stub of the service would be. `Any`: gRPC's callables are generic in messages only."""

    def __init__(self, channel: Any) -> None:
        def method(name: str, request_type: type[Message] = StatRequest) -> Any:
            return channel.unary_unary(
                f"/test.AskedTally/{name}",
                request_serializer=request_type.SerializeToString,
                response_deserializer=StatResponse.FromString,
            )

        self.Count = method("Count")
        """Refuses, and honours tokens, by metadata."""
        self.CountInBand = method("CountInBand")
        """Refuses, and waits for offsets, as its messages say."""
        self.CountWithoutToken = method("CountWithoutToken", GetHintsRequest)
        """Knows nothing of tokens: neither does its request have a field for them."""
        self.Fail = method("Fail")
        """Ends with the gRPC code that the request's shard names."""
        self.Watch = channel.unary_stream(
            "/test.AskedTally/Watch",
            request_serializer=StatRequest.SerializeToString,
            response_deserializer=StatResponse.FromString,
        )
        """A stream of two equal answers."""


class AskedTally(Tally):
    """Serves `test.AskedTally`."""

    asked = 0
    """Calls of any method."""

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Add the service."""
        api = _Api(self, resolver)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                getattr(api, name),
                request_deserializer=StatRequest.FromString,
                response_serializer=StatResponse.SerializeToString,
            )
            for name in ("Count", "CountInBand", "Fail")
        }
        handlers["CountWithoutToken"] = grpc.unary_unary_rpc_method_handler(
            api.CountWithoutToken,
            request_deserializer=GetHintsRequest.FromString,
            response_serializer=StatResponse.SerializeToString,
        )
        handlers["Watch"] = grpc.unary_stream_rpc_method_handler(
            api.Watch,
            request_deserializer=StatRequest.FromString,
            response_serializer=StatResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.AskedTally", handlers),)
        )


class _Api:
    def __init__(self, application: AskedTally, resolver: Resolver) -> None:
        self._application = application
        self._resolver = resolver

    async def Count(self, request: StatRequest, context: Context) -> StatResponse:  # noqa: N802
        self._application.asked += 1
        async with serving_shard(self._resolver, context, request.shard) as resolution:
            return _answer(await resolution.call(total_of))

    async def CountInBand(self, request: StatRequest, context: Context) -> StatResponse:  # noqa: N802
        self._application.asked += 1
        async with await self._resolver.resolve(
            request.shard,
            claims=claims_of(context),
            may_proxy=False,
            read_through=request.read_through,
        ) as resolution:
            if resolution.shard is None:
                return StatResponse(status=resolution.status, header=resolution.header)
            return _answer(await resolution.call(total_of))

    async def CountWithoutToken(self, request: GetHintsRequest, context: Context) -> StatResponse:  # noqa: N802
        self._application.asked += 1
        wanted = request.shard or shard_in(context.invocation_metadata())
        async with await self._resolver.resolve(
            wanted, claims=claims_of(context), may_proxy=True
        ) as resolution:
            if resolution.shard is None:
                return StatResponse(status=resolution.status, header=resolution.header)
            return _answer(await resolution.call(total_of))

    async def Fail(self, request: StatRequest, context: Context) -> StatResponse:  # noqa: N802
        self._application.asked += 1
        await context.abort(grpc.StatusCode[request.shard], "as asked")
        raise AssertionError("abort raises")

    async def Watch(self, request: StatRequest, context: Context) -> Any:  # noqa: N802
        async with serving_shard(self._resolver, context, request.shard) as resolution:
            for _ in range(2):
                yield _answer(await resolution.call(total_of))


def _answer(total: int) -> StatResponse:
    return StatResponse(status=Status.OK, publish_at={TOTAL: total})
