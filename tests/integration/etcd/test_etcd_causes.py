"""A call that runs into its deadline says what stood in its way, as far as it was ever told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig


@asynccontextmanager
async def _server_that_hangs_up_once() -> AsyncIterator[str]:
    """Close the first connection, and accept every later one without a word: gRPC then connects for ever."""
    held: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if held:
            held.append(writer)
            return
        held.append(writer)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in held:
            writer.close()


@pytest.mark.parametrize("seconds", [3.0, 4.5])
async def test_cause_of_a_failed_connection_outlives_the_next_attempt(seconds: float) -> None:
    """When the deadline passes, gRPC is connecting again and says nothing; the first failure is still told."""
    async with _server_that_hangs_up_once() as address:
        config = EtcdConfig(endpoints=(address,), request_timeout_seconds=seconds)
        async with EtcdClient(config) as client:
            with pytest.raises(EtcdUnavailableError, match="failed to connect"):
                await client.get_range(b"/k")


class _Leaderless(grpc.GenericRpcHandler):
    """Answers everything as an etcd without a quorum does, and hangs from the third request on."""

    def __init__(self) -> None:
        self.requests = 0

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, _: bytes, context: Any) -> bytes:
        self.requests += 1
        if self.requests > 2:
            await asyncio.Event().wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
        raise AssertionError("abort raises")


async def test_last_answer_outlives_the_silence_after_it() -> None:
    """A server that told why it cannot answer, and then says nothing more, is quoted when the deadline passes."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Leaderless(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    config = EtcdConfig(endpoints=(f"127.0.0.1:{port}",), request_timeout_seconds=2.0)
    try:
        async with EtcdClient(config) as client:
            with pytest.raises(EtcdUnavailableError, match="no leader"):
                await client.get_range(b"/k")
    finally:
        await server.stop(None)
