"""A cluster's members as etcd knows them, for the driver: who lives, telling them to stop, burying the dead."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

from allocator.core.keys import Keys, MemberKey
from allocator.core.model import MemberId
from allocator.core.ops import prefix_range_end
from allocator.etcd.client import EtcdClient
from allocator.etcd.config import EtcdConfig
from consumer.client.loop_thread import LoopThread
from consumer.protocol.shard_pb2 import ConsumerSpec
from spark_bridge.cluster.leases import revoke_members
from spark_bridge.keys import failure_key, stop_key
from spark_bridge.member.identity import Incarnation, parse_suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A live member of the cluster."""

    member_id: MemberId
    endpoint: str
    """Where it serves gRPC."""
    partition: int
    """Index of its task, in [0, members)."""
    attempt: int
    """How often its task was started before."""
    exiting: bool


class Membership:
    """A blocking context manager around an etcd client on a loop of its own."""

    def __init__(self, config: EtcdConfig, keys: Keys, *, application_id: str) -> None:
        """Describe whose members are meant.

        Args:
            config: How to reach etcd.
            keys: Where the cluster keeps its keys.
            application_id: Spark's; the members are those whose tasks it runs.
        """
        self._config = config
        self._keys = keys
        self._application_id = application_id
        self._resources = AsyncExitStack()
        cluster = f"{application_id}-{uuid4().hex[:8]}"
        self.stop_key = stop_key(keys.root, cluster)
        """Members watch this key."""
        self.failure_key = failure_key(keys.root, cluster)
        """Members that fail write why to this key."""

    def __enter__(self) -> Self:
        self._loop = LoopThread(name="shard-cluster-etcd")
        self._etcd = self._loop.call(self._resources.enter_async_context(EtcdClient(self._config)))
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

    def members(self) -> tuple[MemberInfo, ...]:
        """Return the live members, by their task's index."""
        return self._loop.call(self._read_members())

    def ask_to_stop(self) -> None:
        """Tell every member to leave."""
        self._loop.call(self._etcd.put(self.stop_key, b"stop"))

    def failure(self) -> str:
        """Return why a member failed last; empty if none did."""
        found = self._loop.call(self._etcd.get_range(self.failure_key))
        return found.kvs[0].value.decode() if found.kvs else ""

    def clear(self) -> None:
        """End the leases of members that are left, and remove the cluster's own keys."""
        self._loop.call(revoke_members(self._etcd, self._keys, self._is_ours))
        self._loop.call(self._etcd.delete(self.stop_key))
        self._loop.call(self._etcd.delete(self.failure_key))

    def _is_ours(self, incarnation: Incarnation) -> bool:
        return incarnation.application_id == self._application_id

    async def _read_members(self) -> tuple[MemberInfo, ...]:
        prefix = self._keys.members_prefix
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        members: list[MemberInfo] = []
        for kv in found.kvs:
            parsed = self._keys.parse(kv.key)
            assert isinstance(parsed, MemberKey), "read below members/"
            incarnation = parse_suffix(parsed.member_id.suffix)
            if incarnation is None or not self._is_ours(incarnation):
                continue
            spec = ConsumerSpec.FromString(kv.value)
            members.append(
                MemberInfo(
                    member_id=parsed.member_id,
                    endpoint=spec.process_spec.endpoint,
                    partition=incarnation.partition,
                    attempt=incarnation.attempt,
                    exiting=spec.exiting,
                )
            )
        return tuple(sorted(members, key=lambda member: (member.partition, member.attempt)))
