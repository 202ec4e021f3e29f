"""Connections of an HTTP server that strangers reach: aiohttp's, with the three bounds that aiohttp 3 lacks.

aiohttp bounds lines, headers, their number and bodies. It takes any number of connections; it lets 32 requests of a
megabyte wait behind one at work; and it closes politely, so a client that takes nothing of its answer would keep its
connection for ever. Here connections are counted, the one that has kept the server waiting longest gives way to a new
one, bytes that no handler has asked for are counted, and a client's turn ends with an abort.

This is the only place that derives from aiohttp's protocol. A bound that a later aiohttp has goes from here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

CONNECTIONS_MAX: Final = 128
"""Open connections. Prometheus, probes and a few browsers take one to six each."""
REQUEST_SECONDS_MAX: Final = 10.0
"""From a connection to the last header of its first request."""
IDLE_SECONDS_MAX: Final = 75.0
"""Time in which a client takes an answer and sends its next request; longer than most intervals between scrapes."""
HEAD_BYTES_MAX: Final = 512 << 10
"""Bytes received before a request's handler starts, and after it has ended without reading the body. The event loop
reads 256 KiB at a time, so the beginning of a body may come with the head.
"""
QUEUED_BYTES_MAX: Final = 64 << 10
"""Further requests that a client sends while a handler is at work."""
LINGER_SECONDS: Final = 1.0
"""How long a body that no handler wants is read and dropped."""
_http_log = logging.getLogger(f"{__name__}.http")
"""Of aiohttp, which logs a stack for each malformed request: strangers must not fill the disk with them."""
_http_log.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """Bounds of all connections and of each; tests use others."""

    connections_max: int = CONNECTIONS_MAX
    request_seconds_max: float = REQUEST_SECONDS_MAX
    idle_seconds_max: float = IDLE_SECONDS_MAX
    head_bytes_max: int = HEAD_BYTES_MAX


class Connections:
    """The open connections of one server, in the order in which they began to keep it waiting."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self.bounds = bounds
        self._open: dict[BoundedConnection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[BoundedConnection]:
        return iter(tuple(self._open))

    def abort(self) -> None:
        """End all at once."""
        for connection in self:
            connection.abort()

    def admit(self, connection: BoundedConnection) -> bool:
        """Take a new connection; at the bound, end the one that has kept us waiting longest, if any has."""
        if len(self._open) >= self.bounds.connections_max:
            waited_for = next((each for each in self._open if not each.is_busy), None)
            if waited_for is None:
                return False
            waited_for.abort()
            self.forget(waited_for)
        self._open[connection] = None
        return True

    def begin_wait(self, connection: BoundedConnection) -> bool:
        """Note that it is a connection's turn to send; report whether it is open."""
        is_open = connection in self._open
        if is_open:
            del self._open[connection]
            self._open[connection] = None
        return is_open

    def forget(self, connection: BoundedConnection) -> None:
        """Drop an ended connection. Idempotent."""
        self._open.pop(connection, None)


class BoundedConnection(web.RequestHandler):
    """One connection, whose client must send and take in time."""

    def __init__(self, others: Connections, manager: web.Server) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            logger=_http_log,
            access_log=_http_log,
            # A client sees an early answer only if what it sends meanwhile is read.
            lingering_time=LINGER_SECONDS,
        )
        self._others = others
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
        if self._others.admit(self):
            self._await_client(self._others.bounds.request_seconds_max)
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, as many as may wait for a handler; aiohttp bounds those of a body that a handler reads."""
        if self._served is None or self._served.content.is_eof():
            self._bytes_ahead += len(data)
            bound = QUEUED_BYTES_MAX if self.is_busy else self._others.bounds.head_bytes_max
            if self._bytes_ahead > bound:
                self.abort()
                return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Clean up."""
        self._silence()
        self._others.forget(self)
        super().connection_lost(exc)

    def begin_handler(self, request: web.BaseRequest) -> None:
        """Stop the clock, because it is not the client's turn."""
        self._served = request
        self._bytes_ahead = 0
        self._silence()

    def end_handler(self) -> None:
        """Wait until the client has sent its next request."""
        self._served = None
        self._await_client(self._others.bounds.idle_seconds_max)

    def abort(self) -> None:
        """End the connection at once."""
        self._silence()
        if self._wire is not None:
            self._wire.abort()

    def _await_client(self, seconds: float) -> None:
        self._silence()
        if self._others.begin_wait(self):
            self._alarm = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
