"""The admin port of a process: one HTTP server for health, metrics and debugging, on the host where gRPC listens.

    GET /livez        200 as long as the process answers
    GET /healthz      the same, for tools that know only this name
    GET /readyz       200 while the process serves, else 503; ?service=shard/ID asks as gRPC's health service would
    GET /metrics      Prometheus text, or OpenMetrics for those that accept it
    GET /debug/tasks  stacks of asyncio tasks, grouped, and of threads
    GET /debug/vars   versions, resources and configuration as JSON, without secrets

`/debug/*` needs READ: by a token, or by a certificate that the process knows. To add a route, append an `AdminRoute` to
those that are given to `AdminServer`: its handler gets aiohttp's request, and the caller's claims as `request[CLAIMS]`.

Where callers pass without any credential, the port has another guard: a certificate if gRPC requires one of all
clients, else that only this machine reaches it (`AdminServer`). Probes and scrapes have no certificate, so the port
asks for one and demands it for guarded routes alone.

A client may send whatever it likes, and take as long as it likes: what it can hold is bounded in bytes, seconds and
connections, and a new connection displaces the one that has kept the server waiting longest, so slow clients cannot
lock probes out. aiohttp bounds lines, headers, their number, bodies and how many requests queue; `_Connection` adds
what it lacks. Metrics are rendered by one thread, at most once a second, because they take long for many shards.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import platform
import resource
import ssl
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from importlib.metadata import version
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from broadsheet.runtime.errors import CannotListenError, ValidationError
from broadsheet.security.auth import AUTHORIZATION, Capability, Claims, NoAuth, TokenVerifier
from broadsheet.security.certificates import peer_identity
from broadsheet.security.endpoints import is_loopback
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.tls import TlsConfig, require_server_names, tls_files
from broadsheet.serving.standard_services import NO_CLAIMS, SERVING, AllMetrics, Health
from broadsheet.wire.labels import is_scoped

CONNECTIONS_MAX: Final = 128
"""Open connections. Prometheus, probes and a few browsers take one to six each."""
STREAMS_MAX: Final = 64
"""Streams of events, each of which keeps its connection."""
GUARDED_MAX: Final = 96
"""Requests of guarded routes at work, streams among them; the other connections are for probes and scrapes."""
REQUEST_SECONDS_MAX: Final = 10.0
"""From a connection to the last header of its first request."""
HANDSHAKE_SECONDS_MAX: Final = 5.0
"""Time of a handshake with TLS."""
HANDLER_SECONDS_MAX: Final = 30.0
"""Time of a handler, with its request's body and its answer."""
IDLE_SECONDS_MAX: Final = 75.0
"""Time in which a client takes an answer and sends its next request; longer than most intervals between scrapes."""
HEAD_BYTES_MAX: Final = 512 << 10
"""Bytes received before a request's handler starts, and after it has ended without reading the body. The event loop
reads 256 KiB at a time, so the beginning of a body may come with the head.
"""
BODY_BYTES_MAX: Final = 64 << 10
"""Body of a request, if its route does not say otherwise."""
QUEUED_BYTES_MAX: Final = 64 << 10
"""Further requests that a client sends while a handler is at work."""
BACKLOG: Final = 128
LINGER_SECONDS: Final = 1.0
"""How long a body that no handler wants is read and dropped."""
SHUTDOWN_SECONDS_MAX: Final = 1.0
"""Time for handlers to end after their connections were closed."""
SCRAPES_MAX: Final = 8
"""Answers with metrics that are being sent. Each may be of another second, and has megabytes for many shards."""
CHUNK_BYTES: Final = 64 << 10
"""Bytes of metrics that are given to a connection before it must take them."""
RENDERING_SECONDS: Final = 1.0
"""Metrics that are no older than this are sent again."""
TASKS_MAX: Final = 2_000
"""Tasks that are looked at for `/debug/tasks`, because the event loop waits meanwhile: some 20 ms."""
FRAMES_MAX: Final = 32
"""Frames of one stack."""

