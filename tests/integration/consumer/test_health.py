"""Health, reflection and channelz of members and brokers, as probes and tools see them."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from broadsheet.broker.config import BrokerBounds, BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.rpc.call_limits import CallBounds, CallLimits
from broadsheet.consumer.rpc.guard import RpcGuard
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.serving.grpc_server import GrpcServer
from broadsheet.serving.standard_services import NO_CLAIMS, Health, standard_handlers
from tests.support.eventually import eventually
from tests.support.members import Cluster, client_of, shard, upserts, wait_for_primaries

SOURCE = "test/source"
KEYS = b64encode(b"a key of everybody's, 32 bytes or more").decode()
STATUS = HealthCheckResponse
SECONDS_MAX = 300.0


# `Any` in this module: the stubs of gRPC's own services have no types.
@asynccontextmanager
async def _channel(address: str) -> AsyncIterator[Any]:
    """Yield a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address.removeprefix("http://"), options) as channel:
        yield channel


async def _check(channel: Any, service: str = "") -> int:
    answer = await HealthStub(channel).Check(
        HealthCheckRequest(service=service), timeout=SECONDS_MAX
    )
    return int(answer.status)


async def _refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def _services(channel: Any) -> set[str]:
    call = ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(ServerReflectionRequest(list_services=""))
    answer = await call.read()
    await call.done_writing()
    return {each.name for each in answer.list_services_response.service}


@pytest.mark.etcd
async def test_shards_of_a_member_are_seen_by_probes(cluster: Cluster) -> None:
    """A probe that names a shard is how Kubernetes and load balancers learn where it is ready: SERVING on the primary
    and on a standby that has caught up; elsewhere it is not, and a shard that does not exist is no shard that is down.
    """
    async with (
        cluster.member("a") as first,
        cluster.member("b", zone="zone-b") as second,
        client_of(first) as client,
        _channel(first.address) as channel,
        _channel(second.address) as other,
    ):
        unknown = await _refusal(_check(channel, "shard/shard-1"))
        await client.apply(upserts(shard("shard-1", SOURCE, hot_standbys=1)))
        await client.apply(upserts(shard("shard-2", SOURCE)))
        primary = (await wait_for_primaries(client, "shard-1", "shard-2"))["shard-2"]

        assert unknown.code() is grpc.StatusCode.NOT_FOUND
        assert await _check(channel) == STATUS.SERVING
        assert await _check(channel, "consumer.Shard") == STATUS.SERVING
        for each in (channel, other):
            await eventually(
                lambda each=each: _is(each, "shard/shard-1", STATUS.SERVING),  # type: ignore[misc]
                timeout_seconds=SECONDS_MAX,
            )
        has, lacks = (channel, other) if primary == "member-a" else (other, channel)
        # Its member follows etcd by itself, so another one may have heard of it first.
        await eventually(
            lambda: _is(has, "shard/shard-2", STATUS.SERVING), timeout_seconds=SECONDS_MAX
        )
        assert await _check(lacks, "shard/shard-2") == STATUS.NOT_SERVING


async def _is(channel: Any, service: str, status: int) -> bool:
    return bool(await _check(channel, service) == status)


@pytest.mark.etcd
async def test_watch_follows_a_shard_from_before_it_exists_until_the_member_leaves(
    cluster: Cluster,
) -> None:
    """A balancer watches rather than asks. Its stream says what is new, outlives a name that is not there yet, and
    ends by itself, because a member that leaves waits for its streams.
    """
    service = Service(cluster.tally(), cluster.config("a"))
    async with TaskGroup() as group:
        group.start_soon(service.run(), name="member")
        await service.ready
        async with _channel(service.address) as channel, client_of(service) as client:
            stub = HealthStub(channel)
            whole = stub.Watch(HealthCheckRequest(service=""), timeout=SECONDS_MAX)
            part = stub.Watch(HealthCheckRequest(service="shard/shard-1"), timeout=SECONDS_MAX)
            assert (await whole.read()).status == STATUS.SERVING
            assert (await part.read()).status == STATUS.SERVICE_UNKNOWN
            await client.apply(upserts(shard("shard-1", SOURCE)))
            told = [(await part.read()).status]
            while told[-1] != STATUS.SERVING:
                told.append((await part.read()).status)
            service.stop()
            assert (await whole.read()).status == STATUS.NOT_SERVING
            assert await whole.read() is grpc.aio.EOF
            assert await whole.code() is grpc.StatusCode.OK


@pytest.mark.etcd
async def test_member_that_leaves_is_alive_but_not_serving(cluster: Cluster) -> None:
    """During a long drain, new clients must go elsewhere, and Kubernetes must not kill what still hands shards over."""
    async with (
        cluster.member("a", drain_alone_seconds_max=SECONDS_MAX) as service,
        client_of(service) as client,
        _channel(service.address) as channel,
    ):
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        service.stop()
        await eventually(lambda: _is(channel, "", STATUS.NOT_SERVING), timeout_seconds=SECONDS_MAX)
        assert await _check(channel, "liveness") == STATUS.SERVING
        assert await _check(channel, "shard/shard-1") == STATUS.SERVING


