"""The driver's view of a cluster's members in etcd: live members, their hosts, orders, and revoked leases."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

import structlog
from google.protobuf.message import DecodeError

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys, MemberKey
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import KeyValue, LeaseId, prefix_range_end
from broadsheet.consumer.client.loop_thread import LoopThread
from broadsheet.runtime.documents import DocumentError
from broadsheet.spark_bridge.cluster.enrolment import Enrolment, read_drivers
from broadsheet.spark_bridge.cluster.joining import DriverRecord
from broadsheet.spark_bridge.keys import cluster_prefix, failure_key, hosts_prefix, orders_prefix
from broadsheet.spark_bridge.member.identity import Host, Incarnation, decode_host, parse_suffix
from broadsheet.spark_bridge.member.orders import all_members_key, attempt_key, task_key
from broadsheet.wire.shard_pb2 import ConsumerSpec

_log = structlog.get_logger()


async def revoke_members(
    etcd: Etcd, keys: Keys, should_revoke: Callable[[Incarnation], bool]
) -> tuple[MemberId, ...]:
    """Revoke the leases of the members that `should_revoke` chooses among those of tasks; return these members.

    It only saves the time until a lease ends. A live process that is wrongly taken for dead loses its lease, stops its
    shards and cannot commit, because the stores' fences hold.
    """
    revoked: list[MemberId] = []
    for member_id, kv in await _members(etcd, keys):
        incarnation = parse_suffix(member_id.suffix)
        if incarnation is None or not should_revoke(incarnation):
            continue
        if kv.lease and await etcd.lease_revoke(LeaseId(kv.lease)):
            _log.info("member.lease_revoked", member_id=str(member_id), lease=f"{kv.lease:x}")
            revoked.append(member_id)
    return tuple(revoked)


async def _members(etcd: Etcd, keys: Keys) -> list[tuple[MemberId, KeyValue]]:
    prefix = keys.members_prefix
    found = await etcd.get_range(prefix, prefix_range_end(prefix))
    members: list[tuple[MemberId, KeyValue]] = []
    for kv in found.kvs:
        try:
            parsed = keys.parse(kv.key)
        except KeyDecodeError:
            continue  # not a member's key; those who watch the root report it
        assert isinstance(parsed, MemberKey), "read below members/"
        members.append((parsed.member_id, kv))
    return members


def drivers_at(config: EtcdConfig, root: str) -> tuple[DriverRecord, ...]:
    """Return the drivers that live at a root, in the order in which they came; blocks."""

    async def read() -> tuple[DriverRecord, ...]:
        async with EtcdClient(config) as etcd:
            return await read_drivers(etcd, root)

    with LoopThread(name="shard-cluster-drivers") as loop:
        return loop.call(read())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A live member of the cluster."""

    member_id: MemberId
    endpoint: str
    """Address at which it serves gRPC."""
    partition: int
    """Number of its task in the cluster, from 0 on; the number of one that left for good is not used again."""
    attempt: int
    """Number of earlier starts of its task."""
    exiting: bool
    executor_id: str
    """Its executor, by Spark's id."""
    log_url: str
    """Page on which Spark shows its log, or its file; empty if the cluster manager does not tell."""