CLAIMS: Final = web.RequestKey("claims", Claims)
"""Key of the caller's claims in a request."""
_BEGUN: Final = web.RequestKey("begun", bool)
"""Key of a request whose answer's head was sent."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = structlog.get_logger()
_http_log = logging.getLogger(f"{__name__}.http")
"""Of aiohttp, which logs a stack for each malformed request: strangers must not fill the disk with them."""
_http_log.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRoute:
    """One path of the admin port."""

    path: str
    """As aiohttp writes it, with `{name}` for parts that vary."""
    handler: Handler
    method: str = "GET"
    """GET serves HEAD, too."""
    require: Capability | None = None
    """What the caller's token must permit; None: anybody may call it."""
    notes: Capability | None = None
    """What a token is verified for that a public route's caller may show; without, the request has no claims."""
    streams: bool = False
    """Whether the handler may take any time, as a stream of events does."""
    body_bytes_max: int = BODY_BYTES_MAX


async def _nothing(request: web.Request) -> web.Response:
    del request
    return web.Response(status=404, text="no such page\n")


_NOTHING: Final = AdminRoute(path="/{path:.*}", handler=_nothing, method="*")
"""What is at any other path; the first route that matches serves a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminBounds:
    """Bounds of an admin server; tests use others."""

    connections_max: int = CONNECTIONS_MAX
    streams_max: int = STREAMS_MAX
    guarded_max: int = GUARDED_MAX
    request_seconds_max: float = REQUEST_SECONDS_MAX
    handler_seconds_max: float = HANDLER_SECONDS_MAX
    idle_seconds_max: float = IDLE_SECONDS_MAX
    head_bytes_max: int = HEAD_BYTES_MAX


class AdminServer:
    """The HTTP server of one process. An async context manager; handlers run on the loop that entered it."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        routes: Sequence[AdminRoute],
        verifier: TokenVerifier,
        bounds: AdminBounds | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            host: Where to listen.
            port: 0 lets the system choose.
            routes: What it serves.
            verifier: Checks the tokens of routes that need one.
            bounds: What clients may take.
            tls: With a certificate, the server speaks HTTPS. With the authorities of clients' certificates it asks for
                one; a client without one still gets what is public.

        Raises:
            ValidationError: a file of `tls` cannot be used.
        """
        self._listen = host, port
        try:
            self._tls = _ReloadedContext(tls) if tls is not None and tls.serves else None
        except ValidationError as error:
            raise error.under("tls") from None
        self.routes = routes
        """All that it serves."""
        self._verifier = verifier
        self._host = host
        self._asks_for_certificates = tls is not None and tls.requires_client_certificates
        self._bounds = bounds or AdminBounds()
        self.connections: dict[_Connection, None] = {}
        """Open connections, in the order in which they began to keep us waiting."""
        self._guarded = self._streams = 0
        """Requests of guarded routes at work, and the streams among them."""
        self._runner: web.AppRunner | None = None
        self._server: asyncio.AbstractServer | None = None
        self.address = ""
        """URL of the server, once it listens."""

    async def __aenter__(self) -> Self:
        host, port = self._listen
        app = web.Application(client_max_size=max(each.body_bytes_max for each in self.routes))
        app.on_response_prepare.append(_begin)
        for route in (*self.routes, _NOTHING):
            # No middleware, because aiohttp would keep it, and all that it refers to, until the process ends.
            serve = partial(self._serve, route)
            app.router.add_route(route.method, route.path, serve)
            if route.method == "GET":
                app.router.add_route("HEAD", route.path, serve)
        # A stream of events ends with its client, or with the process.
        runner = self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS_MAX
        )
        await runner.setup()
        manager = runner.server
        assert manager is not None, "a runner that was set up has a server"
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Connection(self, manager),
                host,
                port,
                backlog=BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX if self._tls else None,
            )
        except OSError as error:
            await runner.cleanup()
            # asyncio's own text repeats the address.
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise CannotListenError(f"{host}:{port}", reason) from error
        bound = self._server.sockets[0].getsockname()[1]
        scheme = "https" if self._tls else "http"
        self.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{bound}"
        _log.info("admin.serving", address=self.address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.abort()
        if self._runner is not None:
            await self._runner.cleanup()
        self.address = ""

    @property
    def bounds(self) -> AdminBounds:
        """Bounds on what clients may take."""
        return self._bounds

    def admit(self, connection: _Connection) -> bool:
        """Take a new connection; at the bound, end the one that has kept us waiting longest, if any has."""
        if len(self.connections) >= self._bounds.connections_max:
            waited_for = next((each for each in self.connections if not each.is_busy), None)
            if waited_for is None:
                return False
            waited_for.abort()
            self.forget(waited_for)
        self.connections[connection] = None
        return True

    def begin_wait(self, connection: _Connection) -> bool:
        """Note that it is a connection's turn to send; report whether it is open."""
        is_open = connection in self.connections
        if is_open:
            del self.connections[connection]
            self.connections[connection] = None
        return is_open

    def forget(self, connection: _Connection) -> None:
        """Drop an ended connection. Idempotent."""
        self.connections.pop(connection, None)

    async def _serve(self, route: AdminRoute, request: web.Request) -> web.StreamResponse:
        """Serve a request; it is not the client's turn meanwhile."""
        connection = request.protocol
        assert isinstance(connection, _Connection), "the server makes its connections"
        connection.begin_handler(request)
        failure: web.StreamResponse | web.HTTPException
        try:
            return await self._answer(route, request)
        except ConnectionError:
            raise
        except Exception as error:
            failure = _failure_of(route, error)
        finally:
            connection.end_handler()
        if _BEGUN in request:
            # The client would take a second answer for the rest of the first.
            connection.abort()
            raise ConnectionResetError("the answer failed after its head was sent")
        if isinstance(failure, web.HTTPException):
            raise failure
        return failure

    async def _answer(self, route: AdminRoute, request: web.Request) -> web.StreamResponse:
        if route.method != "GET" and _is_of_another_site(request):
            raise web.HTTPForbidden(text="not for pages of other sites\n")
        request[CLAIMS] = await self._claims_of(route, request)
        if (request.content_length or 0) > route.body_bytes_max:
            raise web.HTTPRequestEntityTooLarge(
                max_size=route.body_bytes_max, actual_size=request.content_length or 0
            )
        with self._place(route):
            async with asyncio.timeout(None if route.streams else self._bounds.handler_seconds_max):
                answer = await route.handler(request)
                # Here, so that the deadline is also one for the client to take the answer.
                await answer.prepare(request)
                await answer.write_eof()
        return answer

    @contextmanager
    def _place(self, route: AdminRoute) -> Iterator[None]:
        """Hold a guarded request's place, so that probes keep theirs."""
        if route.require is None:
            yield
            return
        if (route.streams and self._streams >= self._bounds.streams_max) or (
            self._guarded >= self._bounds.guarded_max
        ):
            # The connection ends, because kept open it would take the place that the request did not get.
            raise web.HTTPServiceUnavailable(
                text="too many requests at work; try again later\n",
                headers={"Retry-After": "5", "Connection": "close"},
            )
        self._guarded += 1
        self._streams += route.streams
        try:
            yield
        finally:
            self._guarded -= 1
            self._streams -= route.streams

    async def _claims_of(self, route: AdminRoute, request: web.Request) -> Claims:
        if route.require is None:
            # Probes ask for no part, and pay for no token.
            if route.notes is None or not request.query_string:
                return NO_CLAIMS
            try:
                return await self._verified(route.notes, request)
            except (UnauthenticatedError, NotAuthorizedError, web.HTTPForbidden):
                return NO_CLAIMS
        return await self._verified(route.require, request)

    async def _verified(self, require: Capability, request: web.Request) -> Claims:
        context = peer_context(request)
        if self._verifier.allows_missing:
            self._require_other_guard(request, context)
        given = request.headers.get("Authorization")
        metadata = () if given is None else ((AUTHORIZATION, given),)
        return await self._verifier.verify_call(
            metadata, require, identity=lambda: peer_identity(context)
        )

    def _require_other_guard(
        self, request: web.Request, context: Mapping[str, Iterable[bytes]]
    ) -> None:
        """Refuse a caller who needs no credential, but lacks what guards the port instead."""
        if self._asks_for_certificates:
            if not context:
                raise UnauthenticatedError(
                    "expected a certificate of the client, as gRPC's port does (--tls-client-ca)"
                )
        elif is_loopback(self._host) and not _is_local(request.host):
            raise web.HTTPForbidden(
                text=f"expected localhost or an address as the host, got {request.host[:80]!r}\n"
            )


