"""What makes a member end the lease of a silent peer: its silence, a second witness, and a lease nobody renews."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from broadsheet.allocator.etcd.api import LeaseLife
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.etcd.lease import LeaseKeeper
from broadsheet.allocator.key_space import ObserverStage
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import LeaseId, Put
from broadsheet.consumer.member.failure_detector import FailureDetector
from broadsheet.consumer.registry.key_space import process_id_of
from broadsheet.consumer.resolver.hearing import Hearing
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.rpc.peer_api import PeerApi
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import NoAuth
from broadsheet.wire import peer_pb2_grpc
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.peer_pb2 import (
    TESTIMONY_HEARD,
    TESTIMONY_NONE,
    TESTIMONY_SILENT,
    BeatRequest,
    BeatResponse,
    Testimony,
    WitnessRequest,
    WitnessResponse,
)
from broadsheet.wire.peer_pb2_grpc import add_PeerServiceServicer_to_server
from broadsheet.wire.shard_pb2 import ConsumerSpec
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually
from tests.support.live_shards import ShardHost
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.etcd

LEASE_SECONDS = 60
SELF, PEER = MemberId("zone-a", "member-0"), MemberId("zone-a", "member-1")
WITNESS = MemberId("zone-a", "member-2")
PATIENCE_SECONDS = 40.0
SOME_BEATS_BYTES = 600
"""Of a connection's begin and then a dozen beats or more."""
SUSPECTED = "broadsheet_member_peers_suspected_total"
SILENCED = "broadsheet_member_peers_found_silent_total"


class _AskedEtcd(EtcdClient):
    """Etcd that counts who asks how old a lease is."""

    asked = 0

    async def lease_life(self, lease: LeaseId) -> LeaseLife | None:
        """Ask, and count."""
        life = await super().lease_life(lease)
        self.asked += 1
        return life


class _Witness(PeerApi):
    """A member that says what the test has it say of others."""

    says: Testimony.ValueType = TESTIMONY_HEARD
    asked = 0

    async def Witness(  # noqa: N802 - gRPC's name
        self, request: WitnessRequest, context: Any
    ) -> WitnessResponse:
        """Say it, and count."""
        del request, context
        self.asked += 1
        return WitnessResponse(testimony=self.says)


@asynccontextmanager
async def _serving(service: peer_pb2_grpc.PeerServiceServicer) -> AsyncIterator[str]:
    """Serve, and return where: `host:port`."""
    server = grpc.aio.server()
    add_PeerServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def _api(host: ShardHost, kind: type[PeerApi] = PeerApi) -> PeerApi:
    return kind(host.key_space, Hearing(NoAuth()), stopping=asyncio.Event(), clock=SystemClock())


async def _join(host: ShardHost, member_id: MemberId, address: str, lease: LeaseId) -> None:
    endpoint = address if "://" in address else f"http://{address}"
    spec = ConsumerSpec(
        process_spec=ProcessSpec(id=process_id_of(member_id), endpoint=endpoint),
        shard_limit=10,
    )
    put = Put(host.key_space.keys.member(member_id), spec.SerializeToString(), lease)
    result = await host.etcd.txn((), (put,))
    await host.key_space.wait_for_revision(result.header.revision)


@asynccontextmanager
async def _watching(
    host: ShardHost, etcd: EtcdClient, registry: CollectorRegistry
) -> AsyncIterator[TaskGroup]:
    watch = FailureDetector(
        LocalMember(SELF, host.key_space, etcd),
        clock=SystemClock(),
        registry=registry,
        hearing=Hearing(NoAuth()),
    )
    host.key_space.observe(ObserverStage.WAKE, watch.look)
    async with TaskGroup() as group:
        group.start_soon(watch.run(), name="watch peers")
        yield group
        group.stop()


@pytest.fixture
async def asked_etcd(etcd_server: EmbeddedEtcdProcess) -> AsyncIterator[_AskedEtcd]:
    """A client that counts."""
    async with _AskedEtcd(EtcdConfig(endpoints=(etcd_server.endpoint,))) as client:
        yield client


