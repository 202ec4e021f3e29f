"""What a member asks of a call before it looks at its message."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import grpc
import pytest

from consumer.protocol.auth import Capability, Claims, KeyedAuth
from consumer.protocol.shard_pb2 import ListRequest
from consumer.rpc.guard import RpcGuard

KEYS = b64encode(b"a key of the members").decode()
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
    server = grpc.aio.server(interceptors=(RpcGuard(auth),))
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