def peer_context(request: web.Request) -> Mapping[str, list[bytes]]:
    """Return what TLS verified of a request's client, as gRPC's `auth_context` does; empty without a certificate."""
    transport = request.transport
    tls: ssl.SSLObject | None = None
    if transport is not None:
        tls = transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if certificate is None:
        return {}
    pem = ssl.DER_cert_to_PEM_cert(certificate).encode()
    return {"transport_security_type": [b"ssl"], "x509_pem_cert": [pem]}


def _is_of_another_site(request: web.Request) -> bool:
    """Report whether a browser sends a request for a page of another origin.

    Such a page may send what it likes, and only its reading of the answer is up to us. Where no token is needed, as on
    an operator's own machine, it could change the cluster by being looked at. Browsers name the origin of each POST;
    other clients name none.
    """
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2].lower() != request.host.lower()


def _is_local(host_and_port: str) -> bool:
    """Report whether a request's host is an address or localhost, and not a name that anybody may have made.

    A site's name may lead to this machine as soon as its page is open (DNS rebinding): the page then has the same
    origin as the port, and would read what the port answers.
    """
    with suppress(ValueError):
        host = (urlsplit(f"//{host_and_port}").hostname or "").rstrip(".")
        return host == "localhost" or host.endswith(".localhost") or bool(ip_address(host))
    return False


