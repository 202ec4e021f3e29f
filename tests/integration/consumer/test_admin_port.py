"""The admin port: what it answers, to whom, and what hostile clients can take of it."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import threading
import weakref
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from prometheus_client.registry import Collector

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.consumer.member.service import Service
from broadsheet.runtime.errors import EndpointError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Capability, Claims, KeyedAuth, NoAuth
from broadsheet.serving.admin import (
    BODY_BYTES_MAX,
    CLAIMS,
    AdminBounds,
    AdminRoute,
    AdminServer,
    metrics_route,
    standard_routes,
)
from broadsheet.serving.bounded_http import QUEUED_BYTES_MAX
from broadsheet.serving.metrics_page import SCRAPES_MAX
from broadsheet.serving.standard_services import Health
from tests.support.certificates import CertificateAuthority
from tests.support.eventually import eventually
from tests.support.members import Cluster, client_of, shard, upserts, wait_for_primaries

HOST = "127.0.0.1"
SOURCE = "test/source"
KEYS = b64encode(b"a key that nobody must see, 32 bytes or more").decode()
AUTH = KeyedAuth(KEYS)
SECONDS_MAX = 300.0


@asynccontextmanager
async def _admin(*routes: AdminRoute, **bounds: Any) -> AsyncIterator[AdminServer]:
    """Yield a server. `Any`: bounds differ in type."""
    async with AdminServer(
        HOST, 0, routes=routes, verifier=NoAuth(), bounds=AdminBounds(**bounds)
    ) as server:
        yield server


async def _get(url: str, **headers: str) -> tuple[int, str]:
    """Return the status and text of a page, on a connection of its own."""
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def _is_served(server: AdminServer) -> bool:
    """Report whether a request is answered; on a busy machine, ours may be slow for a short bound, too."""
    try:
        return (await _get(f"{server.address}/ok"))[0] == 200
    except aiohttp.ClientConnectionError:
        return False


async def _open(server: AdminServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, with a small buffer in the kernel, so that what is not read stays with the server."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    port = int(server.address.rpartition(":")[2])
    await asyncio.get_running_loop().sock_connect(connection, (HOST, port))
    return await asyncio.open_connection(sock=connection)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the server ends the connection, however it does."""
    received = bytearray()
    async with asyncio.timeout(SECONDS_MAX):
        try:
            while chunk := await reader.read(1 << 20):
                received += chunk
        except ConnectionError:
            pass
    return bytes(received)


async def _ok(request: web.Request) -> web.Response:
    del request
    return web.Response(text="ok")


OK = AdminRoute(path="/ok", handler=_ok)


async def test_standard_pages_of_a_process() -> None:
    """Tools ask by these names: alive is not the same as ready, and both formats of metrics can be parsed, with those
    of the default registry, of which none is named twice.
    """
    health, registry = Health(), CollectorRegistry()
    statuses = {"shard/a": 1, "shard/b": 2}
    health.part_status = lambda name, _claims: statuses.get(name)
    Counter("mine", "Counted.", registry=registry).inc()
    Gauge("process_open_fds", "Also of the default registry.", registry=registry).set(-1)
    async with _admin(*standard_routes(health, registry, dict)) as server:
        assert await _get(f"{server.address}/livez") == (200, "ok\n")
        assert await _get(f"{server.address}/healthz") == (200, "ok\n")
        assert (await _get(f"{server.address}/readyz"))[0] == 503
        health.set_serving(True)
        assert await _get(f"{server.address}/readyz") == (200, "ok\n")
        assert (await _get(f"{server.address}/readyz?service=shard/a"))[0] == 200
        assert (await _get(f"{server.address}/readyz?service=shard/b"))[0] == 503
        assert (await _get(f"{server.address}/readyz?service=shard/c"))[0] == 404
        assert (await _get(f"{server.address}/nothing"))[0] == 404
        _, plain = await _get(f"{server.address}/metrics")
        _, as_open = await _get(f"{server.address}/metrics", Accept="application/openmetrics-text")
        _, tasks = await _get(f"{server.address}/debug/tasks")
        _, variables = await _get(f"{server.address}/debug/vars")
    parse: tuple[Any, ...] = parse_plain, parse_open  # `Any`: one of them has no types.
    for families in (list(parse[0](plain)), list(parse[1](as_open))):
        names = [family.name for family in families]
        assert len(names) == len(set(names))
        assert {"mine", "process_open_fds", "python_info"} <= {
            name.removesuffix("_total") for name in names
        }
        values = [s.value for f in families for s in f.samples if s.name == "process_open_fds"]
        assert values == [-1]
    assert "test_standard_pages_of_a_process" in tasks
    assert json.loads(variables)["versions"]["grpcio"]


