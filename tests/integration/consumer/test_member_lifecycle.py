"""How members join, serve, fail and are replaced, over real etcd and broker."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from broadsheet.allocator.errors import (
    AnnounceConflictError,
    EtcdUnavailableError,
    LeaseLostError,
    MemberKeyLostError,
)
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.ops import LeaseId
from broadsheet.consumer.application import Shard
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ResolverStoppedError, ShardStoppedError
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EndpointError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Claims
from broadsheet.wire.shard_pb2 import ReplicaStatus, Status
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.member_lives import error_of, is_assigned, primary_is
from tests.support.members import Cluster, Producer, client_of, shard, upserts, wait_for_primaries
from tests.support.tally import COUNT_METHOD, Tally, total_of

pytestmark = pytest.mark.etcd


SOURCE = "test/source"


async def count_through(service: Service, shard_id: str) -> str:
    """Call the application's own service."""
    target = service.address.removeprefix("http://")
    async with grpc.aio.insecure_channel(target) as channel:
        # Without a serializer, requests and answers are bytes, which the stubs cannot know.
        call: Any = channel.unary_unary(COUNT_METHOD)
        answer: bytes = await call(shard_id.encode(), timeout=5.0)
        return answer.decode()


async def test_lost_lease_stops_primaries_and_another_takes_over(
    cluster: Cluster, journals: JournalClient, etcd: EtcdClient
) -> None:
    """The lease is revoked behind a member's back: it ends with an error, the other serves, nothing counts twice."""
    application = cluster.tally()
    victim = Service(application, cluster.config("a"))
    async with TaskGroup() as group:
        ended = group.start_soon(error_of(victim), name="victim")
        await victim.ready
        async with client_of(victim) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            await wait_for_primaries(client, "shard-1")
        producer = Producer(journals)
        await producer.publish(SOURCE, ["k"] * 100)
        async with cluster.member("b") as survivor, client_of(survivor) as client:
            (kv,) = (await etcd.get_range(Keys(cluster.root).member(victim.member_id))).kvs
            await etcd.lease_revoke(LeaseId(kv.lease))

            end = await producer.publish(SOURCE, ["k"] * 100)
            error = await ended
            await eventually(lambda: primary_is(client, "member-b"))
            await client.stat(
                "shard-1", read_through={SOURCE: end}, timeout_seconds=DEADLINE_SECONDS
            )

            assert isinstance(error, LeaseLostError | MemberKeyLostError)
            assert not victim.is_ready
            assert cluster.counts("shard-1") == {"k": 200}
    application.close()


async def test_failed_shard_restarts_by_itself_and_shows_why(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A callback raises: FAILED with its cause in List and Stat; once it does not, the shard goes on, exactly once."""
    cluster.settings["shards"] = ShardConfig(restart_delay_seconds=0.3)
    tally = cluster.tally()
    async with (
        cluster.member("a", application=tally) as service,
        client_of(service) as client,
    ):
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        producer = Producer(journals)
        await producer.publish(SOURCE, ["good"] * 3)
        tally.broken_by = "poison"
        end = await producer.publish(SOURCE, ["good", "poison", "good"])

        (status,) = await eventually(lambda: _failures(client))
        assert "cannot count poison" in status.errors[0]
        with pytest.raises(ShardStoppedError, match="cannot count poison"):
            await client.stat("shard-1", read_through={SOURCE: end})

        tally.broken_by = None
        await wait_for_primaries(client, "shard-1")
        await eventually(lambda: _is_read(client, end))
        assert cluster.counts("shard-1") == {"good": 5, "poison": 1}


async def _failures(client: ShardClient) -> list[ReplicaStatus]:
    (listed,) = (await client.list()).shards
    return [one for one in listed.status if one.code == ReplicaStatus.FAILED]


async def _is_read(client: ShardClient, end: int) -> bool:
    try:
        return (await client.stat("shard-1")).read_through[SOURCE] >= end
    except ShardStoppedError:
        return False


async def test_application_service_answers_from_the_live_store(
    cluster: Cluster, journals: JournalClient
) -> None:
    """The application's own RPC resolves the shard and reads its store; unknown shards are its own to answer."""
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        end = await Producer(journals).publish(SOURCE, ["x", "y", "x"])
        await client.stat("shard-1", read_through={SOURCE: end})

        assert await count_through(service, "shard-1") == "3"
        assert await count_through(service, "unknown") == "SHARD_NOT_FOUND"


async def test_application_service_is_behind_the_guard(cluster: Cluster) -> None:
    """Authorization and the table of statuses hold for services that we do not know."""
    cluster.settings["auth_keys"] = b64encode(b"a key of the test, thirty-two bytes").decode()
    async with cluster.member("a") as service:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await count_through(service, "shard-1")

    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_resolver_in_process_and_when_stopped(cluster: Cluster) -> None:
    """Code in the member's own process resolves too, until the member leaves."""
    async with cluster.member("a") as service:
        async with client_of(service) as client:
            await client.apply(upserts(shard("shard-1", SOURCE), shard("shard-2", SOURCE)))
            await wait_for_primaries(client, "shard-1", "shard-2")
        resolver = service.resolver
        async with await resolver.resolve(
            "shard-1", claims=Claims.process(), may_proxy=False
        ) as resolution:
            assert resolution.status == Status.OK
            assert resolution.shard is not None
            assert resolution.shard.id == "shard-1"
        assert [
            spec.id for spec in resolver.shards_with_source(SOURCE, claims=Claims.process())
        ] == ["shard-1", "shard-2"]
        assert resolver.shards_with_source("other", claims=Claims.process()) == ()

        samples = generate_latest(service.registry).decode()
        assert 'gazette_shard_up{shard="shard-1",status="PRIMARY"} 1.0' in samples
        service.force_stop()
        await eventually(resolver.stopping.is_set)
        with pytest.raises(ResolverStoppedError):
            await resolver.resolve("shard-1", claims=Claims.process(), may_proxy=False)


async def test_resolve_waits_for_a_shard_that_is_not_ready(cluster: Cluster) -> None:
    """A question that comes while the store is being restored is answered when it is, not refused."""
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(Tally):
        def new_store(self, shard: Shard) -> Any:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)
            return super().new_store(shard)

    tally = Slow(cluster.directory, output="")
    async with (
        cluster.member("a", application=tally) as service,
        client_of(service) as client,
    ):
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await eventually(lambda: is_assigned(client))
        with pytest.raises(TimeoutError):
            await client.stat("shard-1", timeout_seconds=0.2)
        async with TaskGroup() as group:
            answer = group.start_soon(client.stat("shard-1"), name="stat")
            gate.set()
            assert (await answer).status == Status.OK