class _ReloadedContext(ssl.SSLContext):
    """A server's TLS context that follows its files; connections keep the certificate that they began with.

    Each connection gets the whole context of the present files. To switch within a handshake, as servers with several
    names do, is not enough: tickets of sessions would still be those of the first context, and a client whose
    authority was withdrawn would resume its session without being verified.
    """

    def __new__(cls, tls: TlsConfig) -> Self:
        """Create the context that event loops ask for handshakes."""
        del tls
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, tls: TlsConfig) -> None:
        """Read the files.

        Raises:
            ValidationError: see `require_server_names`, `tls_files`.
        """
        require_server_names(tls)
        self._tls = tls
        self._files = tls_files(tls)
        self._used = self._files.present()
        self._present = self._new_context()

    # `Any`: the parameters are the library's.
    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a handshake with the present files. Called by the event loop for each connection."""
        present = self._files.present()
        if present is not self._used:
            # Should the files change once more in between, the look after this one finds it.
            with suppress(OSError, ssl.SSLError):
                self._present = self._new_context()
            self._used = present
        return self._present.wrap_bio(*args, **options)

    def _new_context(self) -> ssl.SSLContext:
        assert self._tls.cert_file is not None, "a server has a certificate"
        # A new one, because authorities can be added to a context, and never removed.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._tls.cert_file, self._tls.key_file)
        if self._tls.client_ca_file is not None:
            context.load_verify_locations(self._tls.client_ca_file)
            context.verify_mode = ssl.CERT_OPTIONAL
            # A ticket outlives the certificate that it was given for, and is renewed whenever it is used. Without
            # tickets, TLS 1.2 remembers sessions for 5 minutes, and TLS 1.3 none.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


class _Connection(web.RequestHandler):
    """aiohttp's connection, with the three bounds that aiohttp lacks.

    It takes any number of connections; it lets 32 requests of a megabyte wait behind one at work; and it closes
    politely, so a client that takes nothing of its answer would keep its connection for ever. Here connections are
    counted, and so are the bytes that no handler has asked for, and a client's turn ends with an abort.
    """

    def __init__(self, admin: AdminServer, manager: web.Server) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            logger=_http_log,
            access_log=_http_log,
            # A client sees an early answer only if what it sends meanwhile is read.
            lingering_time=LINGER_SECONDS,
        )
        self._admin = admin
        self._alarm: asyncio.TimerHandle | None = None
        self._wire: asyncio.Transport | None = None
        """The transport; aiohttp forgets its own when it begins to close it."""
        self._served: web.BaseRequest | None = None
        """The request whose handler is at work."""
        self._bytes_ahead = 0

    @property
    def is_busy(self) -> bool:
        """Report whether a handler is at work."""
        return self._served is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request, or refuse the connection."""
        self._wire = cast("asyncio.Transport", transport)
        super().connection_made(transport)
        if self._admin.admit(self):
            self._await_client(self._admin.bounds.request_seconds_max)
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, as many as may wait for a handler; aiohttp bounds those of a body that a handler reads."""
        if self._served is None or self._served.content.is_eof():
            self._bytes_ahead += len(data)
            bound = QUEUED_BYTES_MAX if self.is_busy else self._admin.bounds.head_bytes_max
            if self._bytes_ahead > bound:
                self.abort()
                return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Clean up."""
        self._silence()
        self._admin.forget(self)
        super().connection_lost(exc)

    def begin_handler(self, request: web.BaseRequest) -> None:
        """Stop the clock, because it is not the client's turn."""
        self._served = request
        self._bytes_ahead = 0
        self._silence()

    def end_handler(self) -> None:
        """Wait until the client has sent its next request."""
        self._served = None
        self._await_client(self._admin.bounds.idle_seconds_max)

    def abort(self) -> None:
        """End the connection at once."""
        self._silence()
        if self._wire is not None:
            self._wire.abort()

    def _await_client(self, seconds: float) -> None:
        self._silence()
        if self._admin.begin_wait(self):
            self._alarm = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


