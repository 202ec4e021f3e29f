"""Shared parts of all journal requests: choice of the broker, authorization, and routes learned from answers.

Source: gazette/core broker/protocol/dispatcher.go (dispatch rules), broker/protocol/auth.go (default claims).
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    wait_exponential,
    wait_random,
)

from broadsheet.journals.channels import BulkStub, Channels
from broadsheet.journals.direct_fragments import DirectFragments, FragmentOpener, ReadTotals
from broadsheet.journals.errors import (
    IndexHasGreaterOffsetError,
    JournalError,
    JournalNotAllowedError,
    JournalNotFoundError,
    JournalProtocolError,
    JournalStoreUnhealthyError,
    JournalSuspendedError,
    JournalUnavailableError,
    WrongAppendOffsetError,
)
from broadsheet.journals.known_sums import KnownSumsCache
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import EndpointError, RpcFailedError, ServiceError, ValidationError
from broadsheet.security.actor import ACTOR, local_actor
from broadsheet.security.auth import Capability, ClientAuth, expiring
from broadsheet.security.endpoints import is_tls
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.tls import TlsConfig, handshake_advice
from broadsheet.serving.tracing import tracing
from broadsheet.wire.alphabet import split_journal
from broadsheet.wire.journal_pb2 import Header, LabelSelector, Route, Status
from broadsheet.wire.labels import NAME, label_set

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

STREAM_LIFE_SECONDS = 300.0
"""Duration after which a read or a watch is reopened, so that a peer that died silently is noticed."""
UNARY_TIMEOUT_SECONDS = 30.0
"""Longest wait for the answer to a request that does not block by itself."""
PAUSE_SECONDS_MIN = 0.05
"""Least pause between two attempts."""
_RETRY_SECONDS_FIRST, _RETRY_SECONDS_MAX = 0.05, 1.0
_SELECTORS_MAX = 4096
"""Number of journals whose selector is cached, because a process asks about the same ones repeatedly."""
PATIENCE_SECONDS = 5.0
"""Duration for which requests are repeated, unless the caller says otherwise: a broker's restart takes less."""
CHUNK_BYTES = 192 << 10
"""Content sent in one message unless the client says otherwise, bytes. It is well below every broker's receive
limit, large enough to cost little, and sent within the second that brokers wait, even at 2 Mbit/s.

Larger chunks cost more unless `keep_freed_buffers` was called, because glibc returns buffers of 256 KiB to the kernel
each time, and faults them in again.
"""
BULK_CHUNK_BYTES = 512 << 10
"""Cheapest chunk size for clients that called `keep_freed_buffers` and are near their brokers. Larger ones gain
nothing.
"""
BULK_APPEND_BYTES_MAX = 1 << 20
"""Longest append in one message, for the same clients: it takes a sixth less processor time than a separate call,
and others wait for it for a millisecond.
"""
RpcMetadata = tuple[tuple[str, str], ...]

# Known routes of journals, and the choice of a broker to ask.
#
# Routes come free with every answer. They are kept for a while, the least recently used go first,
# and a broker that turns out unavailable invalidates its route. A wrong route costs a hop, never a
# wrong answer.
#
# Source: gazette/core broker/client/route_cache.go; broker/protocol/dispatcher.go (choice of a
# member).
_FAILING = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)

# Outcomes of journal requests as exceptions: in-band statuses and gRPC statuses, each translated
# once.
#
# Source: gazette/core broker/client/appender.go (mapAppenderError), reader.go; spec of the statuses
# in journal.proto.

UNASSIGNED = (
    Status.NO_JOURNAL_PRIMARY_BROKER,
    Status.NOT_JOURNAL_PRIMARY_BROKER,
    Status.INSUFFICIENT_JOURNAL_BROKERS,
    Status.NOT_JOURNAL_BROKER,
)
"""Statuses of a journal without a broker, or with another one: nothing was done and a retry is safe."""
_ERROR_BY_STATUS: dict[Status.ValueType, type[JournalError]] = {
    Status.JOURNAL_NOT_FOUND: JournalNotFoundError,
    Status.NOT_ALLOWED: JournalNotAllowedError,
    Status.SUSPENDED: JournalSuspendedError,
    Status.WRONG_APPEND_OFFSET: WrongAppendOffsetError,
    Status.INDEX_HAS_GREATER_OFFSET: IndexHasGreaterOffsetError,
    Status.FRAGMENT_STORE_UNHEALTHY: JournalStoreUnhealthyError,
} | dict.fromkeys(UNASSIGNED, JournalUnavailableError)

