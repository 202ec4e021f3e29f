"""Keeps a Python worker's channels and routes: shared by all tasks of the process, closed when idle.

gRPC closes the connection of an idle channel by itself, so a worker that waits for its next task holds none. It does so
once in a channel's life (grpc/grpc#38454), so a channel that may have been idle is not used again: the next call opens
a new one, and closes those that are idle. This needs no thread of ours.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random
from typing import Protocol

import grpc

from broadsheet.consumer.resolver.resolver import CHANNEL_OPTIONS
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.endpoints import is_tls, parse_endpoint, proxy_options
from broadsheet.security.tls import Pems, TlsConfig, name_options, tls_files
from broadsheet.spark_bridge.routing.member_list import MemberLists
from broadsheet.spark_bridge.routing.routes import RouteTable

CHANNELS_MAX = 256
"""Most channels kept; of more, those unused for longest are closed."""
IDLE_SECONDS = 10.0
"""Time after which an unused connection is closed; opening one takes about a millisecond."""
FRESH_SHARE = 0.9
"""A channel is reused up to this share of its idle time, because gRPC's clock differs from ours."""
_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100))


@dataclass(slots=True)
class _Entry:
    channel: grpc.Channel
    used_monotonic_seconds: float
    pems: Pems | None
    """Certificates of the connection; None in clear text."""
    calls: int = field(default=0)
    """Calls under way."""
    is_retired: bool = field(default=False)
    """True once another channel has its place; it is closed with its last call."""


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
        """Endpoints of the open channels."""
        return tuple(self._entries)

    @contextmanager
    def borrowed(self, endpoint: str, tls: TlsConfig | None = None) -> Iterator[grpc.Channel]:
        """Lend the channel to an endpoint, for one call that ends within the block."""
        channel, release = self.borrow(endpoint, tls)
        try:
            yield channel
        finally:
            release()

    def borrow(
        self, endpoint: str, tls: TlsConfig | None = None
    ) -> tuple[grpc.Channel, Callable[[], None]]:
        """Return the channel to an endpoint, and a function to be called once, when the call on it is over.

        Args:
            endpoint: `http://host:port`, or `https://host:port` for TLS.
            tls: Files for TLS. Once they change, calls go over a new connection; those in progress keep theirs.

        Raises:
            ValidationError: `endpoint` is not an address, or a file cannot be used.
        """
        pems = _pems_of(tls) if is_tls(endpoint) else None
        with self._lock:
            entry = self._fresh_or_none(endpoint, pems) or self._open(endpoint, pems, tls)
            entry.calls += 1

        def release() -> None:
            with self._lock:
                entry.calls -= 1
                entry.used_monotonic_seconds = self._monotonic_seconds()
                is_over = entry.is_retired and not entry.calls
            if is_over:
                entry.channel.close()

        return entry.channel, release

    def close(self) -> None:
        """Close every channel; later calls open new ones."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.channel.close()

    def _fresh_or_none(self, endpoint: str, pems: Pems | None) -> _Entry | None:
        """Return the channel to an endpoint if gRPC will still close it when idle, and its certificates are these."""
        entry = self._entries.get(endpoint)
        if entry is None or self._may_be_idle(entry):
            return None
        if entry.pems is pems:
            return entry
        del self._entries[endpoint]
        entry.is_retired = True
        if not entry.calls:
            entry.channel.close()
        return None

    def _may_be_idle(self, entry: _Entry) -> bool:
        unused_seconds = self._monotonic_seconds() - entry.used_monotonic_seconds
        return not entry.calls and unused_seconds > FRESH_SHARE * self._idle_seconds

    def _open(self, endpoint: str, pems: Pems | None, tls: TlsConfig | None) -> _Entry:
        now = self._monotonic_seconds()
        self._sweep()
        target = parse_endpoint(endpoint, may_be_tls=True).address
        options = (
            *_OPTIONS,
            *proxy_options(target),
            ("grpc.client_idle_timeout_ms", int(self._idle_seconds * 1000)),
        )
        channel = (
            grpc.insecure_channel(target, options=options)
            if pems is None
            else grpc.secure_channel(
                target, pems.channel_credentials(), options=(*options, *name_options(tls))
            )
        )
        entry = _Entry(channel, now, pems)
        self._entries[endpoint] = entry
        return entry

    def _sweep(self) -> None:
        """Close channels that may be idle, and those beyond the maximum."""
        unused = sorted(
            (entry.used_monotonic_seconds, endpoint)
            for endpoint, entry in self._entries.items()
            if not entry.calls
        )
        surplus = len(self._entries) - CHANNELS_MAX + 1
        for index, (_, endpoint) in enumerate(unused):
            # Those in use are kept, also beyond the maximum.
            if index < surplus or self._may_be_idle(self._entries[endpoint]):
                self._entries.pop(endpoint).channel.close()


def _pems_of(tls: TlsConfig | None) -> Pems:
    try:
        return tls_files(tls or TlsConfig()).present()
    except ValidationError as error:
        raise error.under("tls") from None


CLUSTERS_MAX = 16
"""Most clusters whose routes a worker keeps; of more, the oldest is dropped."""
THREADS_MAX = 32
"""Calls under way at once as futures; more wait."""


class RunningWatch(Protocol):
    """The part of `broadsheet.spark_bridge.routing.route_watch.RouteWatch` that a worker's cache needs to know."""

    def close(self) -> None:
        """End its call and its thread."""
        ...


class PythonWorkerCache:
    """Channels and routes that a process keeps between tasks.

    Spark gives a task nothing that outlives it, but may give its process to the next one. The cache is therefore found
    by process id: a fork, which can use neither its parent's channels nor its locks, gets a new one.
    """

    def __init__(self) -> None:
        self.channels = WorkerChannels()
        self.members = MemberLists()
        """Members that were found later than those of the driver's plan."""
        self.random = Random()
        """So that workers do not all ask the same member where shards are."""
        self.watch: RunningWatch | None = None
        """Keeps one cluster's routes current; None before the first."""
        self.starting = threading.Lock()
        """Held while a watch is started."""
        self.started_monotonic_seconds = time.monotonic()
        self._routes: dict[str, RouteTable] = {}

    def routes(self, cluster: str) -> RouteTable:
        """Return the routes of a cluster."""
        found = self._routes.get(cluster)
        if found is None:
            while len(self._routes) >= CLUSTERS_MAX:
                self._routes.pop(next(iter(self._routes)))
            found = self._routes.setdefault(cluster, RouteTable())
        return found

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Thread pool for calls that their callers do not wait for; started with the first of them."""
        return ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="shard-calls")

    def close(self) -> None:
        """End the watch, close every channel and drop every route. Later calls start from an empty cache."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.close()
        self._routes.clear()
        self.members = MemberLists()
        threads: ThreadPoolExecutor | None = self.__dict__.pop("threads", None)
        if threads is not None:
            threads.shutdown(wait=False)
        self.channels.close()


def this_worker() -> PythonWorkerCache:
    """Return the cache of this process."""
    return _worker_of(os.getpid())


@cache
def _worker_of(process_id: int) -> PythonWorkerCache:
    # One entry, or in a fork two: the parent's stays unused, since closing its channels here could hang.
    del process_id
    return PythonWorkerCache()
