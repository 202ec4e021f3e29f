"""Channels by endpoint: opened once, kept while used, closed when idle.

The default endpoint's channel stays open; those of members in routes are closed once unused. An endpoint is
`http://host:port` (clear text), `https://host:port` (TLS), `unix:///path` or `host:port`.

Channels belong to the event loop that opened them and must not outlive a fork: open the cache inside the process that
uses it.

Source: gazette/core broker/protocol/dispatcher.go (mark and sweep), endpoint.go (GRPCAddr).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from broadsheet.journals.append_stream import AppendStream
from broadsheet.journals.wire import APPEND_SERVICE, ReadChunk, decode_read, serialize
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import RpcFailedError
from broadsheet.security.endpoints import FAILING_STATES, open_channel, parse_endpoints
from broadsheet.security.tls import TlsConfig
from broadsheet.wire.appends_pb2 import AppendStreamRequest, AppendStreamResponse
from broadsheet.wire.journal_pb2 import AppendRequest, AppendResponse, ReadRequest, ReadResponse
from broadsheet.wire.journal_pb2_grpc import JournalStub

if TYPE_CHECKING:
    # The generated stubs define this class for type checkers only.
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub


MESSAGE_BYTES_MAX = 16 << 20
"""Largest message taken or sent, bytes; brokers send chunks of at most 1 MiB, listings carry 25 specs."""
IDLE_SECONDS = 30.0
"""Idle time after which a member's channel is closed."""
RECONNECT_SECONDS_MAX = 0.5
"""Longest pause between attempts to connect, and longest attempt. Gazette's clients wait up to 5 s; a restarted
broker is back sooner, and a member continues within a second after a network partition has healed.
"""
READY_LOOK_SECONDS = 0.1
"""Interval between checks of whether a channel is connected again; one costs a microsecond."""

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", int(RECONNECT_SECONDS_MAX * 1000)),
    # Each cache connects separately, because one client's failed attempts must not delay another's.
    ("grpc.use_local_subchannel_pool", 1),
)


class Tracked(Protocol):
    """An operation in progress: a call, or an append of a stream."""

    # `Any`, because a call passes itself, whatever its type.
    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Register a callback for its end."""
        ...


class AppendUnderWay(Tracked, Protocol):
    """An append whose answer can be awaited."""

    def cancel(self) -> bool:
        """Give up the answer."""
        ...

    def __await__(self) -> Generator[Any, None, AppendResponse]:
        """Return the answer, or raise what a call raises."""
        ...


class StartsAppends(Protocol):
    """`AppendStream`, or another way to appends in one message."""

    def start(
        self,
        append: AppendStreamRequest.Append,
        content: Sequence[bytes | memoryview] = (),
        *,
        timeout_seconds: float,
    ) -> AppendUnderWay:
        """Send an append soon, after earlier ones."""
        ...


@dataclass(slots=True)
class BulkStub:
    """Methods that carry content, whose messages are encoded by hand."""

    append: grpc.aio.StreamUnaryMultiCallable[AppendRequest | bytes, AppendResponse]
    read: grpc.aio.UnaryStreamMultiCallable[ReadRequest, ReadChunk | ReadResponse]
    append_stream: StartsAppends | None = None
    """Sends appends as one message each, in parallel or pipelined; None once the broker is known not to support
    them.
    """


def _append_stream(channel: grpc.aio.Channel) -> AppendStream:
    method = f"/{APPEND_SERVICE}/AppendStream"
    return AppendStream(
        channel.stream_stream(
            method,
            request_serializer=serialize,
            response_deserializer=AppendStreamResponse.FromString,
        ),
        channel.unary_stream(
            method,
            request_serializer=serialize,
            response_deserializer=AppendStreamResponse.FromString,
        ),
    )


def _bulk_stub(channel: grpc.aio.Channel, append_stream: AppendStream) -> BulkStub:
    return BulkStub(
        channel.stream_unary(
            "/protocol.Journal/Append",
            request_serializer=serialize,
            response_deserializer=AppendResponse.FromString,
        ),
        channel.unary_stream(
            "/protocol.Journal/Read",
            request_serializer=serialize,
            response_deserializer=decode_read,
        ),
        append_stream,
    )


@dataclass(slots=True)
class _Entry:
    channel: grpc.aio.Channel
    stub: JournalAsyncStub
    bulk: BulkStub
    append_stream: AppendStream
    used_monotonic_seconds: float
    calls: int = 0
    """Calls under way."""

    async def close(self) -> None:
        """Close the append stream."""
        await self.append_stream.close()
        await self.channel.close()


class Channels(Protocol):
    """Connections that a client needs: `ChannelCache`, or another implementation."""

    @property
    def default_endpoint(self) -> str:
        """Endpoint for requests without a known member."""
        ...

    closed: bool

    def channel(self, endpoint: str = "") -> grpc.aio.Channel:
        """Return the channel to an endpoint, or to the default one."""
        ...

    def stub(self, endpoint: str = "") -> JournalAsyncStub:
        """Return a stub of the journal service at an endpoint, or at the default one."""
        ...

    def bulk(self, endpoint: str = "") -> BulkStub:
        """Return the methods that carry content at an endpoint, or at the default one."""
        ...

    def track(self, endpoint: str, call: Tracked) -> None:
        """Keep the channel of `call` open as long as the call is in progress."""
        ...

    def state(self, endpoint: str) -> grpc.ChannelConnectivity | None:
        """Return the state of an endpoint's channel, or None if none is open."""
        ...

    async def reconnected(self, endpoint: str = "") -> None:
        """Return once an endpoint's disconnected channel is connected; never returns if it is connected now."""
        ...

    async def renew(self, endpoint: str = "") -> None:
        """Drop an endpoint's connection and the calls on it; the next call makes another."""
        ...

    async def sweep(self) -> None:
        """Close idle channels."""
        ...

    async def close(self) -> None:
        """Close everything, and open nothing any more. Idempotent."""
        ...