# Texts of gRPC's transport when no server listens, or the name is unknown.
_NEVER_CONNECTED = re.compile(
    r"failed to connect to all addresses|connection refused|(dns|name) resolution", re.IGNORECASE
)
_REFUSED = re.compile(r"connection refused|no such file or directory", re.IGNORECASE)
_UNKNOWN_NAME = re.compile(
    r"(dns|domain name|name) resolution|domain name not found", re.IGNORECASE
)


def error_of_status(journal: str, status: Status.ValueType, detail: str = "") -> JournalError:
    """Return the exception for a status other than OK."""
    kind = _ERROR_BY_STATUS.get(status)
    name = Status.Name(status) if status in Status.values() else str(status)
    if kind is None:
        return JournalProtocolError(journal, f"unexpected status {name} for this request")
    if kind is JournalUnavailableError:
        return JournalUnavailableError(journal, detail or name)
    return kind(journal, detail)


def error_of_rpc(address: str, error: grpc.aio.AioRpcError) -> ServiceError:
    """Return the exception for a request that gRPC failed.

    Args:
        address: The endpoint that was asked.
        error: What gRPC raised.
    """
    code, detail = error.code(), error.details() or "no details"
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return EndpointError(
                address, _unavailable(address, detail), never_connected=never_connected(detail)
            )
        case grpc.StatusCode.CANCELLED:
            # Cancelled by the broker, which is stopping: our own cancellation is CancelledError.
            return EndpointError(address, f"it ended the call: {detail}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return EndpointError(address, f"no answer in time: {detail}")
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(f"{address}: {detail}")
        case grpc.StatusCode.PERMISSION_DENIED:
            return NotAuthorizedError(f"{address}: {detail}")
        case _:
            return RpcFailedError(address, code.name, detail)


def never_connected(detail: str) -> bool:
    """Tell from the detail of an UNAVAILABLE whether the server certainly saw nothing of the request."""
    return _NEVER_CONNECTED.search(detail) is not None


def _unavailable(address: str, detail: str) -> str:
    if advice := handshake_advice(address, detail):
        return f"{advice} ({detail})"
    if _REFUSED.search(detail):
        return "connection refused; is the broker running?"
    if _UNKNOWN_NAME.search(detail):
        return f"unknown host name; is the address right? ({detail})"
    return detail


@dataclass(frozen=True, slots=True)
class _Known:
    route: Route
    expires_monotonic_seconds: float


class RouteCache:
    """Routes by journal: bounded in number and in age."""

    def __init__(self, size: int, ttl_seconds: float, *, clock: Clock | None = None) -> None:
        """Create an empty cache.

        Args:
            size: Most routes kept; 0 keeps none.
            ttl_seconds: Age at which a route is forgotten.
            clock: Tells the age.
        """
        self._size = size
        self._ttl_seconds = ttl_seconds
        self._clock = clock or SystemClock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    @property
    def enabled(self) -> bool:
        """True if routes are kept at all."""
        return self._size > 0

    def route_of(self, journal: str) -> Route | None:
        """Return the journal's route if it is known and recent enough."""
        known = self._known.get(journal)
        if known is None:
            return None
        if self._clock.monotonic_seconds() >= known.expires_monotonic_seconds:
            del self._known[journal]
            return None
        self._known.move_to_end(journal)
        return known.route

    def update(self, journal: str, route: Route | None) -> None:
        """Store a journal's route; one without members or endpoints removes it."""
        if route is None or not route.members or len(route.endpoints) != len(route.members):
            self.forget(journal)
            return
        if not self.enabled:
            return
        expires = self._clock.monotonic_seconds() + self._ttl_seconds
        self._known[journal] = _Known(route, expires)
        self._known.move_to_end(journal)
        while len(self._known) > self._size:
            self._known.popitem(last=False)

    def forget(self, journal: str) -> None:
        """Remove a journal's route, e.g. because its broker is unavailable."""
        self._known.pop(journal, None)


def choose_endpoint(
    route: Route | None,
    *,
    zone: str,
    primary: bool,
    state_of: Callable[[str], grpc.ChannelConnectivity | None],
) -> str:
    """Return the endpoint of the member to ask, or "" for the default one.

    Args:
        route: The journal's route, if known.
        zone: The caller's zone; its members are preferred.
        primary: Only the primary will do.
        state_of: Tells the state of an endpoint's channel, None if there is none.
    """
    if route is None or not route.endpoints:
        return ""
    if primary:
        return route.endpoints[route.primary] if route.primary >= 0 else ""

    def rank(index: int) -> tuple[bool, bool, bool]:
        state = state_of(route.endpoints[index])
        return (
            route.members[index].zone != zone,
            state in _FAILING,
            state is not grpc.ChannelConnectivity.READY,
        )

    candidates = [index for index, endpoint in enumerate(route.endpoints) if endpoint]
    return route.endpoints[min(candidates, key=rank)] if candidates else ""


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker to ask."""

    endpoint: str
    stub: JournalAsyncStub
    bulk: BulkStub
    """The methods that carry content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportPolicy:
    """A client's rules for reaching brokers, repeating requests and cutting content."""

    zone: str = ""
    """The caller's zone; reads prefer brokers there."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long to repeat what is safe to repeat; 0 tries once."""
    ca_file: Path | None = None
    """Authorities that sign brokers' certificates; public ones if None. Short for `tls` with this file alone."""
    tls: TlsConfig | None = None
    """Files for https: the authorities, and our own certificate for brokers that ask for one."""
    route_cache_size: int = 0
    """Routes kept in order to ask the right broker directly; 0 always asks the client's address."""
    route_ttl_seconds: float = 60.0
    """Age at which a route is forgotten."""
    chunk_bytes: int = CHUNK_BYTES
    """Content of one message of a long append; brokers abort one that takes more than a second."""
    whole_bytes_max: int | None = None
    """Largest content sent as a single message, to brokers that support this; `chunk_bytes` if absent."""
    fragments: DirectFragments = field(default_factory=DirectFragments)
    """Rules for reading stored fragments without a broker."""

    def __post_init__(self) -> None:
        """Raise ValidationError if authorities are named twice."""
        if self.tls is not None and self.ca_file is not None:
            raise ValidationError("ca_file", "expected None, because tls.ca_file has its place")

    @property
    def tls_files(self) -> TlsConfig | None:
        """Files for https, however they were given."""
        return self.tls if self.ca_file is None else TlsConfig(ca_file=self.ca_file)

    @property
    def single_message_bytes_max(self) -> int:
        """Largest content sent as a single message."""
        return self.chunk_bytes if self.whole_bytes_max is None else self.whole_bytes_max


class JournalTransport:
    """Chooses brokers, signs requests and learns routes, for every part of one client."""

    def __init__(
        self,
        channels: Channels,
        routes: RouteCache,
        auth: ClientAuth,
        policy: TransportPolicy,
        clock: Clock,
    ) -> None:
        self.channels = channels
        self.routes = routes
        self.policy = policy
        self.clock = clock
        self.applied_revision = 0
        """Newest etcd revision of our own applies; later reads and appends wait for it, and so see them."""
        self.fragments = FragmentOpener(policy.fragments, clock, KnownSumsCache(self))
        self.read_totals = ReadTotals()
        """Content of all readers."""
        self._auth = auth
        self.tracing = tracing()
        """None if tracing is off."""
        # Asked once, because with several addresses that cannot be reached, asking goes on to the next.
        self._was_given_tls = is_tls(channels.default_endpoint)

    def default_peer(self) -> Peer:
        """Return the broker for requests that concern no particular journal."""
        return self._peer(self.channels.default_endpoint)

    def peer_for(self, journal: str, *, primary: bool) -> Peer:
        """Return the broker for a journal's requests: its primary or any member, else the default one."""
        endpoint = choose_endpoint(
            self.routes.route_of(journal),
            zone=self.policy.zone,
            primary=primary,
            state_of=self.channels.state,
        )
        if not endpoint or self._is_downgrade(endpoint):
            return self.default_peer()  # It forwards what it does not serve itself.
        return self._peer(endpoint)

    def _is_downgrade(self, endpoint: str) -> bool:
        """Report whether a route leads from TLS to clear text, where our token would be readable on the way."""
        return self._was_given_tls and not is_tls(endpoint)

    def _peer(self, endpoint: str) -> Peer:
        return Peer(endpoint, self.channels.stub(endpoint), self.channels.bulk(endpoint))

    def metadata(
        self, capability: Capability, selector: LabelSelector, *, life_seconds: float
    ) -> RpcMetadata:
        """Return the metadata of a request that needs only these claims."""
        shown = self._auth.metadata(expiring(capability, selector, life_seconds=life_seconds))
        if self.tracing is not None:
            shown = (*shown, *self.tracing.metadata())
        # A change says who makes it, for the broker's audit log.
        return (*shown, (ACTOR, local_actor())) if capability & Capability.APPLY else shown

    def journal_metadata(
        self, capability: Capability, journal: str, *, life_seconds: float
    ) -> RpcMetadata:
        """Return the metadata of a request about one journal."""
        selector = _selector_of(journal)
        return self.metadata(capability, selector, life_seconds=life_seconds)

    def revision_floor(self, min_etcd_revision: int) -> int:
        """Return the revision that a request waits for: the requested one, or that of the client's last apply."""
        return max(min_etcd_revision, self.applied_revision)

    def learn(self, journal: str, header: Header) -> None:
        """Remember the route of a validated answer."""
        self.routes.update(journal, header.route)

    def note_failure(self, journal: str, error: grpc.aio.AioRpcError) -> None:
        """Forget a route that led to an unavailable broker."""
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            self.routes.forget(journal)

    async def pause(self, seconds: float, endpoint: str = "") -> None:
        """Wait before another attempt; ends early when an unreachable broker can be reached again.

        Args:
            seconds: Longest wait. The least is `PAUSE_SECONDS_MIN`, however often the connection comes and goes.
            endpoint: Of the broker that was asked; the default one's if empty.
        """
        least = min(seconds, PAUSE_SECONDS_MIN)
        await asyncio.sleep(least)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - least):
                await self.channels.reconnected(endpoint)