async def test_silent_peer_that_renews_its_lease_keeps_it(
    host: ShardHost, asked_etcd: _AskedEtcd
) -> None:
    """Packets between two members are dropped, and both live: each renews its lease, so neither may end the other's.
    Once the peer renews it no more, it is gone for everybody, a minute before the lease would end.
    """
    registry = CollectorRegistry()
    keeper = await LeaseKeeper.grant(asked_etcd, LEASE_SECONDS, SystemClock())
    async with (
        _serving(_api(host)) as address,
        TcpProxy(address) as proxy,
        _watching(host, asked_etcd, registry) as group,
    ):
        keeping = group.start_soon(keeper.run(), name="keep the peer's lease")
        await _join(host, PEER, proxy.endpoint, keeper.lease)
        await _until_suspected(proxy, registry)
        await eventually(lambda: asked_etcd.asked >= 3, timeout_seconds=PATIENCE_SECONDS)
        assert PEER in host.key_space.members
        assert registry.get_sample_value(SILENCED) == 0

        keeping.cancel()
        await eventually(
            lambda: PEER not in host.key_space.members, timeout_seconds=PATIENCE_SECONDS
        )
        await eventually(lambda: registry.get_sample_value(SILENCED) == 1)


async def _until_suspected(proxy: TcpProxy, registry: CollectorRegistry) -> None:
    """Fall silent, after some beats have come through."""
    await eventually(
        lambda: proxy.bytes_answered > SOME_BEATS_BYTES, timeout_seconds=PATIENCE_SECONDS
    )
    proxy.freeze()
    await eventually(
        lambda: (registry.get_sample_value(SUSPECTED) or 0) >= 1, timeout_seconds=PATIENCE_SECONDS
    )


async def test_silent_peer_that_another_member_hears_keeps_its_lease(
    host: ShardHost, asked_etcd: _AskedEtcd
) -> None:
    """The lease is not renewed, for etcd may be slow to it, but a second witness hears the peer: it lives. Once that
    one does not hear it either, its lease is ended.
    """
    registry = CollectorRegistry()
    lease = await asked_etcd.lease_grant(LEASE_SECONDS)
    witness = _api(host, _Witness)
    assert isinstance(witness, _Witness)
    async with (
        _serving(_api(host)) as address,
        _serving(witness) as witness_address,
        TcpProxy(address) as proxy,
        _watching(host, asked_etcd, registry),
    ):
        await _join(host, WITNESS, witness_address, await asked_etcd.lease_grant(LEASE_SECONDS))
        await _join(host, PEER, proxy.endpoint, lease)
        await _until_suspected(proxy, registry)
        await eventually(lambda: witness.asked >= 2, timeout_seconds=PATIENCE_SECONDS)
        assert PEER in host.key_space.members

        witness.says = TESTIMONY_SILENT
        await eventually(
            lambda: PEER not in host.key_space.members, timeout_seconds=PATIENCE_SECONDS
        )
        assert WITNESS in host.key_space.members