async def _begin(request: web.Request, answer: web.StreamResponse) -> None:
    """Complete an answer's head before it is sent."""
    request[_BEGUN] = True
    for name, value in _HEADERS.items():
        answer.headers.setdefault(name, value)


def _failure_of(route: AdminRoute, error: Exception) -> web.StreamResponse | web.HTTPException:
    """Return the answer to a request that failed."""
    match error:
        case web.HTTPException():
            return error
        case UnauthenticatedError():
            headers = {"WWW-Authenticate": "Bearer"}
            return web.Response(status=401, text=f"{error}\n", headers=headers)
        case NotAuthorizedError():
            return web.Response(status=403, text=f"{error}\n")
        case TimeoutError():
            return web.Response(status=503, text="the answer took too long\n")
    # The text of an unexpected error may reveal secrets, so the caller gets only the id of the log entry.
    incident_id = uuid4().hex[:12]
    _log.error("admin.failed", path=route.path, incident_id=incident_id, exc_info=error)
    text = f"internal error; the server's log has it under {incident_id}\n"
    return web.Response(status=500, text=text)


def standard_routes(
    health: Health, registry: CollectorRegistry, variables: Callable[[], Mapping[str, object]]
) -> list[AdminRoute]:
    """Return the routes that every process has.

    Args:
        health: Of the process.
        registry: Of its metrics; those of prometheus_client's default registry are added.
        variables: Returns what `/debug/vars` shows beside the variables of every process.
    """

    async def live(request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok\n")

    async def ready(request: web.Request) -> web.Response:
        name = request.query.get("service", "")
        status = health.status_of(name, request[CLAIMS])
        if status is None:
            return web.Response(status=404, text="no service or shard of this name\n")
        if status != SERVING:
            return web.Response(status=503, text="not serving\n")
        return web.Response(text="ok\n")

    async def tasks(request: web.Request) -> web.Response:
        # Tasks and threads have the names of their shards.
        return web.Response(text=task_report(are_named=not is_scoped(request[CLAIMS].selector)))

    async def show_variables(request: web.Request) -> web.Response:
        del request
        return web.json_response({**process_variables(), **shown(variables())}, dumps=_as_json)

    return [
        AdminRoute(path="/livez", handler=live),
        AdminRoute(path="/healthz", handler=live),
        AdminRoute(path="/readyz", handler=ready, notes=Capability.LIST),
        metrics_route("/metrics", registry),
        AdminRoute(path="/debug/tasks", handler=tasks, require=Capability.READ),
        AdminRoute(path="/debug/vars", handler=show_variables, require=Capability.READ),
    ]


def metrics_server(host: str, port: int, registry: CollectorRegistry) -> AdminServer:
    """Return a server of metrics alone, at any path and without TLS, as prometheus_client's own; see `AdminServer`."""
    routes = [metrics_route("/{path:.*}", registry)]
    return AdminServer(host, port, routes=routes, verifier=NoAuth())


def metrics_route(path: str, registry: CollectorRegistry) -> AdminRoute:
    """Return the route of a registry's metrics, with those of the default registry."""
    renderings = {each: _Rendering(registry, as_open=each) for each in (False, True)}
    sending: dict[asyncio.Transport | None, None] = {}

    async def metrics(request: web.Request) -> web.StreamResponse:
        # The library's own choice reflects the header's version; these two are what Prometheus asks for.
        as_open = "application/openmetrics-text" in request.headers.get("Accept", "")
        if len(sending) >= SCRAPES_MAX:
            # The first is the slowest: others of its time have been sent.
            slowest = next(iter(sending))
            del sending[slowest]
            if slowest is not None:
                slowest.abort()
        transport = request.transport
        sending[transport] = None
        try:
            body = memoryview(await renderings[as_open].read())
            kind = openmetrics.CONTENT_TYPE_LATEST if as_open else _PLAIN
            answer = web.StreamResponse(headers={"Content-Type": kind})
            answer.content_length = len(body)
            await answer.prepare(request)
            # In pieces, because a connection keeps what it was given until its client takes it.
            for begin in range(0, len(body), CHUNK_BYTES):
                await answer.write(bytes(body[begin : begin + CHUNK_BYTES]))
            return answer
        finally:
            sending.pop(transport, None)

    return AdminRoute(path=path, handler=metrics)


_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
_RENDERER: Final = ThreadPoolExecutor(1, thread_name_prefix="metrics")
"""One thread of its own: scrapes cannot take more than one processor, nor wait behind others' blocking work."""


class _Rendering:
    """The text of metrics, made once for all that ask at about the same time."""

    def __init__(self, registry: CollectorRegistry, *, as_open: bool) -> None:
        self._metrics = AllMetrics(registry)
        self._generate: Callable[[Any], bytes] = (
            openmetrics.generate_latest if as_open else generate_latest
        )
        self._made_at = float("-inf")
        self._making: asyncio.Future[bytes] | None = None

    async def read(self) -> bytes:
        """Return the text, made at most `RENDERING_SECONDS` ago."""
        making = self._making
        if making is None or (making.done() and monotonic() - self._made_at > RENDERING_SECONDS):
            making = self._making = asyncio.get_running_loop().run_in_executor(
                _RENDERER, self._render
            )
        # Shielded, because others wait for the same text when one of them goes away.
        return await asyncio.shield(making)

    def _render(self) -> bytes:
        self._made_at = monotonic()
        return self._generate(self._metrics)


_started_at: Final = monotonic()


def process_variables() -> dict[str, object]:
    """Return versions and resources of this process. Its command line is left out, because it may have keys."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "pid": os.getpid(),
        "uptime_seconds": round(monotonic() - _started_at, 3),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("broadsheet", "grpcio", "protobuf")},
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
        "resident_bytes": _resident_bytes(),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "gc": {"counts": gc.get_count(), "frozen": gc.get_freeze_count()},
    }


def _resident_bytes() -> int:
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def shown(value: Any) -> Any:
    """Return a value for JSON; of dataclasses, fields that their `repr` hides, such as keys, are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: shown(getattr(value, each.name)) for each in fields(value) if each.repr}
    if isinstance(value, Mapping):
        return {str(key): shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [shown(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _as_json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def task_report(*, are_named: bool = True) -> str:
    """Return the stacks of tasks and threads: files, lines and functions, without values.

    Args:
        are_named: Whether names of tasks and threads are shown.
    """
    tasks = asyncio.all_tasks()
    groups: dict[tuple[str, ...], list[str]] = {}
    for task in islice(tasks, TASKS_MAX):
        groups.setdefault(_stack_of(task), []).append(task.get_name())
    lines = [f"{len(tasks)} tasks, of which {min(len(tasks), TASKS_MAX)} are shown", ""]
    for stack, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        few = ", ".join(sorted(names)[:3]) if are_named else "a task"
        more = ", …" if are_named and len(names) > 3 else ""
        lines += [f"{len(names)} x {few}{more}", *stack, ""]
    by_id = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented; it has no public name
        lines.append(f"thread {by_id.get(ident, ident) if are_named else ident}")
        summary = traceback.extract_stack(frame, limit=FRAMES_MAX)
        lines += [f"    {each.filename}:{each.lineno} {each.name}" for each in summary]
        lines.append("")
    return "\n".join(lines)


def _stack_of(task: asyncio.Task[Any]) -> tuple[str, ...]:
    """Return the frames of a task, the outermost first; `Task.get_stack` shows only that one of a waiting task."""
    return tuple(islice(_frames(task.get_coro()), FRAMES_MAX))


def _frames(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        frame = _first(awaited, ("cr_frame", "gi_frame", "ag_frame"))
        if frame is None:
            yield f"    awaits {type(awaited).__name__}"
            return
        yield f"    {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        awaited = _first(awaited, ("cr_await", "gi_yieldfrom", "ag_await"))


def _first(value: Any, names: Iterable[str]) -> Any:
    return next(
        (found for name in names if (found := getattr(value, name, None)) is not None), None
    )