async def test_slow_request_is_cut_off_and_others_are_served() -> None:
    """A client that sends its headers one byte at a time, or none, may not keep a connection."""
    async with _admin(OK, request_seconds_max=0.2) as server:
        silent, first = await _open(server)
        slow, second = await _open(server)
        second.write(b"GET /ok HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        await eventually(partial(_is_served, server), timeout_seconds=SECONDS_MAX)
        assert await _rest(silent) == b""
        assert await _rest(slow) == b""
        for writer in (first, second):
            writer.close()


async def test_endless_headers_are_cut_off() -> None:
    """Headers come before any handler could bound them: the connection counts its bytes."""
    async with _admin(OK, head_bytes_max=4096, request_seconds_max=SECONDS_MAX) as server:
        reader, writer = await _open(server)
        writer.write(b"GET /ok HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 10_000)
        assert b"200" not in await _rest(reader)
        writer.close()
        assert (await _get(f"{server.address}/ok"))[0] == 200


async def test_requests_behind_one_at_work_are_bounded() -> None:
    """A client may send further requests before the first is answered, and what waits is memory: 32 heads of a megabyte
    were kept for each connection with a handler at work. What the handler reads as its body is not counted.
    """
    release, begun = asyncio.Event(), asyncio.Queue[int]()

    async def held(request: web.Request) -> web.Response:
        size = len(await request.read())
        begun.put_nowait(size)
        await release.wait()
        return web.Response(text=f"{size} bytes")

    body = bytes(4 * QUEUED_BYTES_MAX)
    route = AdminRoute(path="/held", handler=held, method="POST", body_bytes_max=len(body))
    head = f"POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with _admin(OK, route) as server, asyncio.timeout(SECONDS_MAX):
        (patient, first), (greedy, second) = [await _open(server) for _ in range(2)]
        for writer in (first, second):
            writer.write(head + body)
            assert await begun.get() == len(body)
        second.write((b"GET /ok HTTP/1.1\r\nX-A: " + b"a" * 8_000 + b"\r\n\r\n") * 16)
        assert await _rest(greedy) == b""
        release.set()
        assert b"200 OK" in await patient.readline()
        for writer in (first, second):
            writer.close()


@pytest.mark.parametrize("streams", [False, True])
async def test_answer_that_fails_midway_is_cut_off(streams: bool) -> None:
    """A second answer in the middle of the first would be taken for a part of it: of metrics, or of events. Plan: a
    handler fails, refuses, or is late after its first bytes; the client sees that the answer is incomplete.
    """

    async def broken(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.content_length = 1_000
        await answer.prepare(request)
        await answer.write(b"begun")
        match request.query["by"]:
            case "error":
                raise RuntimeError("a fault of ours")
            case "refusal":
                raise web.HTTPForbidden(text="refused")
        await asyncio.Event().wait()
        return answer

    route = AdminRoute(path="/broken", handler=broken, streams=streams)
    async with _admin(route, handler_seconds_max=0.1) as server:
        for by in ("error", "refusal") if streams else ("error", "refusal", "lateness"):
            reader, writer = await _open(server)
            writer.write(f"GET /broken?by={by} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            received = await _rest(reader)
            assert received.count(b"HTTP/1.1") <= 1, (by, received)
            assert received.partition(b"\r\n\r\n")[2] in (b"", b"begun"), (by, received)
            writer.close()


async def test_answer_that_is_not_taken_ends_with_its_deadline() -> None:
    """A client that asks for a large page and reads nothing of it may not keep the page in memory."""

    async def large(request: web.Request) -> web.Response:
        del request
        return web.Response(body=bytes(16 << 20))

    routes = (OK, AdminRoute(path="/large", handler=large))
    async with _admin(*routes, handler_seconds_max=0.2, idle_seconds_max=SECONDS_MAX) as server:
        reader, writer = await _open(server)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readline()
        await eventually(lambda: not server.connections, timeout_seconds=SECONDS_MAX)
        assert len(await _rest(reader)) < 16 << 20
        assert (await _get(f"{server.address}/ok"))[0] == 200
        writer.close()


async def test_new_connection_displaces_the_one_that_waits_longest() -> None:
    """Whoever opens connections and says nothing must not lock a probe out; who is being answered is left alone."""
    release = asyncio.Event()

    async def held(request: web.Request) -> web.Response:
        del request
        await release.wait()
        return web.Response(text="held")

    routes = (OK, AdminRoute(path="/held", handler=held))
    async with (
        _admin(*routes, connections_max=2, request_seconds_max=SECONDS_MAX) as server,
        TaskGroup() as group,
    ):
        first = group.start_soon(_get(f"{server.address}/held"), name="held")
        silent, writer = await _open(server)
        await eventually(lambda: len(server.connections) == 2, timeout_seconds=SECONDS_MAX)
        await eventually(
            lambda: any(each.is_busy for each in server.connections), timeout_seconds=SECONDS_MAX
        )
        assert (await _get(f"{server.address}/ok"))[0] == 200
        assert await _rest(silent) == b""
        writer.close()
        second = group.start_soon(_get(f"{server.address}/held"), name="held, too")
        await eventually(
            lambda: sum(each.is_busy for each in server.connections) == 2,
            timeout_seconds=SECONDS_MAX,
        )
        # Both are being answered, so there is none to displace.
        refused, writer = await _open(server)
        assert await _rest(refused) == b""
        writer.close()
        release.set()
        assert {await first, await second} == {(200, "held")}


async def test_handler_has_a_deadline_unless_it_streams() -> None:
    """A page that waits for something that is gone must end; a stream of events is meant to last."""
    done = asyncio.Event()

    async def forever(request: web.Request) -> web.Response:
        del request
        await asyncio.Event().wait()
        return web.Response()

    async def events(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"first")
        await done.wait()
        await answer.write(b"last")
        return answer

    routes = (
        AdminRoute(path="/forever", handler=forever),
        AdminRoute(path="/events", handler=events, streams=True),
    )
    async with (
        _admin(*routes, handler_seconds_max=0.1) as server,
        aiohttp.ClientSession() as session,
        session.get(f"{server.address}/events") as it,
    ):
        assert await it.content.readexactly(5) == b"first"
        assert (await _get(f"{server.address}/forever"))[0] == 503
        done.set()
        assert await it.content.read() == b"last"


async def test_stream_ends_with_its_client_and_with_the_server() -> None:
    """A handler must not wait for events on behalf of a client that is gone, nor hold up a process that leaves."""
    began, ended = asyncio.Queue[str](), asyncio.Queue[str]()

    async def events(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"first")
        began.put_nowait(request.query["name"])
        try:
            await asyncio.Event().wait()
        finally:
            ended.put_nowait(request.query["name"])
        return answer

    route = AdminRoute(path="/events", handler=events, streams=True)
    async with asyncio.timeout(SECONDS_MAX):
        async with _admin(route) as server:
            for name in ("gone", "stays"):
                _, writer = await _open(server)
                writer.write(f"GET /events?name={name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                assert await began.get() == name
                if name == "gone":
                    writer.transport.abort()
                    assert await ended.get() == "gone"
        assert await ended.get() == "stays"
        writer.close()


async def test_body_is_bounded_and_errors_tell_nothing() -> None:
    """Whatever a stranger sends is bounded; the text of an error of ours may hold what is not for others."""

    async def take(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def broken(request: web.Request) -> web.Response:
        del request
        raise RuntimeError(KEYS)

    routes = (
        AdminRoute(path="/take", handler=take, method="POST"),
        AdminRoute(path="/broken", handler=broken),
    )

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield bytes(BODY_BYTES_MAX)

    async with _admin(*routes) as server, aiohttp.ClientSession() as session:
        async with session.post(f"{server.address}/take", data=b"four") as answer:
            assert await answer.text() == "4"
        async with session.post(f"{server.address}/take", data=bytes(BODY_BYTES_MAX + 1)) as answer:
            assert answer.status == 413
        try:
            async with session.post(f"{server.address}/take", data=endless()) as answer:
                assert answer.status == 413
        except aiohttp.ClientConnectionError:
            pass  # The connection was closed before all was sent.
        status, text = await _get(f"{server.address}/broken")
        assert status == 500
        assert KEYS not in text


async def test_malformed_requests_leave_the_server_well(caplog: pytest.LogCaptureFixture) -> None:
    """Not everything that connects speaks HTTP; and strangers must not fill the log with it."""
    async with _admin(OK, request_seconds_max=0.2) as server:
        for content in (
            b"\0" * 512,
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01",
            b"GET\r\n\r\n",
            b"\r\n",
        ):
            reader, writer = await _open(server)
            writer.write(content)
            assert b" 200 " not in await _rest(reader)
            writer.close()
        await eventually(partial(_is_served, server), timeout_seconds=SECONDS_MAX)
    assert caplog.records == []


class _Many(Collector):
    """Metrics of megabytes, other ones at each collection."""

    def __init__(self) -> None:
        self.collections = 0
        self.go_on = threading.Event()

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering does not collect."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Return many samples, once it may."""
        assert self.go_on.wait(SECONDS_MAX)
        self.collections += 1
        many = GaugeMetricFamily("many", "Many.", labels=["number"])
        for number in range(20_000):
            many.add_metric([f"{number:0500}"], self.collections)
        yield many


async def test_scrapes_share_a_rendering_and_slow_ones_give_way() -> None:
    """Rendering takes long and its text is large: many clients at once must cost one rendering, and those that take
    nothing must not hold any number of texts.
    """
    registry, many = CollectorRegistry(), _Many()
    registry.register(many)
    async with _admin(metrics_route("/metrics", registry)) as server:
        held = []
        for _ in range(SCRAPES_MAX):
            reader, writer = await _open(server)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            held.append((reader, writer))
        await eventually(
            lambda: sum(each.is_busy for each in server.connections) == SCRAPES_MAX,
            timeout_seconds=SECONDS_MAX,
        )
        many.go_on.set()
        # Its head shows that a scrape is being sent.
        for reader, _ in held:
            await reader.readuntil(b"\r\n\r\n")
        assert many.collections == 1
        status, text = await _get(f"{server.address}/metrics")
        assert (status, len(text) > 8 << 20) == (200, True)
        # In the order in which the requests came, of which only one was displaced.
        sizes = [len(await _rest_of_one(reader, len(text))) for reader, _ in held]
        assert sum(size < len(text) // 2 for size in sizes) == 1
        for _, writer in held:
            writer.close()


async def _rest_of_one(reader: asyncio.StreamReader, length: int) -> bytes:
    received = bytearray()
    async with asyncio.timeout(SECONDS_MAX):
        try:
            while len(received) < length // 2 and (chunk := await reader.read(1 << 20)):
                received += chunk
        except ConnectionError:
            pass
    return bytes(received)


async def test_streams_of_events_leave_probes_their_place() -> None:
    """128 watches took all connections, and then each probe was reset: a member at work was taken for dead. Plan: more
    streams are begun than there is room for; those beyond get 503, and what is public is served all the time.
    """
    ended = asyncio.Event()

    async def events(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await ended.wait()
        return stream

    routes = [
        OK,
        AdminRoute(path="/events", handler=events, require=Capability.LIST, streams=True),
        AdminRoute(path="/guarded", handler=_ok, require=Capability.LIST),
    ]
    bounds = AdminBounds(connections_max=8, streams_max=3, guarded_max=4)
    async with (
        AdminServer(HOST, 0, routes=routes, verifier=NoAuth(), bounds=bounds) as server,
        aiohttp.ClientSession() as session,
    ):
        statuses = []
        answers = []
        for _ in range(20):
            answers.append(await session.get(f"{server.address}/events"))
            statuses.append(answers[-1].status)
            assert (await _get(f"{server.address}/ok"))[0] == 200

        assert statuses == [200] * 3 + [503] * 17
        assert (await _get(f"{server.address}/guarded"))[0] == 200
        ended.set()
        for answer in answers:
            await answer.read()
        assert (await session.get(f"{server.address}/events")).status == 200


async def test_nothing_is_kept_of_a_server_that_ended() -> None:
    """A process may run members one after the other: what an admin port refers to, all of a member, must go with it."""

    class Kept:
        """Referred to by a route."""

        async def page(self, request: web.Request) -> web.Response:
            """Answer."""
            del request
            return web.Response(text="page")

    async def serve_once() -> weakref.ref[Kept]:
        kept = Kept()
        async with _admin(AdminRoute(path="/page", handler=kept.page)) as server:
            assert (await _get(f"{server.address}/page"))[0] == 200
            assert (await _get(f"{server.address}/nothing"))[0] == 404
        return weakref.ref(kept)

    gone = await serve_once()

    def is_gone() -> bool:
        gc.collect()
        return gone() is None

    await eventually(is_gone, timeout_seconds=SECONDS_MAX)


async def test_port_in_use_is_one_line() -> None:
    """An operator's mistake, told with the address."""
    async with _admin(OK) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(EndpointError, match=f"{HOST}:{port}"):
            await AdminServer(HOST, port, routes=[OK], verifier=NoAuth()).__aenter__()


async def test_pages_of_other_sites_cannot_post() -> None:
    """An operator's browser reaches the port, perhaps through a tunnel, and looks at any site: where no token is
    needed, a page there could change the cluster without being able to read a single answer.
    """
    calls: list[str] = []

    async def change(request: web.Request) -> web.Response:
        calls.append(request.headers.get("Origin", ""))
        return web.Response(text="changed")

    route = AdminRoute(path="/change", handler=change, method="POST")
    async with _admin(route) as server, aiohttp.ClientSession() as session:
        own = server.address
        others = "https://evil.example", "null", own.replace("127.0.0.1", "localhost"), f"{own}0"
        for origin in others:
            async with session.post(f"{own}/change", headers={"Origin": origin}) as answer:
                assert answer.status == 403, origin
        for headers in ({"Origin": own}, {}):
            async with session.post(f"{own}/change", headers=headers) as answer:
                assert answer.status == 200, headers
    assert calls == [own, ""]


async def test_pages_of_peers_may_call_what_a_token_guards() -> None:
    """A page whose member died goes on here: its browser asks first, and reads refusals too. No other page may."""
    peer = "http://10.0.0.2:9090"

    async def change(request: web.Request) -> web.Response:
        return web.Response(text="changed")

    route = AdminRoute(path="/change", handler=change, method="POST", require=Capability.APPLY)
    open_route = AdminRoute(path="/open", handler=_ok)
    verifier = KeyedAuth(KEYS)
    async with (
        AdminServer(
            HOST, 0, routes=[route, open_route], verifier=verifier, is_peer=peer.__eq__
        ) as server,
        aiohttp.ClientSession(server.address) as session,
    ):
        asked = {"Access-Control-Request-Method": "POST"}
        async with session.options("/change", headers={"Origin": peer, **asked}) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == peer
            assert "authorization" in answer.headers["Access-Control-Allow-Headers"]
            assert "Access-Control-Allow-Credentials" not in answer.headers
        async with session.post("/change", headers={"Origin": peer}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, peer)
            assert answer.headers["Vary"] == "Origin"
        for origin in ("http://10.0.0.2:9091", "https://10.0.0.2:9090", "null"):
            async with session.options("/change", headers={"Origin": origin, **asked}) as answer:
                assert (answer.status, "Access-Control-Allow-Origin" in answer.headers) == (
                    403,
                    False,
                )
            async with session.post("/change", headers={"Origin": origin}) as answer:
                assert answer.status == 403
        async with session.options("/open", headers={"Origin": peer, **asked}) as answer:
            assert answer.status == 404


async def test_name_of_a_site_does_not_reach_an_unguarded_port() -> None:
    """A site's name leads to the operator's own machine once its page is open: the page has the port's origin then, and
    could read everything. Probes, which say nothing, may use any name; and so may callers with a token.
    """
    data = AdminRoute(path="/data", handler=_ok, require=Capability.READ)
    local = (
        "localhost:9090",
        "LOCALHOST",
        "a.localhost:1",
        "127.0.0.1:9090",
        "[::1]:9090",
        "10.0.0.7",
    )
    async with _admin(data, OK) as server:
        for host in local:
            assert (await _get(f"{server.address}/data", Host=host))[0] == 200, host
        for host in (
            "evil.example:9090",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "[",
        ):
            assert (await _get(f"{server.address}/data", Host=host))[0] in (400, 403), host
        assert (await _get(f"{server.address}/ok", Host="evil.example"))[0] == 200
    token = AUTH.sign(Claims(capability=Capability.READ))
    async with AdminServer(HOST, 0, routes=[data], verifier=AUTH) as guarded:
        headers = {"Host": "member.example", "Authorization": f"Bearer {token}"}
        assert (await _get(f"{guarded.address}/data", **headers))[0] == 200


async def test_debugging_needs_a_token_where_tokens_are_verified() -> None:
    """Stacks and configuration are not for strangers; handlers get the claims, so that later pages can go by them."""
    seen: list[Claims] = []

    async def page(request: web.Request) -> web.Response:
        seen.append(request[CLAIMS])
        return web.Response(text="page")

    routes = [
        *standard_routes(Health(), CollectorRegistry(), dict),
        AdminRoute(path="/page", handler=page, require=Capability.APPLY),
    ]
    async with AdminServer(HOST, 0, routes=routes, verifier=AUTH) as server:

        def token(capability: Capability) -> str:
            return dict(AUTH.metadata(Claims(capability=capability)))["authorization"]

        for path in ("/debug/vars", "/debug/tasks"):
            url = f"{server.address}{path}"
            assert (await _get(url))[0] == 401
            assert (await _get(url, Authorization="Bearer nonsense"))[0] == 401
            assert (await _get(url, Authorization=token(Capability.LIST)))[0] == 403
            assert (await _get(url, Authorization=token(Capability.READ)))[0] == 200
        assert (await _get(f"{server.address}/livez"))[0] == 200
        apply = token(Capability.APPLY)
        assert (await _get(f"{server.address}/page", Authorization=apply))[0] == 200
    assert [each.capability for each in seen] == [Capability.APPLY]


@pytest.mark.etcd
async def test_member_shows_itself_without_secrets(cluster: Cluster) -> None:
    """A member on its admin port: a shard's readiness, metrics, its place in the cluster, and none of its keys."""
    secrets = {
        "auth_keys": KEYS,
        "broker_auth_keys": b64encode(b"another key that nobody must see").decode(),
    }
    async with (
        cluster.member("a", admin_port=0, auth_keys=secrets["auth_keys"]) as service,
        client_of(service, AUTH) as client,
    ):
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        root = service.admin_address
        assert (await _get(f"{root}/readyz"))[0] == 200
        token = dict(AUTH.metadata(Claims(capability=Capability.ALL)))["authorization"]

        async def is_ready() -> bool:
            url = f"{root}/readyz?service=shard/shard-1"
            return (await _get(url, Authorization=token))[0] == 200

        await eventually(is_ready)
        # Without a token, no shard is told from one that does not exist.
        assert await _is(f"{root}/readyz?service=shard/shard-1", 404)
        _, variables = await _get(f"{root}/debug/vars", Authorization=token)
        _, tasks = await _get(f"{root}/debug/tasks", Authorization=token)
        found = json.loads(variables)
        assert found["member"] == str(service.member_id)
        assert (found["shards"], found["replicas_here"]) == (1, 1)
        assert found["config"]["root"] == cluster.root
        await eventually(lambda: _has(f"{root}/metrics", "gazette_shard_up{"))
        for secret in secrets.values():
            assert secret not in variables + tasks
        assert "auth_keys" not in variables


async def _is(url: str, status: int) -> bool:
    return (await _get(url))[0] == status


async def _has(url: str, text: str) -> bool:
    return text in (await _get(url))[1]


@pytest.mark.etcd
async def test_member_that_cannot_join_is_alive_but_not_ready(cluster: Cluster) -> None:
    """Kubernetes must not kill a member because etcd is down, and must not send it clients either."""
    away = EtcdConfig(endpoints=("127.0.0.1:1",), request_timeout_seconds=SECONDS_MAX)
    tally = cluster.tally()
    service = Service(tally, cluster.config("a", admin_port=0, etcd=away))
    async with TaskGroup() as group:
        running = group.start_soon(service.run(), name="member")
        root = await eventually(lambda: service.admin_address, timeout_seconds=SECONDS_MAX)
        assert (await _get(f"{root}/livez"))[0] == 200
        assert (await _get(f"{root}/readyz"))[0] == 503
        service.force_stop()
        await running
    tally.close()
    assert service.admin_address == ""


async def test_broker_shows_itself_without_secrets(tmp_path: Path) -> None:
    """A broker has the same port, bound as its gRPC is."""
    config = BrokerConfig(data_dir=tmp_path, auth_keys=KEYS, admin_port=0)
    async with Broker(config) as broker:
        root = broker.admin_address
        assert (await _get(f"{root}/readyz"))[0] == 200
        assert await _has(f"{root}/metrics", "broadsheet_broker_bound{")
        token = dict(AUTH.metadata(Claims(capability=Capability.READ)))["authorization"]
        _, variables = await _get(f"{root}/debug/vars", Authorization=token)
        assert json.loads(variables)["journals"] == 0
        assert KEYS not in variables
        assert KEYS not in repr(config)
    with pytest.raises(aiohttp.ClientConnectionError):
        await _get(f"{root}/livez")


async def test_port_speaks_tls_with_the_present_certificate(tmp_path: Path) -> None:
    """A token must not cross the network in clear text where gRPC's do not; a renewed certificate is used by itself,
    and who speaks no TLS gets nothing.
    """
    authority = CertificateAuthority(tmp_path)
    tls = authority.tls("server", HOST, mutual=True)
    trust = ssl.create_default_context(cafile=str(authority.ca_file))

    async def serial(server: AdminServer) -> str:
        port = int(server.address.rpartition(":")[2])
        _, writer = await asyncio.open_connection(HOST, port, ssl=trust)
        number = str(writer.get_extra_info("peercert")["serialNumber"])
        writer.close()
        return number

    async with AdminServer(HOST, 0, routes=[OK], verifier=NoAuth(), tls=tls) as server:
        assert server.address.startswith("https://")
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{server.address}/ok", ssl=trust) as answer,
        ):
            assert answer.status == 200
        reader, writer = await _open(server)
        writer.write(b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in await _rest(reader)
        writer.close()
        first = await serial(server)
        authority.certificate("server", HOST)

        async def is_renewed() -> bool:
            return await serial(server) != first

        await eventually(is_renewed, timeout_seconds=SECONDS_MAX)
