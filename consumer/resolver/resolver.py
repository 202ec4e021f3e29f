"""The resolver: finds the process that serves a shard, and lends out the shard if this process does.

    snapshot ─► decision.decide ─┬─► AwaitRevision ─► wait for the mirror ─► decide again
                                 ├─► ForwardRefused ─► ProxyHeaderError
                                 ├─► Answered, Forward ─► Resolution without a shard
                                 └─► ServeHere ─► reference ─► ready | stopped | caller gone ─► Resolution

A reference on the live shard is taken *before* anything is awaited and released on every error, so that no caller
gets a store that was destroyed while it waited. Each wait ends in one of three ways: ready, stopped with its cause, or
the caller's deadline.

Source: gazette/core consumer/resolver.go (Resolve, ShardsWithSource).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar, assert_never

import grpc

from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.format_gate import FormatGate
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.model import ItemId, Member, MemberId
from broadsheet.consumer.application import Application, MessageProducer, Shard
from broadsheet.consumer.errors import ApplicationError, ResolverStoppedError, ShardStoppedError
from broadsheet.consumer.registry.key_space import is_visible, member_id_of, spec_of
from broadsheet.consumer.resolver.decision import (
    Answered,
    AwaitRevision,
    Forward,
    ForwardRefused,
    ResolveQuestion,
    ResolverSnapshot,
    ServeHere,
    check_proxied,
    decide_here,
    header_of,
)
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.shard.live_shard import LiveShard, ShardReference
from broadsheet.journals.transport import cancelled_by_peer
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Claims
from broadsheet.security.endpoints import open_channel
from broadsheet.security.errors import ProxyHeaderError, UnauthenticatedError
from broadsheet.security.tls import TlsConfig
from broadsheet.serving.tracing import tracing
from broadsheet.wire.journal_pb2 import Header
from broadsheet.wire.shard_pb2 import ShardSpec, Status

ResultT = TypeVar("ResultT")
StubT = TypeVar("StubT")
CATCH_UP_SECONDS_MAX = 30.0
"""Longest wait for the revision of the process that forwarded to us; the mirror is then cut off from etcd."""
DECISIONS_MAX = 4_096
"""Bound on the decisions that are kept until the key space changes."""


@dataclass(frozen=True, slots=True)
class LocalMember:
    """Place of this process in its cluster: its identity, the mirror by which it sees the cluster, and etcd."""

    member_id: MemberId
    key_space: KeySpace
    etcd: Etcd
    """Where the mirrored keys are written."""
    formats: FormatGate | None = None
    """The level of stored formats; None: all members are known to be of this release."""

    @property
    def announced(self) -> Member | None:
        """This process as the mirror shows it; None before it joins and after its lease has ended."""
        member: Member | None = self.key_space.members.get(self.member_id)
        return member

    def unrouted_header(self) -> Header:
        """Return the header of a response that is not about one shard."""
        return header_of(self.member_id if self.announced else None, self.key_space.header)


# Channels to the other processes of the cluster.

KEEPALIVE_MILLISECONDS = 10_000
"""A peer that vanished without closing its connection is detected after this and the timeout below."""
KEEPALIVE_TIMEOUT_MILLISECONDS = 5_000
RECONNECT_MILLISECONDS_MAX = 500
"""A peer that restarts is found again within this; gRPC's own default is two minutes."""
MESSAGE_BYTES_MAX = 64 << 20
"""Largest response accepted from a member, bytes: a listing of 100,000 shards has 20 MB."""
CLOSE_SECONDS = 5.0
"""Time for open requests to a process that left to finish."""
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MILLISECONDS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MILLISECONDS_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # One connection per channel object, because a closed one must not linger in gRPC's global pool.
    ("grpc.use_local_subchannel_pool", 1),
)


