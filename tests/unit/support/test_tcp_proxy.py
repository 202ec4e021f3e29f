"""The proxy that slows connections down must not be the one that breaks them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.support.eventually import eventually
from tests.support.tcp_proxy import TcpProxy


async def test_proxy_whose_delay_ends_keeps_the_order_of_bytes() -> None:
    """What is sent after a delay was lifted must not overtake what still waits: TCP never reorders a stream."""
    go_on, served = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ab")
        await go_on.wait()
        writer.write(b"cd")
        with suppress(ConnectionError):
            await reader.read()
            writer.close()
            await writer.wait_closed()
        served.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, TcpProxy(target) as proxy, asyncio.timeout(20):
        proxy.delay_seconds = 0.2
        host, _, port = proxy.endpoint.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await eventually(lambda: proxy.bytes_answered == 2)
        proxy.delay_seconds = 0.0
        go_on.set()

        assert await reader.readexactly(4) == b"abcd"
        writer.close()
        await served.wait()