async def test_second_member_of_one_identity_is_refused(cluster: Cluster) -> None:
    """Two live processes with one suffix: the second says which key is held, and ends."""
    async with cluster.member("a"):
        application = cluster.tally()
        twin = Service(application, cluster.config("a", announce_seconds_max=2.5))
        with pytest.raises(AnnounceConflictError, match="member-a"):
            await twin.run()
        with pytest.raises(AnnounceConflictError):
            await twin.ready


async def test_unreachable_etcd_names_its_address(cluster: Cluster) -> None:
    """Nothing listens at the endpoint: the member ends, and says where it looked."""
    nowhere = EtcdConfig(endpoints=("127.0.0.1:1",), request_timeout_seconds=0.3)
    service = Service(cluster.tally(), cluster.config("a", etcd=nowhere, announce_seconds_max=0.5))

    with pytest.raises(EtcdUnavailableError, match=r"127\.0\.0\.1:1"):
        await service.run()


async def test_callers_never_meet_a_destroyed_store(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Callers resolve, wait and call while the shard is restarted under them: they are served or told, never broken."""
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        end = await Producer(journals).publish(SOURCE, ["k"] * 10)
        await client.stat("shard-1", read_through={SOURCE: end})
        outcomes: Counter[str] = Counter()
        restarting = asyncio.Event()

        async def caller(number: int) -> None:
            while not restarting.is_set():
                seen = _revision(service)
                outcome = ""
                # Some give up while they wait, at different moments.
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.002 * number):
                        outcome = await count_in_process(service)
                        outcomes[outcome] += 1
                if outcome and outcome != "10":
                    # A refusal awaits nothing, and stays what it is until something changes: to ask again at once would
                    # only keep the loop from what is waited for.
                    await eventually(
                        lambda: _revision(service) > seen or restarting.is_set(),  # noqa: B023 - awaited here
                        interval_seconds=0.002 * number,
                    )

        async with TaskGroup() as group:
            for number in range(1, 13):
                group.start_soon(caller(number), name=f"caller {number}")
            for _ in range(5):
                await eventually(partial(_grew, outcomes, outcomes["10"]))
                await client.unassign(["shard-1"])
            await wait_for_primaries(client, "shard-1")
            restarting.set()

        assert set(outcomes) <= {"10", "NO_SHARD_PRIMARY", "SHARD_STOPPED", "stopped"}
        assert outcomes["10"]


def _revision(service: Service) -> int:
    return service.resolver.snapshot_of("shard-1").etcd.revision


def _grew(outcomes: Counter[str], before: int) -> bool:
    return outcomes["10"] > before


async def count_in_process(service: Service) -> str:
    """Sum the counts of shard-1 through the resolver."""
    async with await service.resolver.resolve(
        "shard-1", claims=Claims.process(), may_proxy=False
    ) as resolution:
        if resolution.shard is None:
            return Status.Name(resolution.status)
        try:
            return str(await resolution.call(total_of))
        except ShardStoppedError:
            return "stopped"


async def test_replacement_revokes_its_predecessor(cluster: Cluster, etcd: EtcdClient) -> None:
    """A new attempt of the same task ends the lease of the one before: no waiting for its TTL."""
    application = cluster.tally()
    first = Service(application, cluster.config("task-0-attempt-0"))
    async with TaskGroup() as group:
        ended = group.start_soon(error_of(first), name="first")
        await first.ready
        async with cluster.member(
            "task-0-attempt-1", revoke_predecessors_prefix="member-task-0-attempt-"
        ):
            members = Keys(cluster.root).members_prefix
            found = (await etcd.get_range(members, members + b"\xff")).kvs
            assert [kv.key.rpartition(b"#")[2] for kv in found] == [b"member-task-0-attempt-1"]
            assert isinstance(await ended, LeaseLostError | MemberKeyLostError)
    application.close()


async def test_port_in_use_names_the_address(cluster: Cluster) -> None:
    """Another server listens there: the error says where, before anything is announced."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = Service(cluster.tally(), cluster.config("a", port=port))

        with pytest.raises(EndpointError, match=f"cannot listen at 127.0.0.1:{port}"):
            await service.run()