async def test_witness_tells_whether_it_hears_a_member(
    host: ShardHost, asked_etcd: _AskedEtcd
) -> None:
    """It goes by what answers it now, and says nothing of a life that it does not know."""
    lease = await asked_etcd.lease_grant(LEASE_SECONDS)
    async with (
        _serving(_api(host)) as address,
        _serving(_api(host)) as witness_address,
        TcpProxy(address) as proxy,
    ):
        await _join(host, PEER, proxy.endpoint, lease)
        life = host.key_space.members[PEER].kv.create_revision
        hearing = Hearing(NoAuth())

        assert await hearing.testimony(f"http://{witness_address}", PEER, life) == TESTIMONY_HEARD
        assert await hearing.testimony(f"http://{witness_address}", PEER, life + 1) not in (
            TESTIMONY_HEARD,
            TESTIMONY_SILENT,
        )

        proxy.freeze()

        async def says_silent() -> bool:
            said = await hearing.testimony(f"http://{witness_address}", PEER, life)
            return said == TESTIMONY_SILENT

        await eventually(says_silent, timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("address", ["ftp://host:1", "http://127.0.0.1:1/path"])
async def test_member_that_nobody_can_connect_to_harms_no_other(
    host: ShardHost, asked_etcd: _AskedEtcd, address: str
) -> None:
    """Its key is valid, as Gazette's rules have it. It must end neither those that watch it, one after the other
    around the ring, nor those that ask it about another.
    """
    registry = CollectorRegistry()
    async with (
        _serving(_api(host)) as peer_address,
        TcpProxy(peer_address) as proxy,
        _watching(host, asked_etcd, registry),
    ):
        await _join(host, WITNESS, address, await asked_etcd.lease_grant(LEASE_SECONDS))
        await _join(host, PEER, proxy.endpoint, await asked_etcd.lease_grant(LEASE_SECONDS))
        await _until_suspected(proxy, registry)
        # It is the only one that can be asked, and no testimony is had of it.
        said = await Hearing(NoAuth()).testimony(address, PEER, 1)
        assert said == TESTIMONY_NONE
        assert PEER in host.key_space.members


@pytest.mark.parametrize("answer", [b"\xff\xff", b"\x08\x63", b""])
async def test_witness_that_talks_nonsense_says_nothing(answer: bytes) -> None:
    """A damaged or hostile member answers with other bytes than a message: the member that asked goes on."""

    async def witness(request: bytes, context: object) -> bytes:
        del request, context
        return answer

    handler = grpc.method_handlers_generic_handler(
        "broadsheet.v1.PeerService", {"Witness": grpc.unary_unary_rpc_method_handler(witness)}
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        said = await Hearing(NoAuth()).testimony(f"http://127.0.0.1:{port}", PEER, 1)
    finally:
        await server.stop(None)
    assert said == TESTIMONY_NONE


class _RefusingPeer(PeerApi):
    """A member that beats, until its keys change."""

    refuses = False
    beats = refused = 0

    async def Beat(  # noqa: N802 - gRPC's name
        self, request: BeatRequest, context: Any
    ) -> AsyncIterator[BeatResponse]:
        """Beat until it refuses."""
        async for beat in super().Beat(request, context):
            if self.refuses:
                self.refused += 1
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "other keys")
            self.beats += 1
            yield beat


async def test_peer_that_refuses_to_beat_any_more_is_not_suspected_for_it(
    host: ShardHost, asked_etcd: _AskedEtcd
) -> None:
    """Keys are rotated: a peer that was heard refuses the old ones. It has said that it lives, and is left to its
    lease; another, which falls silent after that, is suspected, and gone.
    """
    registry = CollectorRegistry()
    refusing = _api(host, _RefusingPeer)
    assert isinstance(refusing, _RefusingPeer)
    async with (
        _serving(refusing) as address,
        _serving(_api(host)) as silent_address,
        TcpProxy(silent_address) as proxy,
        _watching(host, asked_etcd, registry),
    ):
        await _join(host, PEER, address, await asked_etcd.lease_grant(LEASE_SECONDS))
        await _join(host, WITNESS, proxy.endpoint, await asked_etcd.lease_grant(LEASE_SECONDS))
        await eventually(lambda: refusing.beats > 2, timeout_seconds=PATIENCE_SECONDS)
        refusing.refuses = True
        await eventually(lambda: refusing.refused == 1, timeout_seconds=PATIENCE_SECONDS)

        await _until_suspected(proxy, registry)
        await eventually(
            lambda: WITNESS not in host.key_space.members, timeout_seconds=PATIENCE_SECONDS
        )
        assert registry.get_sample_value(SUSPECTED) == 1
        assert PEER in host.key_space.members


@pytest.mark.parametrize(
    ("kind", "stopped", "heard"),
    [("interpreter", False, True), ("loop", False, True), ("loop", True, False)],
)
async def test_process_that_computes_is_heard_and_one_that_is_stopped_is_not(
    kind: str, stopped: bool, heard: bool
) -> None:
    """A callback may keep the interpreter for seconds, or block the loop: such a process neither beats nor renews its
    lease, and yet must not lose it at once. Only one that does not run at all is silent to a witness.
    """
    command = [sys.executable, "-m", "tests.support.held_up_member", kind]
    with subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            port = int(await asyncio.to_thread(process.stdout.readline))
            process.stdin.write("\n")
            process.stdin.flush()
            assert await asyncio.to_thread(process.stdout.readline) == "held up\n"
            if stopped:
                process.send_signal(signal.SIGSTOP)

            async def as_expected() -> bool:
                return await Hearing(NoAuth()).hears(f"http://127.0.0.1:{port}") is heard

            await eventually(as_expected)
        finally:
            process.kill()
