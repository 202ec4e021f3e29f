"""A worker's channels, one a member: shared by every task that the process runs, closed when idle.

gRPC closes the connection of an idle channel by itself, so that a worker that waits for its next task holds none; what
is left of the channel goes when another is opened. No thread of ours is needed for either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from consumer.journal.channels import parse_endpoint
from consumer.resolver.peers import CHANNEL_OPTIONS

CHANNELS_MAX = 256
"""Most channels kept; beyond, those unused for longest are closed."""
IDLE_SECONDS = 10.0
"""A connection unused for so long is closed; opening one takes about a millisecond."""

_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100))


@dataclass(slots=True)
class _Entry:
    channel: grpc.Channel
    used_monotonic_seconds: float
    calls: int = field(default=0)
    """Calls under way."""


class WorkerChannels:
    """Opens channels on first use. Threads may share it; processes may not."""

    def __init__(
        self,
        *,
        idle_seconds: float = IDLE_SECONDS,
        monotonic_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet.

        Args:
            idle_seconds: A connection unused for so long is closed; gRPC knows no less than a second.
            monotonic_seconds: Tells how long a channel was idle.
        """
        self._idle_seconds = idle_seconds
        self._monotonic_seconds = monotonic_seconds
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where channels lead."""
        return tuple(self._entries)

    @contextmanager
    def borrowed(self, endpoint: str) -> Iterator[grpc.Channel]:
        """Lend the channel to an endpoint, for one call that ends within the block."""
        channel, release = self.borrow(endpoint)
        try:
            yield channel
        finally:
            release()

    def borrow(self, endpoint: str) -> tuple[grpc.Channel, Callable[[], None]]:
        """Return the channel to an endpoint, and what must be called once, when the call on it is over.

        Raises:
            ValidationError: `endpoint` is no address.
        """
        with self._lock:
            entry = self._entries.get(endpoint) or self._open(endpoint)
            entry.calls += 1

        def release() -> None:
            with self._lock:
                entry.calls -= 1
                entry.used_monotonic_seconds = self._monotonic_seconds()

        return entry.channel, release

    def close(self) -> None:
        """Close every channel; later calls open new ones."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.channel.close()

    def _open(self, endpoint: str) -> _Entry:
        now = self._monotonic_seconds()
        self._sweep(now)
        target = parse_endpoint(endpoint).address
        idle = ("grpc.client_idle_timeout_ms", int(self._idle_seconds * 1000))
        entry = _Entry(grpc.insecure_channel(target, options=(*_OPTIONS, idle)), now)
        self._entries[endpoint] = entry
        return entry

    def _sweep(self, now: float) -> None:
        """Close what is idle, and what is too many."""
        unused = sorted(
            (entry.used_monotonic_seconds, endpoint)
            for endpoint, entry in self._entries.items()
            if not entry.calls
        )
        surplus = len(self._entries) - CHANNELS_MAX + 1
        for index, (used, endpoint) in enumerate(unused):
            if index < surplus or used < now - self._idle_seconds:
                self._entries.pop(endpoint).channel.close()