class Peers:
    """Channels to the other processes, one each, for the single hop of a proxied request.

    They are opened on first use, and closed once their process is gone.
    """

    def __init__(self, tls: TlsConfig | None = None) -> None:
        """Open nothing yet.

        Args:
            tls: Files for processes that are announced with `https://`.
        """
        self._tls = tls
        self._channel_by_endpoint: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[tuple[str, Callable[[grpc.aio.Channel], Any]], Any] = {}
        """By endpoint and class: one is as expensive to make as a short call."""

    def stub_to(self, header: Header, stub: Callable[[grpc.aio.Channel], StubT]) -> StubT:
        """Return the stub, of a generated class, for the process that `header.process_id` names.

        Raises:
            EndpointError: the route has no address for it, because it is about to leave.
        """
        endpoint = _endpoint_in(header)
        made: StubT | None = self._stubs.get((endpoint, stub))
        if made is None:
            made = self._stubs[endpoint, stub] = stub(self.channel_at(endpoint))
        return made

    def channel_to(self, header: Header) -> grpc.aio.Channel:
        """Return the channel to the process that `header.process_id` names.

        Raises:
            EndpointError: the route has no address for it, because it is about to leave.
        """
        return self.channel_at(_endpoint_in(header))

    def channel_at(self, endpoint: str) -> grpc.aio.Channel:
        """Return the channel to the process that listens at an endpoint."""
        channel = self._channel_by_endpoint.get(endpoint)
        if channel is None:
            try:
                channel = open_channel(endpoint, self._tls, options=CHANNEL_OPTIONS)
            except ValidationError as error:
                raise EndpointError(endpoint, error.problem) from error
            self._channel_by_endpoint[endpoint] = channel
        return channel

    def retain(self, endpoints: Collection[str], group: TaskGroup) -> None:
        """Close, in tasks of `group`, the channels to every other endpoint."""
        for endpoint in self._channel_by_endpoint.keys() - set(endpoints):
            channel = self._channel_by_endpoint.pop(endpoint)
            self._stubs = {key: each for key, each in self._stubs.items() if key[0] != endpoint}
            group.start_soon(channel.close(CLOSE_SECONDS), name=f"close channel {endpoint}")

    async def close(self) -> None:
        """Close every channel. Idempotent."""
        self._stubs.clear()
        while self._channel_by_endpoint:
            _, channel = self._channel_by_endpoint.popitem()
            await channel.close(None)


async def answer_of_peer(call: Awaitable[ResultT], endpoint: str) -> ResultT:
    """Return the answer to a call over a channel of `Peers`.

    Raises:
        EndpointError: the channel was closed during the call, because its process left.
        grpc.aio.AioRpcError: any other failure.
    """
    try:
        return await call
    except asyncio.CancelledError:
        if not cancelled_by_peer():
            raise
        # As a cancellation it would end the task that asked, without an error that anybody sees.
        raise EndpointError(endpoint, "its process left during the call") from None


def _endpoint_in(header: Header) -> str:
    wanted = header.process_id
    route = header.route
    for member, endpoint in zip(route.members, route.endpoints, strict=False):
        if member == wanted and endpoint:
            return endpoint
    raise EndpointError(str(member_id_of(wanted)), "its address is not known: it is leaving")


class ShardsBySource:
    """The index of shards by the journals that their specs name as sources, updated one shard at a time."""

    def __init__(self) -> None:
        self._journals: dict[ItemId, frozenset[str]] = {}
        self._readers: dict[str, set[ItemId]] = {}

    def reading(self, journal: str) -> Sequence[ItemId]:
        """Return the shards, by id, that have `journal` as a source."""
        return sorted(self._readers.get(journal, ()))

    def replace(self, shard_id: ItemId, spec: ShardSpec | None) -> None:
        """Update the index with a shard's current spec; None if the shard is gone."""
        for journal in self._journals.pop(shard_id, ()):
            readers = self._readers[journal]
            readers.discard(shard_id)
            if not readers:
                del self._readers[journal]
        if spec is None:
            return
        journals = self._journals[shard_id] = frozenset(each.journal for each in spec.sources)
        for journal in journals:
            self._readers.setdefault(journal, set()).add(shard_id)


