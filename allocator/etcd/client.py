"""The asyncio client of etcd: implements `broadsheet.allocator.etcd.api.Etcd` over gRPC.

It calls etcd's methods by path with messages of our own package, so it needs no other etcd library and conflicts with
none. One client belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import grpc.aio

from broadsheet.allocator.errors import EtcdRequestError, LeaseNotFoundError
from broadsheet.allocator.etcd import rpc_pb2
from broadsheet.allocator.etcd.api import Header, LeaseLife, RangeResult, TxnResult, WatchBatch
from broadsheet.allocator.etcd.calls import Caller, CallObserver, Metadata, Method, NoAnswerError
from broadsheet.allocator.etcd.channel import ChannelPool
from broadsheet.allocator.etcd.config import EtcdConfig as EtcdConfig
from broadsheet.allocator.etcd.convert import header_from, put_to, txn_result_from, txn_to
from broadsheet.allocator.etcd.reads import RANGE, read_range, read_ranges
from broadsheet.allocator.etcd.watch import watch_prefix
from broadsheet.allocator.ops import Compare, Get, LeaseId, Operation, Put, prefix_range_end
from broadsheet.runtime.clock import Clock, SystemClock

LEASE_KEEP_ALIVE_PATH = "/etcdserverpb.Lease/LeaseKeepAlive"

_PUT: Final[Method[rpc_pb2.PutRequest, rpc_pb2.PutResponse]] = Method(
    "/etcdserverpb.KV/Put", rpc_pb2.PutResponse
)
_DELETE: Final[Method[rpc_pb2.DeleteRangeRequest, rpc_pb2.DeleteRangeResponse]] = Method(
    "/etcdserverpb.KV/DeleteRange", rpc_pb2.DeleteRangeResponse
)
_TXN: Final[Method[rpc_pb2.TxnRequest, rpc_pb2.TxnResponse]] = Method(
    "/etcdserverpb.KV/Txn", rpc_pb2.TxnResponse
)
_COMPACT: Final[Method[rpc_pb2.CompactionRequest, rpc_pb2.CompactionResponse]] = Method(
    "/etcdserverpb.KV/Compact", rpc_pb2.CompactionResponse
)
_LEASE_GRANT: Final[Method[rpc_pb2.LeaseGrantRequest, rpc_pb2.LeaseGrantResponse]] = Method(
    "/etcdserverpb.Lease/LeaseGrant", rpc_pb2.LeaseGrantResponse
)
_LEASE_REVOKE: Final[Method[rpc_pb2.LeaseRevokeRequest, rpc_pb2.LeaseRevokeResponse]] = Method(
    "/etcdserverpb.Lease/LeaseRevoke", rpc_pb2.LeaseRevokeResponse
)
_LEASE_TIME_TO_LIVE: Final[
    Method[rpc_pb2.LeaseTimeToLiveRequest, rpc_pb2.LeaseTimeToLiveResponse]
] = Method("/etcdserverpb.Lease/LeaseTimeToLive", rpc_pb2.LeaseTimeToLiveResponse)
_STATUS: Final[Method[rpc_pb2.StatusRequest, rpc_pb2.StatusResponse]] = Method(
    "/etcdserverpb.Maintenance/Status", rpc_pb2.StatusResponse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdStatus:
    """Health of the etcd member that answered."""

    header: Header
    version: str
    db_bytes: int
    leader_id: int
    """0 while there is none."""
    errors: tuple[str, ...] = ()
    """What it says is wrong with it, such as an alarm for a full database."""


class EtcdClient:
    """An async context manager; its methods may be called concurrently on the loop that entered it."""

    def __init__(
        self,
        config: EtcdConfig,
        *,
        clock: Clock | None = None,
        observer: CallObserver | None = None,
    ) -> None:
        self._config = config
        clock = clock or SystemClock()
        self._pool = ChannelPool(config, clock)
        self._caller = Caller(self._pool, config, clock, observer)
        self._resources = AsyncExitStack()

    @property
    def config(self) -> EtcdConfig:
        """The configuration that the client was made with."""
        return self._config

    async def __aenter__(self) -> Self:
        await self._resources.enter_async_context(self._pool)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._resources.aclose()

    async def get_range(
        self, key: bytes, range_end: bytes = b"", *, revision: int = 0
    ) -> RangeResult:
        """Read keys in [key, range_end) (only `key` if no end), all pages pinned to one revision (0: the newest).

        The result's `header.revision` is that revision, even if the store has moved on.

        Raises:
            RevisionCompactedError: etcd no longer has that revision.
        """
        return await read_range(self._caller, key, range_end, revision)

    async def newest_revision(self, prefix: bytes) -> int:
        """Return the newest revision among the existing keys with `prefix`; 0 if there are none."""
        request = rpc_pb2.RangeRequest(
            key=prefix,
            range_end=prefix_range_end(prefix),
            limit=1,
            sort_order=rpc_pb2.RangeRequest.DESCEND,
            sort_target=rpc_pb2.RangeRequest.MOD,
            keys_only=True,
        )
        response = await self._caller.unary(RANGE, request, idempotent=True)
        return max((kv.mod_revision for kv in response.kvs), default=0)

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Perform `success` if every comparison holds, else `failure`; at most 128 comparisons and 128 operations.

        Raises:
            EtcdLimitError: too many operations, a key written twice, or a request too large.
            LeaseNotFoundError: a put names a lease that has ended.
            EtcdUnavailableError: no answer; unless it only reads, it may have been applied.
        """
        gets = tuple(each for each in success if isinstance(each, Get))
        # An older etcd crashes if a read-only transaction is cancelled: see `reads`.
        if gets == success and gets and not compares and not failure:
            return await read_ranges(self._caller, gets)
        request = txn_to(compares, success, failure)
        reads_only = all(isinstance(each, Get) for each in success + failure)
        response = await self._caller.unary(_TXN, request, idempotent=reads_only)
        return txn_result_from(response)

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """Write one key, and return the revision of the write."""
        request = put_to(Put(key, value, lease))
        response = await self._caller.unary(_PUT, request, idempotent=False)
        return response.header.revision

    async def delete(self, key: bytes, range_end: bytes = b"") -> int:
        """Delete a key, or every key in [key, range_end), and return how many there were."""
        request = rpc_pb2.DeleteRangeRequest(key=key, range_end=range_end)
        response = await self._caller.unary(_DELETE, request, idempotent=False)
        return response.deleted

    async def compact(self, revision: int) -> None:
        """Discard the history before `revision`, for all clients."""
        request = rpc_pb2.CompactionRequest(revision=revision, physical=True)
        await self._caller.unary(_COMPACT, request, idempotent=False)

    async def status(self) -> EtcdStatus:
        """Return the health of one member."""
        response = await self._caller.unary(_STATUS, rpc_pb2.StatusRequest(), idempotent=True)
        return EtcdStatus(
            header=header_from(response.header),
            version=response.version,
            db_bytes=response.db_size,
            leader_id=response.leader,
            errors=tuple(response.errors),
        )

    async def lease_grant(self, ttl_seconds: int) -> LeaseId:
        """Create a lease. Etcd raises a TTL below its own minimum, about 1.5 election timeouts."""
        # A lost answer is retried: at worst a lease without keys expires by itself.
        request = rpc_pb2.LeaseGrantRequest(ttl=ttl_seconds)
        response = await self._caller.unary(_LEASE_GRANT, request, idempotent=True)
        if response.error:
            raise EtcdRequestError(response.error)
        return LeaseId(response.id)

    async def lease_revoke(self, lease: LeaseId) -> bool:
        """End a lease and delete its keys. False if there was no such lease."""
        request = rpc_pb2.LeaseRevokeRequest(id=lease)
        try:
            await self._caller.unary(_LEASE_REVOKE, request, idempotent=True)
        except LeaseNotFoundError:
            return False
        return True

    async def lease_keep_alive_once(self, lease: LeaseId) -> int:
        """Renew a lease. Return the seconds it has now; 0 if it is gone."""
        request = rpc_pb2.LeaseKeepAliveRequest(id=lease)
        response = await self._caller.call(
            lambda channel, metadata, timeout: _keep_alive(channel, request, metadata, timeout),
            idempotent=True,
        )
        return response.ttl

    async def lease_life(self, lease: LeaseId) -> LeaseLife | None:
        """Return how much time a lease has left, without renewing it; None if it is gone."""
        request = rpc_pb2.LeaseTimeToLiveRequest(id=lease)
        response = await self._caller.unary(_LEASE_TIME_TO_LIVE, request, idempotent=True)
        if response.ttl < 0:
            return None
        return LeaseLife(granted_seconds=response.granted_ttl, left_seconds=response.ttl)

    def watch(self, prefix: bytes, *, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Yield every change of keys with `prefix` from `start_revision` on, for ever, resuming lost streams.

        A batch's `header.revision` is that of its last event. Close the iterator (`contextlib.aclosing`) to end it
        before its task ends.

        Raises:
            RevisionCompactedError: etcd no longer has the revision to (re)start at; reload and compare.
        """
        return watch_prefix(self._caller, prefix, start_revision=start_revision)


async def _keep_alive(
    channel: grpc.aio.Channel,
    request: rpc_pb2.LeaseKeepAliveRequest,
    metadata: Metadata,
    timeout: float,
) -> rpc_pb2.LeaseKeepAliveResponse:
    """Renew once on a dedicated stream, so that a lost answer cannot be taken for a later one."""
    stub = channel.stream_stream(
        LEASE_KEEP_ALIVE_PATH,
        request_serializer=rpc_pb2.LeaseKeepAliveRequest.SerializeToString,
        response_deserializer=rpc_pb2.LeaseKeepAliveResponse.FromString,
    )
    call = stub(_once(request), metadata=metadata, timeout=timeout)
    try:
        async for response in call:
            return response
    finally:
        call.cancel()
    raise NoAnswerError


async def _once(
    request: rpc_pb2.LeaseKeepAliveRequest,
) -> AsyncGenerator[rpc_pb2.LeaseKeepAliveRequest, None]:
    yield request
