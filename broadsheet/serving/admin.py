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
lock probes out (`broadsheet.serving.bounded_http`).
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from broadsheet.runtime.errors import CannotListenError, ValidationError
from broadsheet.security.auth import AUTHORIZATION, Capability, Claims, NoAuth, TokenVerifier
from broadsheet.security.certificates import peer_identity
from broadsheet.security.endpoints import is_loopback
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.tls import TlsConfig, require_server_names, tls_files
from broadsheet.serving.bounded_http import BoundedConnection, ConnectionBounds, Connections
from broadsheet.serving.debug_pages import process_variables, shown, task_report
from broadsheet.serving.metrics_page import MetricsPage
from broadsheet.serving.standard_services import NO_CLAIMS, SERVING, Health
from broadsheet.wire.labels import is_scoped

STREAMS_MAX: Final = 64
"""Streams of events, each of which keeps its connection."""
GUARDED_MAX: Final = 96
"""Requests of guarded routes at work, streams among them; the other connections are for probes and scrapes."""
HANDSHAKE_SECONDS_MAX: Final = 5.0
"""Time of a handshake with TLS."""
HANDLER_SECONDS_MAX: Final = 30.0
"""Time of a handler, with its request's body and its answer."""
BODY_BYTES_MAX: Final = 64 << 10
"""Body of a request, if its route does not say otherwise."""
PREFLIGHT_SECONDS: Final = 600
"""How long a browser remembers that a page of a peer may call a route."""
BACKLOG: Final = 128
SHUTDOWN_SECONDS_MAX: Final = 1.0
"""Time for handlers to end after their connections were closed."""

CLAIMS: Final = web.RequestKey("claims", Claims)
"""Key of the caller's claims in a request."""
_BEGUN: Final = web.RequestKey("begun", bool)
"""Key of a request whose answer's head was sent."""
_PEER: Final = web.RequestKey("peer", str)
"""Key of the origin of a request for a page of a peer."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = structlog.get_logger()


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
class AdminBounds(ConnectionBounds):
    """Bounds of an admin server; tests use others."""

    streams_max: int = STREAMS_MAX
    guarded_max: int = GUARDED_MAX
    handler_seconds_max: float = HANDLER_SECONDS_MAX


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
        is_peer: Callable[[str], bool] = lambda origin: False,
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
            is_peer: Reports whether an origin, `http://host:port`, is another process' admin port, whose pages may
                call guarded routes of this one, with a token where one is needed.

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
        self._is_peer = is_peer
        self._host = host
        self._asks_for_certificates = tls is not None and tls.requires_client_certificates
        self._bounds = bounds or AdminBounds()
        self.connections = Connections(self._bounds)
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
        for route in (*self.routes, *_preflights(self.routes), _NOTHING):
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
                lambda: BoundedConnection(self.connections, manager),
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
        self.connections.abort()
        if self._runner is not None:
            await self._runner.cleanup()
        self.address = ""

    async def _serve(self, route: AdminRoute, request: web.Request) -> web.StreamResponse:
        """Serve a request; it is not the client's turn meanwhile."""
        connection = request.protocol
        assert isinstance(connection, BoundedConnection), "the server makes its connections"
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
        if _is_of_another_site(request):
            origin = request.headers["Origin"]
            if self._is_peer(origin):
                request[_PEER] = origin
            elif route.method != "GET":
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


async def _permit_peer(request: web.Request) -> web.Response:
    """Answer a browser that asks whether a page of a peer may call a route; `_answer` has refused all others."""
    if _PEER not in request:
        raise web.HTTPForbidden(text="expected the origin of another admin port of this cluster\n")
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Headers": "authorization, content-type, last-event-id",
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        },
    )


def _preflights(routes: Sequence[AdminRoute]) -> list[AdminRoute]:
    """Return the routes that tell browsers which calls pages of peers may make: those that a token guards."""
    paths = dict.fromkeys(each.path for each in routes if each.require is not None)
    return [AdminRoute(path=path, handler=_permit_peer, method="OPTIONS") for path in paths]


async def _begin(request: web.Request, answer: web.StreamResponse) -> None:
    """Complete an answer's head before it is sent."""
    request[_BEGUN] = True
    for name, value in _HEADERS.items():
        answer.headers.setdefault(name, value)
    if _PEER in request:
        # Also on refusals: the page needs their status. Without credentials of the browser's own: a token is sent by
        # the page, and only to whom it chooses.
        answer.headers["Access-Control-Allow-Origin"] = request[_PEER]
        answer.headers.add("Vary", "Origin")


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


def _as_json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def metrics_route(path: str, registry: CollectorRegistry) -> AdminRoute:
    """Return the route of a registry's metrics, with those of the default registry."""
    return AdminRoute(path=path, handler=MetricsPage(registry).handle)
