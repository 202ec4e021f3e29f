"""Connections to the members of an etcd cluster, and the choice of one for each call.

Each endpoint has one gRPC channel. Calls rotate over the connected ones, so that a dead endpoint stalls no call; one
that timed out although connected is avoided for a while. gRPC's own balancing over many addresses would hide which one
failed, and cannot mix unix sockets with TCP.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.config import Endpoint, EtcdConfig, parse_endpoint
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.tls import secure_channel, tls_files

RECEIVE_BYTES_MAX = 512 * 1024 * 1024
"""Bound of one answer. A page of 1,000 keys is far below it unless their values are near etcd's limit of 1.5 MiB."""
RECONNECT_PAUSE_MILLISECONDS_MAX = 1_000
"""Longest pause between two attempts to connect: an etcd that restarts is found within a second."""
SUSPICION_SECONDS = 5.0
"""How long an endpoint that was connected but silent is avoided."""
_LAST_CHANCE_SHARE = 0.05
"""Part of a call's time kept for one attempt without a connection, whose error says why there is none."""


class EndpointChannel:
    """One endpoint, its channel, and the time until which it is avoided."""

    def __init__(self, endpoint: Endpoint, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.suspect_until_monotonic_seconds = float("-inf")

    def is_ready(self) -> bool:
        """True if the channel is connected; otherwise gRPC is asked to connect."""
        state = self.channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY


class ChannelPool:
    """Channels to every endpoint, handed out in rotation."""

    def __init__(self, config: EtcdConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._channels: tuple[EndpointChannel, ...] = ()
        self._first = 0

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints as they were configured."""
        return self._config.endpoints

    def __len__(self) -> int:
        return len(self._config.endpoints)

    async def __aenter__(self) -> Self:
        parsed = [
            parse_endpoint(text, tls_by_default=self._config.tls_by_default)
            for text in self._config.endpoints
        ]
        options = _options(self._config)
        try:
            tls = self._config.tls
            await asyncio.to_thread(tls_files, tls)  # Later looks are short; the first one reads.
        except ValidationError as error:
            raise error.under("etcd") from None
        self._channels = tuple(
            EndpointChannel(
                endpoint,
                secure_channel(endpoint.target, tls, options)
                if endpoint.tls
                else grpc.aio.insecure_channel(endpoint.target, options=options),
            )
            for endpoint in parsed
        )
        for each in self._channels:
            each.is_ready()  # begins to connect, so that the first call finds a connection
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        channels, self._channels = self._channels, ()
        for each in channels:
            await each.channel.close()

    async def pick(self, *, timeout_seconds: float) -> EndpointChannel:
        """Return a connected channel, waiting for one if necessary.

        If none connects in time, return the next one anyway: a call on it fails at once with the reason.

        Args:
            timeout_seconds: What is left of the call's deadline; a small part is kept for that last attempt.
        """
        self._check_open()
        ready = self._next_ready_or_none()
        if ready is not None:
            return ready
        try:
            async with asyncio.timeout(timeout_seconds * (1 - _LAST_CHANCE_SHARE)):
                await self._wait_for_any()
        except TimeoutError:
            self._check_open()
            return self._rotated()[0]
        return self._next_ready_or_none() or self._rotated()[0]

    def suspect(self, channel: EndpointChannel) -> None:
        """Avoid this endpoint for a while: it is connected but did not answer."""
        now = self._clock.monotonic_seconds()
        channel.suspect_until_monotonic_seconds = now + SUSPICION_SECONDS

    def check_not_closed_under_call(self) -> None:
        """Tell whether a call was cancelled because the client closed, which gRPC shows no other way.

        Raises:
            EtcdUnavailableError: the calling task was not cancelled: its channel was closed.
        """
        task = asyncio.current_task()
        if not self._channels and task is not None and not task.cancelling():
            raise EtcdUnavailableError(self.endpoints, "the client was closed")

    def _check_open(self) -> None:
        if not self._channels:
            raise EtcdUnavailableError(self.endpoints, "the client is not open")

    def _rotated(self) -> list[EndpointChannel]:
        self._first = (self._first + 1) % len(self._channels)
        return [*self._channels[self._first :], *self._channels[: self._first]]

    def _next_ready_or_none(self) -> EndpointChannel | None:
        if len(self._channels) == 1:
            only = self._channels[0]
            return only if only.is_ready() else None
        # A list, not a generator: asking each for its state is what makes the others connect.
        ready = [each for each in self._rotated() if each.is_ready()]
        if not ready:
            return None
        now = self._clock.monotonic_seconds()
        trusted = (each for each in ready if each.suspect_until_monotonic_seconds <= now)
        return next(trusted, ready[0])

    async def _wait_for_any(self) -> None:
        async with TaskGroup() as group:

            async def wait(each: EndpointChannel) -> None:
                await each.channel.channel_ready()
                group.stop()

            for each in self._channels:
                group.start_soon(wait(each), name=f"connect {each.endpoint.name}")


def _options(config: EtcdConfig) -> list[tuple[str, int | str]]:
    deadlines = config.deadlines
    probe_milliseconds = int(deadlines.probe * 1_000)
    return [
        ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
        # The message size limit is the server's setting: let the server refuse.
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", int(config.keep_alive_seconds * 1_000)),
        ("grpc.keepalive_timeout_ms", probe_milliseconds),
        # Recent gRPC bounds the wait for a probe's answer by this setting, with one minute by default.
        ("grpc.http2.ping_timeout_ms", probe_milliseconds),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 50),
        # In spite of its name the time that one attempt has; a refusal ends it at once.
        ("grpc.min_reconnect_backoff_ms", int(deadlines.connect * 1_000)),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_PAUSE_MILLISECONDS_MAX),
        # Connections shared with another client of the process would share its settings and its back-off.
        ("grpc.use_local_subchannel_pool", 1),
        # Etcd is infrastructure: a proxy meant for the web is never the way to it.
        ("grpc.enable_http_proxy", 0),
        # We repeat calls ourselves, by rules gRPC cannot know.
        ("grpc.enable_retries", 0),
    ]