class ShardResolution:
    """The result of a resolution; implements `broadsheet.consumer.application.Resolution`."""

    def __init__(
        self,
        status: Status.ValueType,
        header: Header,
        spec: ShardSpec | None,
        *,
        held: tuple[LiveShard, ShardReference] | None = None,
        cause: str = "",
    ) -> None:
        self.status = status
        self.header = header
        self.spec = spec
        self.shard: Shard | None = None if held is None else held[0]
        self.cause = cause
        """Reason why the shard stopped, if the status is SHARD_STOPPED."""
        self._reference = None if held is None else held[1]

    @property
    def reference(self) -> ShardReference:
        """The reference that holds the shard.

        Requires:
            `shard` is set.
        """
        assert self._reference is not None, "only the shard's primary can be held"
        return self._reference

    async def call(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(store, *args)`, run on the shard's worker thread between batches.

        Requires:
            `shard` is set.

        Raises:
            ShardStoppedError: the shard stopped before the call could run.
        """
        return await self.reference.call(function, *args)

    async def read_through(self, offsets: Mapping[str, int]) -> None:
        """Wait until completed transactions have read through `offsets`, bytes by journal.

        Requires:
            `shard` is set.

        Raises:
            ShardStoppedError: the shard stopped before.
        """
        await self.reference.wait_for_offsets(offsets)

    def release(self) -> None:
        """Release the shard. Idempotent; leaving the `async with` block does it."""
        if self._reference is not None:
            self._reference.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ShardResolver:
    """The resolver of one process; implements `broadsheet.consumer.application.Resolver`."""

    def __init__(
        self,
        key_space: KeySpace,
        local_shards: LocalShards,
        *,
        member_id: MemberId,
        application: Application[Any],
        peers: Peers,
    ) -> None:
        """Create a resolver.

        Args:
            key_space: The mirror; register `reindex` as its observer.
            local_shards: The shards that run here.
            member_id: This process.
            application: Asked for the offsets to wait for, if it produces its own messages.
            peers: Channels to other processes.
        """
        self._key_space = key_space
        self._local_shards = local_shards
        self._member_id = member_id
        # Checked once, because a check against a protocol costs as much as the rest of a resolution.
        self._producer = application if isinstance(application, MessageProducer) else None
        self._peers = peers
        self._sources: ShardsBySource | None = None
        """Made when an application asks first: most never do, and it takes as much memory as the specs."""
        self._tracing = tracing()
        self._decisions: dict[tuple[str, bool, bytes], Answered | Forward | ServeHere] = {}
        """Since the key space changed last, on which alone they depend, by shard, `may_proxy` and encoded selector."""
        self.stopping = asyncio.Event()
        """Set when the process is about to end; long streams should end themselves then."""

    async def resolve(
        self,
        shard_id: str,
        *,
        claims: Claims,
        may_proxy: bool,
        proxy_header: Header | None = None,
        read_through: Mapping[str, int] | None = None,
    ) -> ShardResolution:
        """Find the shard's primary; if it is this process, wait until it is ready and has read through.

        Args:
            shard_id: The shard to find.
            claims: Of the caller. A shard that they do not select is answered like one that does not exist.
            may_proxy: Answer OK without a shard if another process is the primary, so that the caller forwards.
            proxy_header: Header of the process that forwarded the request to us.
            read_through: Offsets that completed transactions must have read, bytes by journal.

        Raises:
            ResolverStoppedError: this process is shutting down.
            ProxyHeaderError: the request was forwarded to the wrong process or cluster.
            TimeoutError: this process did not catch up with the forwarding one.
            UnauthenticatedError: the claims have expired.
        """
        _require_unexpired(claims)
        question = ResolveQuestion(
            shard_id=shard_id,
            selector=claims.selector,
            may_proxy=may_proxy,
            proxy_header=proxy_header,
        )
        if self._tracing is None:
            return await self._resolve(question, claims, read_through or {})
        with self._tracing.step("Resolve", {"broadsheet.shard": shard_id}) as span:
            resolution = await self._resolve(question, claims, read_through or {})
            span.set_attribute("broadsheet.status", Status.Name(resolution.status))
            return resolution

    async def _resolve(
        self, question: ResolveQuestion, claims: Claims, read_through: Mapping[str, int]
    ) -> ShardResolution:
        decision = await self._decide(question)
        match decision:
            case Answered(status, header, spec):
                return ShardResolution(status, header, spec)
            case Forward(header, spec):
                return ShardResolution(Status.OK, header, spec)
            case ServeHere(header, spec):
                return await self._serve(header, spec, claims, read_through)
            case _:
                assert_never(decision)

    def shards_with_source(self, journal: str, *, claims: Claims) -> Sequence[ShardSpec]:
        """Return the specs, by shard id, that have `journal` as a source and that `claims` select.

        Raises:
            UnauthenticatedError: the claims have expired.
        """
        _require_unexpired(claims)
        items = self._key_space.items
        if self._sources is None:
            self._sources = ShardsBySource()
            for item_id, item in items.items():
                self._sources.replace(item_id, spec_of(item))
        specs = (spec_of(items[item_id]) for item_id in self._sources.reading(journal))
        return tuple(spec for spec in specs if is_visible(spec, claims.selector))

    def channel_to(self, header: Header) -> grpc.aio.Channel:
        """Return the cached channel to the process that `header.process_id` names, for the one hop of a proxy.

        Raises:
            EndpointError: its address is not known.
        """
        return self._peers.channel_to(header)

    def stub_to(self, header: Header, stub: Callable[[grpc.aio.Channel], StubT]) -> StubT:
        """Return the cached stub for the process that `header.process_id` names, for the one hop of a proxy.

        Raises:
            EndpointError: its address is not known.
        """
        return self._peers.stub_to(header, stub)

    def reindex(self) -> None:
        """Forget decisions, and update the index of shards by source. Called after each change of the key space."""
        self._decisions.clear()
        if self._sources is None:
            return
        for item_id in self._key_space.changes.items:
            item = self._key_space.items.get(item_id)
            self._sources.replace(
                item_id if item is None else item.item_id, None if item is None else spec_of(item)
            )

    def snapshot_of(self, shard_id: str) -> ResolverSnapshot:
        """Return the current state of a shard known to this process."""
        item_id = ItemId(shard_id)
        announced = self._member_id in self._key_space.members
        return ResolverSnapshot(
            local_id=self._member_id if announced else None,
            etcd=self._key_space.header,
            item=self._key_space.items.get(item_id),
            assignments=self._key_space.assignments_of(item_id),
            members=self._key_space.members,
        )

    async def _decide(self, question: ResolveQuestion) -> Answered | Forward | ServeHere:
        while True:
            match self._objection_to(question.proxy_header):
                case None:
                    return self._decided(question)
                case ForwardRefused(problem):
                    raise ProxyHeaderError(problem)
                case AwaitRevision(revision):
                    async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
                        await self._key_space.wait_for_revision(revision)
                case unknown:
                    assert_never(unknown)

    def _objection_to(self, header: Header | None) -> ForwardRefused | AwaitRevision | None:
        if header is None:
            return None
        key_space = self._key_space
        local_id = self._member_id if self._member_id in key_space.members else None
        return check_proxied(header, local_id, key_space.header)

    def _decided(self, question: ResolveQuestion) -> Answered | Forward | ServeHere:
        """Return the decision as of now: the one that was made, if the key space has not changed since then."""
        # The encoding of a selector may differ between equal ones, which costs a second decision and nothing else.
        key = question.shard_id, question.may_proxy, question.selector.SerializeToString()
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = decide_here(question, self.snapshot_of(question.shard_id))
            self._decisions[key] = decision
        # A header of its own for each caller, who may change it.
        header = Header()
        header.CopyFrom(decision.header)
        return replace(decision, header=header)

    async def _serve(
        self, header: Header, spec: ShardSpec, claims: Claims, read_through: Mapping[str, int]
    ) -> ShardResolution:
        # No await between the decision and the reference, so the snapshot behind the decision is still current.
        if self._local_shards.stopped:
            raise ResolverStoppedError("this process is shutting down; resolve again elsewhere")
        shard = self._local_shards.shards[ItemId(spec.id)]
        try:
            reference = shard.acquire()
        except ShardStoppedError as error:
            return _stopped(header, spec, error)
        try:
            await reference.wait_ready()
            offsets = await self._offsets_to_wait_for(shard, reference, spec, read_through)
            await reference.wait_for_offsets(offsets)
            # Checked again, because the wait has no bound. A call ends with its token; work that outlives a call does
            # not.
            _require_unexpired(claims)
        except ShardStoppedError as error:
            reference.release()
            return _stopped(header, spec, error)
        except BaseException:
            reference.release()
            raise
        return ShardResolution(Status.OK, header, spec, held=(shard, reference))

    async def _offsets_to_wait_for(
        self,
        shard: LiveShard,
        reference: ShardReference,
        spec: ShardSpec,
        read_through: Mapping[str, int],
    ) -> Mapping[str, int]:
        if self._producer is not None:
            try:
                return self._producer.read_through(shard, reference.store, read_through)
            except Exception as error:  # Application code raises errors of any class.
                raise ApplicationError(shard.id, "read_through", error) from error
        # Other journals are ignored, because one request may carry offsets for the readers of several shards.
        sources = {source.journal for source in spec.sources}
        return {
            journal: offset
            for journal, offset in read_through.items()
            if journal in sources and offset > 0
        }


def _require_unexpired(claims: Claims) -> None:
    if claims.has_expired(datetime.now(UTC)):
        raise UnauthenticatedError(
            f"the caller's token expired at {claims.expires_at}, before its work was done: call again with another"
        )


def _stopped(header: Header, spec: ShardSpec, error: ShardStoppedError) -> ShardResolution:
    return ShardResolution(Status.SHARD_STOPPED, header, spec, cause=error.detail)
