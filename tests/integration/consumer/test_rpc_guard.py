"""What a member asks of a call before it looks at its message."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from broadsheet.consumer.rpc.call_limits import CallBounds, CallLimits
from broadsheet.consumer.rpc.guard import RpcGuard
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Capability, Claims, KeyedAuth, NoAuth
from broadsheet.serving.places import option_of
from broadsheet.wire.shard_pb2 import ListRequest
from tests.support.eventually import eventually

KEYS = b64encode(b"a key of the members, 32 bytes or more").decode()
MALFORMED = b"\xff\xff"
METHOD = "/consumer.Shard/List"


async def _list(request: ListRequest, context: object) -> bytes:
    raise AssertionError(f"served {request} {context}")


@pytest.mark.parametrize(
    ("is_known", "code"),
    [(False, grpc.StatusCode.UNAUTHENTICATED), (True, grpc.StatusCode.INVALID_ARGUMENT)],
)
async def test_message_is_parsed_once_the_caller_is_known(
    is_known: bool, code: grpc.StatusCode
) -> None:
    """Objects made of a message take many times its length, so strangers must not have any made. Which came first shows
    in how a malformed message of a stranger is refused.
    """
    auth = KeyedAuth(KEYS)
    server = grpc.aio.server(interceptors=(RpcGuard(auth, CallLimits(CallBounds())),))
    # `Any`: messages are raw on the client's side.
    method: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
        _list, ListRequest.FromString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("consumer.Shard", {"List": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    metadata = auth.metadata(Claims(capability=Capability.LIST)) if is_known else ()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(METHOD)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(MALFORMED, metadata=metadata)
    await server.stop(None)

    assert caught.value.code() == code


@pytest.mark.parametrize(
    ("bounds", "kind", "refused_by"),
    [
        (CallBounds(calls_max=2, calls_per_caller_max=9), "unary", "calls_max"),
        (CallBounds(calls_per_connection_max=2), "unary", "calls_per_connection_max"),
        (CallBounds(streams_max=2, streams_per_caller_max=9), "streaming", "streams_max"),
        (CallBounds(calls_max=4), "unary", "calls_per_caller_max"),
        (CallBounds(streams_max=4), "streaming", "streams_per_caller_max"),
        (CallBounds(streams_per_connection_max=2), "streaming", "streams_per_connection_max"),
    ],
)
async def test_calls_beyond_a_bound_are_refused_and_counted(
    bounds: CallBounds, kind: str, refused_by: str
) -> None:
    """A client that begins calls and never reads, or waits for ever, must not make a member hold any number of them.
    Who is refused learns which bound it was; once a place is free, calls are served again.
    """
    released, registry = asyncio.Event(), CollectorRegistry()
    limits = CallLimits(bounds, registry)

    async def unary(request: bytes, context: object) -> bytes:
        del request, context
        await released.wait()
        return b"answer"

    async def streaming(request: bytes, context: object) -> AsyncIterator[bytes]:
        yield await unary(request, context)

    server = grpc.aio.server(interceptors=(RpcGuard(NoAuth(), limits),))
    # `Any`: messages are raw.
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "unary": grpc.unary_unary_rpc_method_handler(unary),
        "streaming": grpc.unary_stream_rpc_method_handler(streaming),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.App", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def in_use() -> float | None:
        name = "streams_max" if kind == "streaming" else "calls_max"
        return registry.get_sample_value("broadsheet_member_in_use", {"bound": name})

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        one: Any = channel.unary_unary("/test.App/unary")
        several: Any = channel.unary_stream("/test.App/streaming")

        async def call() -> bytes:
            if kind == "unary":
                return bytes(await one(b""))
            [answer] = [bytes(each) async for each in several(b"")]
            return answer

        async with TaskGroup() as group:
            held = [group.start_soon(call(), name=f"call {number}") for number in range(2)]
            await eventually(lambda: in_use() == 2)
            with pytest.raises(grpc.aio.AioRpcError, match=option_of(refused_by)) as caught:
                await call()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            counted = {"bound": refused_by}
            assert registry.get_sample_value("broadsheet_member_refused_total", counted) == 1
            released.set()
        assert [each.result() for each in held] == [b"answer", b"answer"]
        await eventually(lambda: in_use() == 0)
        assert await call() == b"answer"
    await server.stop(None)
