"""What every journal request shares: which broker to ask, as whom, and what its answer teaches about routes.

Source: gazette/core broker/protocol/dispatcher.go (dispatch rules), broker/protocol/auth.go (default claims).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import grpc
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    wait_exponential,
    wait_random,
)

from allocator.runtime.clock import Clock
from consumer.journal.channels import BulkStub, Channels
from consumer.journal.outcomes import error_of_rpc
from consumer.journal.routes import RouteCache, choose_endpoint
from consumer.protocol.alphabet import split_journal
from consumer.protocol.auth import Capability, ClientAuth, expiring
from consumer.protocol.journal_pb2 import Header, LabelSelector
from consumer.protocol.labels import NAME, label_set

if TYPE_CHECKING:
    # The generated stubs know this class when types are checked only.
    from consumer.protocol.journal_pb2_grpc import JournalAsyncStub

STREAM_LIFE_SECONDS = 300.0
"""A read or a watch is opened anew after this: so a peer that died without a word is noticed."""
UNARY_TIMEOUT_SECONDS = 30.0
"""Longest wait for one answer to a request that does not block by itself."""
PAUSE_SECONDS_MIN = 0.05
"""Between two attempts, at least."""
_RETRY_SECONDS_FIRST, _RETRY_SECONDS_MAX = 0.05, 1.0
_SELECTORS_MAX = 4096
"""Journals whose selector is remembered: a process asks about the same ones again and again."""

RpcMetadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """One broker to ask."""

    endpoint: str
    stub: JournalAsyncStub
    bulk: BulkStub
    """The stub's methods that carry content."""


class JournalTransport:
    """Chooses brokers, signs requests and learns routes, for every part of one client."""

    def __init__(
        self,
        channels: Channels,
        routes: RouteCache,
        auth: ClientAuth,
        *,
        zone: str,
        patience_seconds: float,
        chunk_bytes: int,
        whole_bytes_max: int,
        clock: Clock,
    ) -> None:
        self.channels = channels
        self.routes = routes
        self.patience_seconds = patience_seconds
        self.chunk_bytes = chunk_bytes
        """Content sent in one message of an append's stream."""
        self.whole_bytes_max = whole_bytes_max
        """Content of an append that is sent in one message with all of it."""
        self.clock = clock
        self.applied_revision = 0
        """Newest etcd revision of our own applies: reads and appends wait for it, and so see them."""
        self._auth = auth
        self._zone = zone

    def default_peer(self) -> Peer:
        """Return the broker to ask about no journal in particular."""
        return self._peer(self.channels.default_endpoint)

    def peer_for(self, journal: str, *, primary: bool) -> Peer:
        """Return the broker to ask: the journal's primary or any of its members, else the default one."""
        endpoint = choose_endpoint(
            self.routes.route_of(journal),
            zone=self._zone,
            primary=primary,
            state_of=self.channels.state,
        )
        if not endpoint:
            return self.default_peer()
        return self._peer(endpoint)

    def _peer(self, endpoint: str) -> Peer:
        return Peer(endpoint, self.channels.stub(endpoint), self.channels.bulk(endpoint))

    def metadata(
        self, capability: Capability, selector: LabelSelector, *, life_seconds: float
    ) -> RpcMetadata:
        """Return the metadata of a request that needs no more than this."""
        return self._auth.metadata(expiring(capability, selector, life_seconds=life_seconds))

    def journal_metadata(
        self, capability: Capability, journal: str, *, life_seconds: float
    ) -> RpcMetadata:
        """Return the metadata of a request about one journal."""
        selector = _selector_of(journal)
        return self.metadata(capability, selector, life_seconds=life_seconds)

    def revision_floor(self, min_etcd_revision: int) -> int:
        """Return the revision that a request waits for: what was asked, or our own last apply."""
        return max(min_etcd_revision, self.applied_revision)

    def learn(self, journal: str, header: Header) -> None:
        """Remember the route of a validated answer."""
        self.routes.update(journal, header.route)

    def note_failure(self, journal: str, error: grpc.aio.AioRpcError) -> None:
        """Forget the route that led to a broker which is not there."""
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            self.routes.forget(journal)

    async def pause(self, seconds: float, endpoint: str = "") -> None:
        """Wait before another attempt; no longer than until a broker is reached again that could not be.

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
    """Return what picks a journal; nobody changes it."""
    name, _ = split_journal(journal)
    return LabelSelector(include=label_set((NAME, name)))


def patiently(
    transport: JournalTransport, may_retry: Callable[[BaseException], bool]
) -> AsyncRetrying:
    """Return a retrier that repeats what `may_retry` allows until patience is over, then raises the last error."""
    clock = transport.clock
    ends_at_monotonic_seconds = clock.monotonic_seconds() + transport.patience_seconds

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
    """Tell, inside `except CancelledError`, whether it is the peer that cancelled the call and nobody the task.

    grpc.aio raises CancelledError for a call with status CANCELLED, which a broker that goes away may send.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


async def answer_of(call: grpc.aio.UnaryUnaryCall[Any, Any], address: str) -> Any:
    """Return the answer of a unary call; the types are those of the generated stub.

    Raises:
        ConsumerError: the call failed; see `error_of_rpc`.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of_rpc(address, error) from error
