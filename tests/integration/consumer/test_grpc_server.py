"""The gRPC server of members and brokers against bytes that no client of gRPC sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.consumer.resolver.resolver import CHANNEL_OPTIONS
from broadsheet.runtime.errors import ServerEndedError, ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.serving.grpc_server import GrpcServer, IntakeBounds
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.members import Cluster
from tests.support.raw_http2 import (
    END_HEADERS,
    HEADERS,
    RawConnection,
    call_headers,
    frame,
    raw_connection,
)

PATHS = [
    b"/\xff",
    b"\xff\xfe",
    b"/consumer.Shard/\xc3\x28",
    b"/\xed\xa0\x80/List",
    b"*",
    b"/",
    b"/a\x00b",
]
"""Paths that are no UTF-8, and some that are no method."""


async def _call_oddly(port: int) -> None:
    """Begin a call of each path on a connection of its own, and wait for the server's answer or hang-up."""
    for path in PATHS:
        async with raw_connection(port) as connection:
            headers = call_headers(path)
            await connection.send(frame(HEADERS, headers, flags=END_HEADERS, stream=1))
            async with asyncio.timeout(DEADLINE_SECONDS):
                async for _, stream, _ in connection.frames():
                    if stream == 1:
                        break


async def _check(address: str) -> int:
    async with grpc.aio.insecure_channel(urlsplit(address).netloc) as channel:
        answer = await HealthStub(channel).Check(HealthCheckRequest(), timeout=10)
        return int(answer.status)


async def test_broker_called_by_a_path_that_is_no_text_goes_on(tmp_path: Path) -> None:
    """One such frame ended the loop of grpc.aio before a token was asked for: the port was gone, the process stayed."""
    async with Broker(BrokerConfig(data_dir=tmp_path)) as broker:
        await _call_oddly(int(broker.address.rpartition(":")[2]))

        assert await _check(broker.address) == HealthCheckResponse.SERVING


@pytest.mark.etcd
async def test_member_called_by_a_path_that_is_no_text_goes_on(cluster: Cluster) -> None:
    """The same of a member, which a stranger reaches as easily."""
    async with cluster.member("a") as member:
        await _call_oddly(int(member.address.rpartition(":")[2]))

        assert await _check(member.address) == HealthCheckResponse.SERVING


# A server without services of ours, for what depends on its bounds.


@asynccontextmanager
async def _serving(server: GrpcServer, methods: dict[str, Any]) -> AsyncIterator[int]:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.App", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def _echo(request: bytes, context: object) -> bytes:
    del context
    return request


def _methods() -> dict[str, Any]:
    async def write(request: bytes, context: Any) -> None:
        await context.write(request)

    async def generate(request: bytes, context: object) -> AsyncIterator[bytes]:
        del context
        yield request

    async def collect(requests: AsyncIterator[bytes], context: object) -> bytes:
        del context
        return b"".join([bytes(each) async for each in requests])

    async def repeat(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        del context
        async for each in requests:
            yield each

    return {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo, bytes.upper),
        "Write": grpc.unary_stream_rpc_method_handler(write),
        "Generate": grpc.unary_stream_rpc_method_handler(generate),
        "Collect": grpc.stream_unary_rpc_method_handler(collect),
        "Repeat": grpc.stream_stream_rpc_method_handler(repeat),
    }