class Membership:
    """A cluster's members and orders; a blocking context manager around an etcd client and its event loop."""

    def __init__(
        self, config: EtcdConfig, keys: Keys, *, application_id: str, joins: bool = False
    ) -> None:
        """Select a cluster's members.

        Args:
            config: How to reach etcd.
            keys: The cluster's keys.
            application_id: Spark's application, whose tasks the members are.
            joins: Whether other applications' members may be at the root, if their settings fit.
        """
        self._config = config
        self._keys = keys
        self._application_id = application_id
        self._resources = AsyncExitStack()
        self._joins = joins
        cluster = self._cluster = f"{application_id}-{uuid4().hex[:8]}"
        self._prefix = cluster_prefix(keys.root, cluster)
        self.orders_prefix = orders_prefix(keys.root, cluster)
        """Prefix of the keys that members watch for orders."""
        self.hosts_prefix = hosts_prefix(keys.root, cluster)
        """Prefix of the keys in which members tell their hosts."""
        self.failure_key = failure_key(keys.root, cluster)
        """Key in which a member that fails writes the reason."""

    def __enter__(self) -> Self:
        self._loop = LoopThread(name="shard-cluster-etcd")
        self._etcd = self._loop.call(self._resources.enter_async_context(EtcdClient(self._config)))
        self._enrolment = Enrolment(
            self._etcd, self._keys, cluster=self._cluster, joins=self._joins
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._loop.call(self._resources.aclose())
        finally:
            self._loop.close()

    def enrol(self, driver: DriverRecord) -> None:
        """Announce this driver for as long as it lives, or until `leave`.

        Raises:
            ClusterJoinError: its settings do not fit those of another driver's cluster at the root.
        """
        self._loop.call(self._enrolment.enrol(driver))
        self._enrolled = self._loop.start(self._enrolment.run())

    def leave(self) -> None:
        """Take this driver's announcement back."""
        self._enrolled.cancel()
        self._loop.call(self._enrolment.leave())

    def members(self) -> tuple[MemberInfo, ...]:
        """Return the live members, by their task's number."""
        return self._loop.call(self._read_members())

    def hosts(self) -> tuple[Host, ...]:
        """Return the host of each task's newest attempt, dead ones included."""
        return self._loop.call(self._read_hosts())

    def order_all_to_leave(self) -> None:
        """Order every member to leave for good."""
        self._loop.call(self._etcd.put(all_members_key(self.orders_prefix), b""))

    def order_to_leave(self, partition: int) -> None:
        """Order one task's member to leave for good."""
        self._loop.call(self._etcd.put(task_key(self.orders_prefix, partition), b""))

    def order_to_move(self, host: Host) -> None:
        """Order a member to leave, so that Spark starts it again elsewhere."""
        key = attempt_key(self.orders_prefix, host.partition, host.attempt)
        self._loop.call(self._etcd.put(key, b""))

    def bury(self, hosts: Collection[Host]) -> tuple[MemberId, ...]:
        """Revoke the leases of members whose executors are gone; return the members that held one."""
        gone = {(host.partition, host.attempt) for host in hosts}
        return self._loop.call(
            revoke_members(
                self._etcd,
                self._keys,
                lambda one: self._is_ours(one) and (one.partition, one.attempt) in gone,
            )
        )

    def others_stay(self) -> bool:
        """Tell whether there is a member of another application, or outside Spark, that is not about to leave."""
        return self._loop.call(self._others_stay())

    def shard_count(self) -> int:
        """Return the number of shards at the root, whichever members serve them."""
        prefix = self._keys.items_prefix
        found = self._loop.call(self._etcd.get_range(prefix, prefix_range_end(prefix)))
        return len(found.kvs)

    def failure(self) -> str:
        """Return the reason of the latest failure of a member; empty if none failed."""
        found = self._loop.call(self._etcd.get_range(self.failure_key))
        return found.kvs[0].value.decode() if found.kvs else ""

    def clear(self) -> None:
        """Revoke the leases of remaining members, and remove the cluster's own keys."""
        self._loop.call(revoke_members(self._etcd, self._keys, self._is_ours))
        self._loop.call(self._etcd.delete(self._prefix, prefix_range_end(self._prefix)))

    async def _others_stay(self) -> bool:
        for member_id, kv in await _members(self._etcd, self._keys):
            incarnation = parse_suffix(member_id.suffix)
            spec = _spec_or_none(kv.value)
            is_other = incarnation is None or not self._is_ours(incarnation)
            if is_other and spec is not None and not spec.exiting and spec.shard_limit:
                return True
        return False

    def _is_ours(self, incarnation: Incarnation) -> bool:
        return incarnation.application_id == self._application_id

    async def _read_members(self) -> tuple[MemberInfo, ...]:
        found = await _members(self._etcd, self._keys)
        hosts = {(host.partition, host.attempt): host for host in await self._read_hosts()}
        members: list[MemberInfo] = []
        for member_id, kv in found:
            incarnation = parse_suffix(member_id.suffix)
            # Members of other Spark applications, or outside Spark, may share the root.
            if incarnation is None or not self._is_ours(incarnation):
                continue
            spec = _spec_or_none(kv.value)
            if spec is None:
                _log.warning("member.unreadable", key=kv.key.decode(errors="replace"))
                continue
            host = hosts.get((incarnation.partition, incarnation.attempt))
            members.append(
                MemberInfo(
                    member_id=member_id,
                    endpoint=spec.process_spec.endpoint,
                    partition=incarnation.partition,
                    attempt=incarnation.attempt,
                    exiting=spec.exiting,
                    executor_id="" if host is None else host.executor_id,
                    log_url="" if host is None else host.log_url,
                )
            )
        return tuple(sorted(members, key=lambda member: (member.partition, member.attempt)))

    async def _read_hosts(self) -> tuple[Host, ...]:
        found = await self._etcd.get_range(self.hosts_prefix, prefix_range_end(self.hosts_prefix))
        hosts: list[Host] = []
        for kv in found.kvs:
            try:
                hosts.append(decode_host(kv.value))
            except DocumentError as error:
                key = kv.key.decode(errors="replace")
                _log.warning("host.unreadable", key=key, cause=str(error))
        return tuple(hosts)


def _spec_or_none(value: bytes) -> ConsumerSpec | None:
    try:
        return ConsumerSpec.FromString(value)
    except DecodeError:
        return None
