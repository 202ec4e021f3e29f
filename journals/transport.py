"""Shared parts of all journal requests: choice of the broker, authorization, and routes learned from answers.

Source: gazette/core broker/protocol/dispatcher.go (dispatch rules), broker/protocol/auth.go (default claims).
"""

from __future__ import annotations

import asyncio
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
from broadsheet.journals.direct_fragments import DirectFragments, ReadTotals
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.actor import ACTOR, local_actor
from broadsheet.security.auth import Capability, ClientAuth, NoAuth, expiring
from broadsheet.security.endpoints import is_tls
from broadsheet.security.tls import TlsConfig
from broadsheet.serving.tracing import tracing
from broadsheet.wire.alphabet import split_journal
from broadsheet.wire.journal_pb2 import Header, LabelSelector
from broadsheet.wire.labels import NAME, label_set

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub
from broadsheet.journals.request_errors import BROKEN_WRITE, error_of_rpc
from broadsheet.journals.route_cache import RouteCache, choose_endpoint

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
        self.read_totals = ReadTotals()
        """Content of all readers."""
        self._auth = auth
        self._shows_nothing = isinstance(auth, NoAuth)
        """Whether claims need not be made, because they are not shown."""
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
        shown: RpcMetadata = ()
        if not self._shows_nothing:
            shown = self._auth.metadata(expiring(capability, selector, life_seconds=life_seconds))
        if self.tracing is not None:
            shown = (*shown, *self.tracing.metadata())
        # A change says who makes it, for the broker's audit log.
        # By the integer's own operator, because that of flags makes a flag of the result, for every request.
        changes = int.__and__(capability, Capability.APPLY)
        return (*shown, (ACTOR, local_actor())) if changes else shown

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
        if error.code() == grpc.StatusCode.UNAVAILABLE or error.details() == BROKEN_WRITE:
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