async def test_server_serves_methods_of_all_kinds_and_refuses_others() -> None:
    """Calls with one request are received by the server itself; every kind of method must see what it saw before."""
    async with (
        _serving(GrpcServer(), _methods()) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        # `Any`: messages are raw.
        echo: Any = channel.unary_unary("/test.App/Echo")
        write: Any = channel.unary_stream("/test.App/Write")
        generate: Any = channel.unary_stream("/test.App/Generate")
        collect: Any = channel.stream_unary("/test.App/Collect")
        repeat: Any = channel.stream_stream("/test.App/Repeat")
        unknown: Any = channel.unary_unary("/test.App/Unknown")

        assert await echo(b"a") == b"A"
        assert await echo(b"") == b""
        assert [each async for each in write(b"b")] == [b"b"]
        assert [each async for each in generate(b"c")] == [b"c"]
        assert await collect(iter([b"d", b"e"])) == b"de"
        assert [each async for each in repeat(iter([b"f", b"g"]))] == [b"f", b"g"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unknown(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_burst_of_calls_within_the_bounds_is_served() -> None:
    """Once a thousand calls of a method wait for the loop, gRPC cancels further ones at random: a few seconds of Stats
    that arrive at once, as after a pause of the loop, were answered with CANCELLED, without a reason.
    """
    async with (
        _serving(GrpcServer(), _methods()) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        echo: Any = channel.unary_unary("/test.App/Echo")

        answers = await asyncio.gather(*(echo(b"a") for _ in range(3_000)), return_exceptions=True)

    assert [each for each in answers if each != b"A"] == []


async def _begin_calls(connection: RawConnection, count: int, *, first: int = 1) -> None:
    headers = call_headers(b"/test.App/Echo")
    frames = (
        frame(HEADERS, headers, flags=END_HEADERS, stream=first + 2 * each) for each in range(count)
    )
    await connection.send(*frames)


async def test_calls_without_a_request_are_bounded_in_number() -> None:
    """Headers alone reached no guard: 7 MB of them made a member hold 700 MiB. The oldest go first, so that a call that
    is meant, whose request follows at once, is served.
    """
    server = GrpcServer(bounds=IntakeBounds(unread_calls_max=10))
    async with _serving(server, _methods()) as port, raw_connection(port) as connection:
        await _begin_calls(connection, 50)
        ended = set[int]()
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for kind, stream, _ in connection.frames():
                if kind == HEADERS:
                    ended.add(stream)
                if len(ended) == 40:
                    break

        assert ended == set(range(1, 81, 2))
        assert server.unread_calls == 10
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            echo: Any = channel.unary_unary("/test.App/Echo")
            assert await echo(b"a") == b"A"


async def test_calls_without_a_request_end_in_time() -> None:
    """A call that never sends its request must not last as long as its connection; its client learns why it ended."""
    server = GrpcServer(bounds=IntakeBounds(request_seconds_max=0.2))
    async with _serving(server, _methods()) as port, raw_connection(port) as connection:
        await _begin_calls(connection, 3)
        statuses = dict[int, bytes]()
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for kind, stream, payload in connection.frames():
                if kind == HEADERS:
                    statuses[stream] = payload
                if len(statuses) == 3:
                    break

        assert server.unread_calls == 0
        assert all(b"no request within 0.2 s" in each for each in statuses.values())


async def test_connection_cannot_begin_more_calls_than_its_bound() -> None:
    """The transport itself makes a client wait, or resets what it begins nevertheless."""
    server = GrpcServer(bounds=IntakeBounds(calls_per_connection_max=5))
    async with _serving(server, _methods()) as port, raw_connection(port) as connection:
        await _begin_calls(connection, 500)
        # Whatever the transport does with the rest, the server knows of no more.
        await eventually(lambda: server.unread_calls > 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            echo: Any = channel.unary_unary("/test.App/Echo")
            assert await echo(b"a") == b"A"
        assert server.unread_calls <= 5 + 64


async def _wait(request: bytes, context: object) -> bytes:
    del context
    await asyncio.Event().wait()
    return request


async def _how_a_wait_ends(server: GrpcServer) -> grpc.StatusCode:
    """Return how a call ends to which nothing is sent for some seconds, by a client that pings each second."""
    methods: dict[str, Any] = {"Wait": grpc.unary_unary_rpc_method_handler(_wait)}
    options = (
        # Not more often than once a second, whatever is asked for.
        ("grpc.keepalive_time_ms", 100),
        # Otherwise once a minute behind the second ping.
        ("grpc.http2.max_pings_without_data", 0),
    )
    async with (
        _serving(server, methods) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel,
    ):
        wait: Any = channel.unary_unary("/test.App/Wait")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            # The third ping that comes too soon is the last.
            await wait(b"a", timeout=5.0)
        return caught.value.code()


async def test_client_that_pings_as_often_as_it_may_keeps_its_long_calls() -> None:
    """The five minutes of a server that gRPC makes cut off who waited for some minutes, as for a shard to read a
    journal through, with all calls of the connection. A client that pings more often than our bound is cut off.
    """
    kept, cut_off = await asyncio.gather(
        _how_a_wait_ends(GrpcServer(bounds=IntakeBounds(ping_seconds_min=0.5))),
        _how_a_wait_ends(GrpcServer()),
    )

    assert kept is grpc.StatusCode.DEADLINE_EXCEEDED
    assert cut_off is grpc.StatusCode.UNAVAILABLE


async def test_members_ping_less_often_than_they_may() -> None:
    """What members and clients ask of each other is within what members and brokers allow."""
    allowed = IntakeBounds().ping_seconds_min * 1_000

    assert dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] > allowed


async def test_call_whose_client_goes_away_waits_no_longer() -> None:
    """What waits for a request must not outlive its connection."""
    server = GrpcServer()
    async with _serving(server, _methods()) as port:
        async with raw_connection(port) as connection:
            await _begin_calls(connection, 20)
            await eventually(lambda: server.unread_calls == 20)

        await eventually(lambda: server.unread_calls == 0)


class _DynamicHandler(grpc.GenericRpcHandler):
    def service(self, handler_call_details: object) -> None:
        """Serve any method."""


async def test_handlers_of_any_name_are_refused() -> None:
    """A method must be known before the server starts, so that no path has to be decoded. The error comes when such a
    handler is added, because it would never be called.
    """
    with pytest.raises(ValidationError, match="_DynamicHandler does not name its methods"):
        GrpcServer().add_generic_rpc_handlers((_DynamicHandler(),))


async def test_server_that_ends_by_itself_is_noticed() -> None:
    """The process of a server without a loop lives on and says that it is healthy, so nobody starts it again. Its watch
    ends with an error within a second; a server that was stopped ends its watch in peace.
    """
    server = GrpcServer()
    async with _serving(server, _methods()), TaskGroup() as group:
        watching = group.start_soon(server.watch(), name="watch")
        await server.stop(None)
        await watching

    ended = GrpcServer()
    async with _serving(ended, _methods()):
        # As an error in gRPC's loop ends it.
        await ended.core.shutdown(None)
        async with asyncio.timeout(10):
            with pytest.raises(ServerEndedError):
                await ended.watch()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[GrpcServer]:
    """Servers that are started from now on."""
    servers: list[GrpcServer] = []
    start = GrpcServer.start

    async def noted(server: GrpcServer) -> None:
        servers.append(server)
        await start(server)

    monkeypatch.setattr(GrpcServer, "start", noted)
    return servers


async def test_broker_whose_server_ends_says_so_and_ends(
    tmp_path: Path, started: list[GrpcServer]
) -> None:
    """Probes must see it, and whoever runs the broker must get the error, so that a supervisor starts it again."""
    with pytest.raises(ServerEndedError):
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        ):
            await started[0].core.shutdown(None)
            await eventually(lambda: not broker.health.is_serving)
            await asyncio.Event().wait()


@pytest.mark.etcd
async def test_member_whose_server_ends_leaves_with_an_error(
    cluster: Cluster, started: list[GrpcServer]
) -> None:
    """Its shards must move at once, and its process must end with an error, so that a supervisor starts it again."""
    with pytest.raises(ServerEndedError):
        async with asyncio.timeout(60), cluster.member("a") as member:
            await started[-1].core.shutdown(None)
            await eventually(lambda: not member.health.is_serving)
            await asyncio.Event().wait()