@pytest.mark.etcd
async def test_strangers_of_a_member_get_health_and_reflection_only(cluster: Cluster) -> None:
    """Probes have no token. What a stranger can hold is bounded apart from what clients can, and who is connected is
    not shown to strangers.
    """
    async with (
        cluster.member("a", auth_keys=KEYS, calls=CallBounds(public_calls_max=2)) as service,
        _channel(service.address) as channel,
    ):
        assert await _check(channel) == STATUS.SERVING
        names = await _services(channel)
        assert {"consumer.Shard", "broadsheet.v1.AllocationService"} <= names
        assert "grpc.health.v1.Health" in names
        stub = channelz_pb2_grpc.ChannelzStub(channel)
        refused = await _refusal(stub.GetServers(channelz_pb2.GetServersRequest()))
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
        token = KeyedAuth(KEYS).metadata(Claims(capability=Capability.READ))
        servers = await stub.GetServers(channelz_pb2.GetServersRequest(), metadata=token)
        assert servers.server
        absent = channelz_pb2.GetServerRequest(server_id=1 << 40)
        missing = await _refusal(stub.GetServer(absent, metadata=token))
        assert missing.code() is grpc.StatusCode.NOT_FOUND
        await _fill_and_see_clients_served(channel, service, KeyedAuth(KEYS))


async def _fill_and_see_clients_served(channel: Any, service: Service, auth: KeyedAuth) -> None:
    held = [HealthStub(channel).Watch(HealthCheckRequest()) for _ in range(2)]
    for watch in held:
        assert (await watch.read()).status == STATUS.SERVING
    full = await _refusal(_check(channel))
    assert full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--public-calls-max" in str(full.details())
    async with client_of(service, auth) as client:
        await client.list()
    for watch in held:
        watch.cancel()
    await eventually(lambda: _is_admitted(channel), timeout_seconds=SECONDS_MAX)


async def _is_admitted(channel: Any) -> bool:
    try:
        return await _is(channel, "", STATUS.SERVING)
    except grpc.aio.AioRpcError:
        return False


async def test_application_keeps_a_standard_service_of_its_own() -> None:
    """An application may already serve reflection or health: its answers stay, and its services are found."""
    named = GrpcServer()

    async def check(request: bytes, context: Any) -> bytes:
        del request, context
        return bytes(HealthCheckResponse(status=STATUS.UNKNOWN).SerializeToString())

    own: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Check": grpc.unary_unary_rpc_method_handler(check)
    }
    named.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", own),
            grpc.method_handlers_generic_handler("my.Application", own),
        )
    )
    health = Health()
    named.add_generic_rpc_handlers(
        standard_handlers(health, named.names, public=lambda one: one, private=lambda one: one)
    )
    port = named.add_insecure_port("127.0.0.1:0")
    await named.start()
    async with _channel(f"127.0.0.1:{port}") as channel:
        assert await _check(channel) == STATUS.UNKNOWN
        # Nothing describes a service without a .proto, so it is not listed as one that is described.
        assert "my.Application" not in await _services(channel)
        assert health.status_of("my.Application", NO_CLAIMS) == STATUS.NOT_SERVING
    await named.stop(None)


@pytest.mark.parametrize(
    ("method", "needs_token"),
    [
        ("/grpc.health.v1.Health/Check", False),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", False),
        ("/grpc.health.v1.Health/List", True),
        ("/grpc.health.v1.Health/Drain", True),
        ("/grpc.health.v1.HealthOfOrders/Get", True),
    ],
)
async def test_methods_beside_the_standard_ones_need_a_token(
    method: str, needs_token: bool
) -> None:
    """An application may add methods to a service of a standard name; a stranger must not call them."""
    guard = RpcGuard(KeyedAuth(KEYS), CallLimits(CallBounds()))
    server = GrpcServer(interceptors=[guard])

    async def serve(requests: object, context: object) -> bytes:
        del requests, context
        return b""

    service, _, name = method.removeprefix("/").partition("/")
    methods: dict[str, Any] = {name: grpc.stream_unary_rpc_method_handler(serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with _channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_unary(method)(iter(()), timeout=SECONDS_MAX)
            if needs_token:
                assert (await _refusal(call)).code() is grpc.StatusCode.UNAUTHENTICATED
            else:
                assert await call == b""
    finally:
        await server.stop(None)


async def test_broker_has_the_same_services(tmp_path: Path) -> None:
    """A broker is probed like a member: ready, alive, then leaving; its strangers are bounded, too."""
    config = BrokerConfig(
        data_dir=tmp_path, auth_keys=KEYS, bounds=BrokerBounds(public_calls_per_connection_max=2)
    )
    async with Broker(config) as broker, _channel(broker.address) as channel:
        assert await _check(channel) == STATUS.SERVING
        assert await _check(channel, "liveness") == STATUS.SERVING
        assert await _check(channel, "protocol.Journal") == STATUS.SERVING
        assert (await _refusal(_check(channel, "shard/x"))).code() is grpc.StatusCode.NOT_FOUND
        names = await _services(channel)
        assert {"protocol.Journal", "broadsheet.v1.FragmentService"} <= names
        stub = channelz_pb2_grpc.ChannelzStub(channel)
        refused = await _refusal(stub.GetServers(channelz_pb2.GetServersRequest()))
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
        token = KeyedAuth(KEYS).metadata(Claims(capability=Capability.READ))
        assert await stub.GetServers(channelz_pb2.GetServersRequest(), metadata=token)

        held = [HealthStub(channel).Watch(HealthCheckRequest()) for _ in range(2)]
        for watch in held:
            assert (await watch.read()).status == STATUS.SERVING
        full = await _refusal(_check(channel))
        assert full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with asyncio.timeout(SECONDS_MAX), TaskGroup() as group:
            group.start_soon(broker.stop(), name="stop")
            for watch in held:
                assert (await watch.read()).status == STATUS.NOT_SERVING
                assert await watch.read() is grpc.aio.EOF


async def test_malformed_requests_of_strangers_are_refused_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who has no token may send anything: the answer says that it is malformed, and the log has no stack of it."""
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        _channel(broker.address) as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        refused = await _refusal(check(b"\xff"))
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        info = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        refused = await _refusal(info(iter([b"\xff"])).read())
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await _check(channel) == STATUS.SERVING
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
