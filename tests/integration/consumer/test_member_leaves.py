"""How members hand over and leave, over real etcd and broker: told to, by signals, or before they ever joined."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

import grpc
import psutil
import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.consumer.application import Resolver, Shard
from broadsheet.consumer.errors import ResolverStoppedError
from broadsheet.consumer.member.service import Service, run_member
from broadsheet.consumer.resolver.resolver import ShardResolver as ShardResolver
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Claims
from tests.support.eventually import eventually
from tests.support.member_lives import is_assigned, primary_is
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.tally import Tally

pytestmark = pytest.mark.etcd


SOURCE = "test/source"

OUTPUT = "test/output"
HELD = "broadsheet_member_peers_held"


async def test_exiting_member_hands_over_exactly_once(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A member leaves under load: its shard goes to the other, and every message counts and is echoed once."""
    async with cluster.member("a") as a, cluster.member("b") as b:
        async with client_of(a) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            first = (await wait_for_primaries(client, "shard-1"))["shard-1"]
        leaving, staying = (a, b) if first == "member-a" else (b, a)
        producer = Producer(journals)
        await producer.publish(SOURCE, ["k"] * 500)
        async with client_of(staying) as client:
            leaving.stop()
            for _ in range(20):
                end = await producer.publish(SOURCE, ["k"] * 25)
            await eventually(lambda: not leaving.is_ready)
            # The one that stays hears from etcd, a moment later than the one that left.
            await eventually(lambda: primary_is(client, staying.member_id.suffix))
            await client.stat("shard-1", read_through={SOURCE: end}, timeout_seconds=20)

            assert cluster.counts("shard-1") == {"k": 1000}
            echoed = await eventually(lambda: _echoes(journals, at_least=1000))
            assert len(echoed) == 1000
            assert set(Counter(echoed).values()) == {1}


async def _echoes(journals: JournalClient, *, at_least: int) -> list[int]:
    echoed = [message["n"] for message in await committed(journals, OUTPUT)]
    assert len(echoed) >= at_least, len(echoed)
    return echoed


async def test_lone_member_leaves_within_its_bound(cluster: Cluster) -> None:
    """Nobody to hand over to: the model waits for ever, we stop the shards and go."""
    async with cluster.member("a", drain_alone_seconds_max=0.5) as service:
        async with client_of(service) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            await wait_for_primaries(client, "shard-1")

        service.stop()
        service.stop()

        await eventually(lambda: not service.is_ready)


async def test_member_leaves_a_full_cluster_once_its_shards_are_covered(cluster: Cluster) -> None:
    """Two members hold both replicas of a shard: there is no third to take one, but the standby can serve."""
    cluster.settings["drain_covered_seconds_max"] = 0.3
    async with cluster.member("a") as a, cluster.member("b") as b, client_of(b) as client:
        await client.apply(upserts(shard("shard-1", SOURCE, hot_standbys=1)))
        await wait_for_primaries(client, "shard-1")

        a.stop()

        await eventually(lambda: not a.is_ready)
        await eventually(lambda: primary_is(client, b.member_id.suffix))


async def test_member_without_shards_leaves_at_once(cluster: Cluster, etcd: EtcdClient) -> None:
    """Nothing to hand over means nothing to wait for, and nothing is left in etcd."""
    async with cluster.member("a", drain_alone_seconds_max=60.0) as service:
        service.stop()
        await eventually(lambda: not service.is_ready)

    prefix = Keys(cluster.root).watched_prefix
    assert not (await etcd.get_range(prefix, prefix + b"\xff")).kvs


async def test_watched_member_leaves_at_once(cluster: Cluster, etcd: EtcdClient) -> None:
    """A peer that watches it holds a connection to its port, on which it says nothing: the leaving member's server must
    not wait for that, for a minute here, while its shards stand still and its lease lives on.
    """
    cluster.settings |= {"stop_seconds_max": 60.0}
    prefix = Keys(cluster.root).members_prefix
    async with cluster.member("a") as a, cluster.member("b") as b:
        await eventually(lambda: _watches_are_open(a, b), message="each is connected to the other")

        a.stop()

        async def gone() -> bool:
            return len((await etcd.get_range(prefix, prefix + b"\xff")).kvs) == 1

        await eventually(gone)
        assert b.is_ready


def _watches_are_open(*services: Service) -> bool:
    ports = {int(service.address.rpartition(":")[2]) for service in services}
    connections = psutil.Process().net_connections("tcp")
    connected = {one.raddr.port for one in connections if one.status == psutil.CONN_ESTABLISHED}
    return ports <= connected