@lru_cache(maxsize=_SELECTORS_MAX)
def _selector_of(journal: str) -> LabelSelector:
    """Return the selector of one journal, which is shared and must not be changed."""
    name, _ = split_journal(journal)
    return LabelSelector(include=label_set((NAME, name)))


def patiently(
    transport: JournalTransport, may_retry: Callable[[BaseException], bool]
) -> AsyncRetrying:
    """Return a retrier that repeats what `may_retry` allows until patience is over, then raises the last error."""
    clock = transport.clock
    ends_at_monotonic_seconds = clock.monotonic_seconds() + transport.policy.patience_seconds

    def is_over(state: RetryCallState) -> bool:
        return clock.monotonic_seconds() + state.upcoming_sleep >= ends_at_monotonic_seconds

    return AsyncRetrying(
        stop=is_over,
        wait=wait_exponential(multiplier=_RETRY_SECONDS_FIRST, max=_RETRY_SECONDS_MAX)
        + wait_random(0, _RETRY_SECONDS_FIRST),
        retry=retry_if_exception(may_retry),
        sleep=transport.pause,
        reraise=True,
    )


def cancelled_by_peer() -> bool:
    """Tell, inside `except CancelledError`, whether the peer cancelled the call, rather than this process the task.

    grpc.aio raises CancelledError for a call with status CANCELLED, which a stopping broker may send.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


async def answer_of(call: grpc.aio.UnaryUnaryCall[Any, Any], address: str) -> Any:
    """Return the answer of a unary call; the types are those of the generated stub.

    Raises:
        ServiceError: the call failed; see `error_of_rpc`.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of_rpc(address, error) from error