class ChannelCache:
    """Opens channels on first use and hands out stubs on them."""

    def __init__(
        self, default_endpoint: str, *, tls: TlsConfig | None = None, clock: Clock | None = None
    ) -> None:
        """Parse the default endpoint; nothing is opened yet.

        Args:
            default_endpoint: Endpoint for requests without a known member; several, separated by commas, of which the
                next is asked when one cannot be reached.
            tls: Files for https endpoints; None: brokers' certificates must be signed by a public authority.
            clock: Tells how long a channel has been idle.

        Raises:
            ValidationError: the endpoint is malformed.
        """
        self._defaults = parse_endpoints(default_endpoint, may_be_tls=True)
        self._default = 0
        self._tls = tls
        self._clock = clock or SystemClock()
        self._entries: dict[str, _Entry] = {}
        self.closed = False
        """True once closed; no channel is opened any more."""

    @property
    def default_endpoint(self) -> str:
        """Endpoint for requests without a known member: the present one, unless it cannot be reached.

        If none can, each call returns another, so that all are tried.
        """
        for step in range(len(self._defaults)):
            number = (self._default + step) % len(self._defaults)
            if self.state(self._defaults[number]) not in FAILING_STATES:
                self._default = number
                return self._defaults[number]
        self._default = (self._default + 1) % len(self._defaults)
        return self._defaults[self._default]

    def channel(self, endpoint: str = "") -> grpc.aio.Channel:
        """Return the channel to an endpoint, or to the default one."""
        return self._entry(endpoint).channel

    def stub(self, endpoint: str = "") -> JournalAsyncStub:
        """Return a stub of the journal service at an endpoint, or at the default one."""
        return self._entry(endpoint).stub

    def bulk(self, endpoint: str = "") -> BulkStub:
        """Return the methods that carry content at an endpoint, or at the default one."""
        return self._entry(endpoint).bulk

    def track(self, endpoint: str, call: Tracked) -> None:
        """Keep an endpoint's channel open as long as `call` is in progress."""
        entry = self._entry(endpoint)
        entry.calls += 1

        def finished(_: object) -> None:
            entry.calls -= 1
            entry.used_monotonic_seconds = self._clock.monotonic_seconds()

        call.add_done_callback(finished)

    def state(self, endpoint: str) -> grpc.ChannelConnectivity | None:
        """Return the state of an endpoint's channel, or None if none is open."""
        entry = self._entries.get(endpoint)
        return entry.channel.get_state() if entry else None

    async def reconnected(self, endpoint: str = "") -> None:
        """Return once an endpoint's disconnected channel is connected; never returns if it is connected now."""
        if self._is_connected(endpoint):
            # There is no reconnection to wait for; the caller's own pause ends this wait.
            await asyncio.Event().wait()
        while not self._is_connected(endpoint):  # noqa: ASYNC110 - gRPC's own watches outlive a cancelled wait
            await asyncio.sleep(READY_LOOK_SECONDS)

    async def renew(self, endpoint: str = "") -> None:
        """Drop an endpoint's connection and the calls on it; the next call makes another.

        Meant for a connection that is silent without having been closed: TCP waits for minutes, and retransmits only
        after as long as the silence has lasted.
        """
        entry = self._entries.pop(endpoint or self.default_endpoint, None)
        if entry is not None:
            await entry.close()

    def _is_connected(self, endpoint: str) -> bool:
        entry = self._entries.get(endpoint or self.default_endpoint)
        ready = grpc.ChannelConnectivity.READY
        return entry is not None and entry.channel.get_state(try_to_connect=True) is ready

    async def sweep(self) -> None:
        """Close members' channels that were idle for `IDLE_SECONDS`."""
        horizon = self._clock.monotonic_seconds() - IDLE_SECONDS
        idle: list[str] = []
        # A loop, because this is asked before each append, and nearly always finds none.
        for endpoint, entry in self._entries.items():
            if entry.calls or entry.used_monotonic_seconds >= horizon:
                continue
            if endpoint not in self._defaults:
                idle.append(endpoint)
        if not idle:
            return
        # Removed before the first await, so that no caller gets a channel that is being closed.
        for entry in [self._entries.pop(endpoint) for endpoint in idle]:
            await entry.close()

    async def close(self) -> None:
        """Close every channel, cancel the calls on it, and open none any more. Idempotent."""
        self.closed = True
        entries = list(self._entries.values())
        self._entries.clear()
        for entry in entries:
            await entry.close()

    def _entry(self, endpoint: str) -> _Entry:
        endpoint = endpoint or self.default_endpoint
        entry = self._entries.get(endpoint)
        now = self._clock.monotonic_seconds()
        if entry is None:
            if self.closed:
                raise RpcFailedError(endpoint, "CLOSED", "the client was closed")
            channel = open_channel(endpoint, self._tls, options=_OPTIONS)
            stream = _append_stream(channel)
            entry = _Entry(channel, JournalStub(channel), _bulk_stub(channel, stream), stream, now)
            self._entries[endpoint] = entry
        entry.used_monotonic_seconds = now
        return entry
