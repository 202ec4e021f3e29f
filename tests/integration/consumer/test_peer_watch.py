"""What makes a member end a peer's lease: only a port that refuses, after it was once open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time

import pytest
from prometheus_client import CollectorRegistry

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import LeaseId, Put
from broadsheet.consumer.member import failure_detector
from broadsheet.consumer.member.failure_detector import FailureDetector
from broadsheet.consumer.registry.key_space import ShardDecoder, process_id_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.shard_pb2 import ConsumerSpec
from tests.support.eventually import eventually
from tests.support.live_shards import ShardHost

pytestmark = pytest.mark.etcd

LEASE_SECONDS = 60
HELD = "broadsheet_member_peers_held"
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


async def _join(host: ShardHost, member_id: MemberId, port: int, *, endpoint: str = "") -> LeaseId:
    lease = await host.etcd.lease_grant(LEASE_SECONDS)
    await _say(host, member_id, endpoint or f"http://127.0.0.1:{port}", lease, exiting=False)
    return lease


async def _say(
    host: ShardHost, member_id: MemberId, endpoint: str, lease: LeaseId, *, exiting: bool
) -> None:
    spec = ConsumerSpec(
        process_spec=ProcessSpec(id=process_id_of(member_id), endpoint=endpoint),
        shard_limit=10,
        exiting=exiting,
    )
    put = Put(host.key_space.keys.member(member_id), spec.SerializeToString(), lease)
    result = await host.etcd.txn((), (put,))
    await host.key_space.wait_for_revision(result.header.revision)


def _watch(
    host: ShardHost, registry: CollectorRegistry | None = None, *, seen: KeySpace | None = None
) -> FailureDetector:
    key_space = seen or host.key_space
    watch = FailureDetector(
        LocalMember(SELF, key_space, host.etcd),
        clock=SystemClock(),
        registry=registry or CollectorRegistry(),
    )
    key_space.observe(ObserverStage.WAKE, watch.look)
    return watch


async def test_peer_that_hangs_up_but_listens_keeps_its_lease_until_it_refuses(
    host: ShardHost, etcd: EtcdClient
) -> None:
    """A broken connection alone proves nothing: the watcher connects again. Once the port refuses, the lease ends."""
    port, registry = _Port(), CollectorRegistry()
    number = await port.open()
    lease = await _join(host, PEER, number)
    async with TaskGroup() as group:
        group.start_soon(_watch(host, registry).run(), name="watch peers")
        await eventually(lambda: port.accepted == 1)
        port.hang_up()
        await eventually(lambda: port.accepted == 2)
        await eventually(lambda: registry.get_sample_value(HELD) == 1)
        assert await etcd.lease_keep_alive_once(lease) > 0

        await port.close()
        await eventually(lambda: PEER not in host.key_space.members)
        assert await etcd.lease_keep_alive_once(lease) == 0
        assert registry.get_sample_value(HELD) == 0
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
        group.start_soon(_watch(host).run(), name="watch peers")
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
        await _say(host, PEER, f"http://127.0.0.1:{number}", lease, exiting=True)
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


async def test_leaving_peer_keeps_its_lease_though_its_flag_is_seen_late(
    host: ShardHost, etcd: EtcdClient, etcd_root: str
) -> None:
    """A member without shards says that it leaves, and closes its port in the same instant: the watcher's mirror of
    etcd does not show the one yet when it finds the other.
    """
    port, other, second = _Port(), _Port(), MemberId("zone-a", "member-2")
    number = await port.open()
    lease = await _join(host, PEER, number)
    await _join(host, second, await other.open())
    late = KeySpace(etcd, Keys(etcd_root), ShardDecoder(hot_standbys_max=3))
    await late.load()  # And follows no change.
    async with TaskGroup() as group:
        group.start_soon(_watch(host, seen=late).run(), name="watch peers")
        await eventually(lambda: port.accepted == other.accepted == 1)

        await _say(host, PEER, f"http://127.0.0.1:{number}", lease, exiting=True)
        await port.close()
        await other.close()

        await eventually(lambda: second not in host.key_space.members)
        assert await etcd.lease_keep_alive_once(lease) > 0
        group.stop()


@pytest.mark.parametrize("endpoint", ["unix:///run/member.sock", "http://a..b:8080"])
async def test_peer_with_an_address_that_cannot_be_watched_ends_no_watcher(
    host: ShardHost, endpoint: str
) -> None:
    """Whatever a peer says of itself, this member and its shards live on, and watch the others."""
    await _join(host, PEER, 0, endpoint=endpoint)
    port, second = _Port(), MemberId("zone-a", "member-2")
    await _join(host, second, await port.open())
    async with TaskGroup() as group:
        group.start_soon(_watch(host).run(), name="watch peers")
        await eventually(lambda: port.accepted == 1)

        await port.close()

        await eventually(lambda: second not in host.key_space.members)
        group.stop()


class _RevokesNothing(EtcdClient):
    """Etcd that answers, except when a lease is to be revoked."""

    tries = 0

    async def lease_revoke(self, lease: LeaseId) -> bool:
        """Fail."""
        self.tries += 1
        raise EtcdUnavailableError((), "not now")


async def test_lease_that_cannot_be_revoked_is_tried_again_ever_more_rarely(
    host: ShardHost, etcd: EtcdClient
) -> None:
    """Etcd may be gone for an hour; the log must not fill, nor etcd be met by a storm when it is back."""
    async with _RevokesNothing(etcd.config) as unwilling:
        host.etcd = unwilling
        port = _Port()
        await _join(host, PEER, await port.open())
        async with TaskGroup() as group:
            group.start_soon(_watch(host).run(), name="watch peers")
            await eventually(lambda: port.accepted == 1)
            began = time.monotonic()
            await port.close()

            await eventually(lambda: unwilling.tries == 7)
            elapsed = time.monotonic() - began
            group.stop()

    assert elapsed > 1.0, "delays double from 0.05 s, so that six take at least 1.5 s"


async def test_silent_peer_keeps_its_lease(
    host: ShardHost, etcd: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine answers no more, as behind a partition or under a load that fills its queues: nobody is refused, so
    nobody is dead.
    """
    monkeypatch.setattr(failure_detector, "CONNECT_SECONDS_MAX", 0.1)
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        listener.setblocking(False)
        lease = await _join(host, PEER, listener.getsockname()[1])
        async with TaskGroup() as group:
            group.start_soon(_watch(host).run(), name="watch peers")
            held, _ = await loop.sock_accept(listener)
            for _ in range(4):  # Fill its queue: the kernel drops what comes then.
                filler = sockets.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            held.close()
            several_tries = loop.time() + 0.6
            await eventually(lambda: loop.time() > several_tries)
            assert await etcd.lease_keep_alive_once(lease) > 0
            group.stop()
