"""What makes a member end a peer's lease: only a port that refuses, after it was once open."""

from __future__ import annotations

import asyncio
import socket

import pytest
from prometheus_client import CollectorRegistry

from allocator.core.model import MemberId
from allocator.core.ops import LeaseId, Put
from allocator.etcd.client import EtcdClient
from allocator.runtime.clock import SystemClock
from allocator.runtime.task_group import TaskGroup
from consumer.key_space import process_id_of
from consumer.member.peer_watch import PeerWatch
from consumer.protocol.journal_pb2 import ProcessSpec
from consumer.protocol.shard_pb2 import ConsumerSpec
from tests.support.eventually import eventually
from tests.support.live_shards import ShardHost

pytestmark = pytest.mark.etcd

LEASE_SECONDS = 60
SELF, PEER = MemberId("zone-a", "member-0"), MemberId("zone-a", "member-1")


class _Port:
    """A process's port: it accepts, can hang up, and can close."""

    def __init__(self) -> None:
        self.accepted = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        """Listen, and return the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def hang_up(self) -> None:
        """Break every connection, and go on listening."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        """End as a killed process does: nobody listens, every connection breaks."""
        assert self._server is not None
        self._server.close()
        self.hang_up()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.append(writer)
        await reader.read()


async def _join(
    host: ShardHost, member_id: MemberId, port: int, *, exiting: bool = False
) -> LeaseId:
    lease = await host.etcd.lease_grant(LEASE_SECONDS)
    await _say(host, member_id, port, lease, exiting=exiting)
    return lease


async def _say(
    host: ShardHost, member_id: MemberId, port: int, lease: LeaseId, *, exiting: bool
) -> None:
    spec = ConsumerSpec(
        process_spec=ProcessSpec(id=process_id_of(member_id), endpoint=f"http://127.0.0.1:{port}"),
        shard_limit=10,
        exiting=exiting,
    )
    put = Put(host.key_space.keys.member(member_id), spec.SerializeToString(), lease)
    result = await host.etcd.txn((), (put,))
    await host.key_space.wait_for_revision(result.header.revision)


def _watch(host: ShardHost, registry: CollectorRegistry) -> PeerWatch:
    watch = PeerWatch(
        host.etcd, host.key_space, member_id=SELF, clock=SystemClock(), registry=registry
    )
    host.key_space.observe(watch.look)
    return watch


async def test_peer_that_hangs_up_but_listens_keeps_its_lease_until_it_refuses(
    host: ShardHost, etcd: EtcdClient
) -> None:
    """A broken connection alone proves nothing: the watcher connects again. Once the port refuses, the lease ends."""
    port = _Port()
    number = await port.open()
    lease = await _join(host, PEER, number)
    async with TaskGroup() as group:
        group.start_soon(_watch(host, CollectorRegistry()).run(), name="watch peers")
        await eventually(lambda: port.accepted == 1)
        port.hang_up()
        await eventually(lambda: port.accepted == 2)
        assert await etcd.lease_keep_alive_once(lease) > 0

        await port.close()
        await eventually(lambda: PEER not in host.key_space.members)
        assert await etcd.lease_keep_alive_once(lease) == 0
        group.stop()


async def test_peer_that_never_answered_keeps_its_lease(host: ShardHost, etcd: EtcdClient) -> None:
    """One that is announced but does not listen yet is starting; a wrong address is no death either."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    lease = await _join(host, PEER, closed)
    port = _Port()
    second = MemberId("zone-a", "member-2")
    await _join(host, second, await port.open())
    async with TaskGroup() as group:
        group.start_soon(_watch(host, CollectorRegistry()).run(), name="watch peers")
        await eventually(lambda: port.accepted == 1)

        # The second peer is found dead by the same means, after the first was refused as often.
        await port.close()
        await eventually(lambda: second not in host.key_space.members)
        assert await etcd.lease_keep_alive_once(lease) > 0
        group.stop()


async def test_peer_that_is_leaving_keeps_its_lease(host: ShardHost, etcd: EtcdClient) -> None:
    """It closes its port before its shards are torn down; ending its lease would start their successors beside them."""
    port = _Port()
    number = await port.open()
    lease = await _join(host, PEER, number)
    registry = CollectorRegistry()
    async with TaskGroup() as group:
        group.start_soon(_watch(host, registry).run(), name="watch peers")
        await eventually(lambda: port.accepted == 1)
        await _say(host, PEER, number, lease, exiting=True)
        await port.close()
        other = _Port()
        second = MemberId("zone-a", "member-2")
        await _join(host, second, await other.open())
        await eventually(lambda: other.accepted == 1)
        await other.close()
        await eventually(lambda: second not in host.key_space.members)

        found_dead = "broadsheet_member_peers_found_dead_total"
        await eventually(lambda: registry.get_sample_value(found_dead) == 1)
        assert await etcd.lease_keep_alive_once(lease) > 0
        group.stop()