async def test_second_signal_ends_a_transaction_that_will_not_finish(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Past the drain, a member waits for a commit that never comes. Forced then, it aborts it instead of the grace."""
    committing = threading.Event()

    class Stuck(Tally):
        def new_store(self, shard: Shard) -> Any:
            store = super().new_store(shard)
            store.start_commit = self._start_commit
            return store

        def _start_commit(self, *_: object) -> Future[None]:
            committing.set()
            return Future()

    service = Service(
        Stuck(cluster.directory, output=""),
        cluster.config("a", shards=ShardConfig(stop_grace_seconds=40.0)),
    )
    async with TaskGroup() as group:
        running = group.start_soon(service.run(), name="member a")
        await service.ready
        async with client_of(service) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            await eventually(lambda: is_assigned(client))
            await Producer(journals).publish(SOURCE, ["k"])
            await eventually(committing.is_set)
        service.stop()
        await eventually(service.resolver.stopping.is_set)
        service.force_stop()
        await asyncio.wait_for(running, 20.0)


async def test_member_forced_to_stop_may_be_taken_for_dead(cluster: Cluster) -> None:
    """It closes its port without saying that it leaves; a peer may end its lease before its shards are torn down, and
    that is no error of a member that was told to end.
    """
    a = Service(cluster.tally(), cluster.config("a"))
    async with TaskGroup() as group:
        running = group.start_soon(a.run(), name="member a")
        await a.ready
        async with client_of(a) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            await wait_for_primaries(client, "shard-1")
        async with cluster.member("b", shard_limit=0) as b:
            await eventually(lambda: b.registry.get_sample_value(HELD) == 1)
            async with await a.resolver.resolve(
                "shard-1", claims=Claims.process(), may_proxy=False
            ):
                a.force_stop()
                found_dead = "broadsheet_member_peers_found_dead_total"
                await eventually(lambda: b.registry.get_sample_value(found_dead) == 1)
                assert not running.done()
            await asyncio.wait_for(running, 20.0)


async def test_long_stream_of_an_application_ends_with_the_member(cluster: Cluster) -> None:
    """Told by `resolver.stopping`, an endless stream ends itself, so leaving takes no grace and breaks nobody."""

    class Streaming(Tally):
        def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
            async def follow(request: bytes, context: object) -> AsyncIterator[bytes]:
                del context
                yield request
                assert isinstance(resolver, ShardResolver)
                await resolver.stopping.wait()
                yield b"bye"

            handler: Any = grpc.unary_stream_rpc_method_handler(follow)
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler("test.Stream", {"Follow": handler}),)
            )

    tally = Streaming(cluster.directory, output="")
    async with cluster.member("a", application=tally, stop_seconds_max=30.0) as service:
        target = service.address.removeprefix("http://")
        async with grpc.aio.insecure_channel(target) as channel:
            method: Any = channel.unary_stream("/test.Stream/Follow")
            call = method(b"hello", timeout=20.0)
            assert await call.read() == b"hello"
            service.stop()
            assert await call.read() == b"bye"
            assert await call.code() is grpc.StatusCode.OK


async def test_stop_while_joining_gives_up(cluster: Cluster, etcd: EtcdClient) -> None:
    """Told to leave while it waits for its identity, a member ends at once and leaves no lease behind."""
    async with cluster.member("a") as holder:
        twin = Service(cluster.tally(), cluster.config("a", announce_seconds_max=60.0))
        async with TaskGroup() as group:
            running = group.start_soon(twin.run(), name="twin")
            # Its server is bound before it begins to join.
            await eventually(lambda: twin.address)
            twin.stop()
            await asyncio.wait_for(running, 20.0)

        members = Keys(cluster.root).members_prefix
        (kv,) = (await etcd.get_range(members, members + b"\xff")).kvs
        assert holder.address.encode() in kv.value
        with pytest.raises(ResolverStoppedError):
            await twin.ready


async def test_stop_before_run_never_joins(cluster: Cluster) -> None:
    """Stopped first, the member does nothing at all, and whoever waits for it learns that."""
    service = Service(cluster.tally(), cluster.config("a"))
    service.stop()

    await service.run()

    with pytest.raises(ResolverStoppedError):
        await service.ready


async def test_signals_leave_then_force(cluster: Cluster) -> None:
    """SIGTERM leaves; a second one does not wait for a hand-over that cannot come."""
    tally = cluster.tally()
    config = cluster.config("a", drain_alone_seconds_max=60.0)
    async with TaskGroup() as group:
        running = group.start_soon(
            run_member(tally, config, stop_signals=(signal.SIGTERM,)), name="member"
        )
        async with cluster.member("client", shard_limit=0) as other, client_of(other) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            await wait_for_primaries(client, "shard-1")
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(lambda: _is_exiting(other, config.member_id))
            assert not running.done()

            os.kill(os.getpid(), signal.SIGTERM)
            await running
    tally.close()


def _is_exiting(service: Service, member_id: MemberId) -> bool:
    snapshot = service.resolver.snapshot_of("shard-1")
    return snapshot.members[member_id].value.is_exiting()
