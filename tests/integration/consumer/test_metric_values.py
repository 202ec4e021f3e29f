"""What members and brokers measure: the numbers are those of what happened."""

from __future__ import annotations

import threading
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from broadsheet.security.auth import Capability, Claims, KeyedAuth, NoAuth
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.serving.admin import AdminRoute, AdminServer
from broadsheet.serving.metrics import pushed_metrics
from broadsheet.wire.journal_pb2 import ListRequest as JournalListRequest
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read
from tests.support.eventually import eventually
from tests.support.live_shards import SHARD, SOURCE, Counting, ShardHost, read_through, spec_of
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import TALLIES, counts_of, create_logs, recorded

SECONDS_MAX = 300.0
KEYS = b64encode(b"a key of everybody's, 32 bytes or more").decode()
AUTH = KeyedAuth(KEYS)


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Return a sample's value; 0 if there is none."""
    return registry.get_sample_value(name, labels) or 0.0


def _calls(registry: CollectorRegistry, service: str, method: str, kind: str, code: str) -> float:
    labels = {"grpc_type": kind, "grpc_service": service, "grpc_method": method}
    return _value(registry, "grpc_server_handled_total", **labels, grpc_code=code)


def _is_counted_once(
    registry: CollectorRegistry, service: str, method: str, kind: str, code: str
) -> bool:
    return _calls(registry, service, method, kind, code) == 1


@pytest.mark.etcd
async def test_lag_grows_while_a_shard_stands_still_and_is_gone_with_it(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A callback waits: what it has not read counts in bytes and seconds, also what comes after its reader has stopped
    reading. Once it goes on it is not behind, and a shard that is served no more has no lag here.
    """
    proceed = threading.Event()

    def hang(key: str) -> None:
        if key == "slow":
            assert proceed.wait(SECONDS_MAX)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    # A quarter of it is the time between two looks at the head.
    config = ShardConfig(stop_grace_seconds=2, stall_seconds=0.4)
    running = host.start(spec, Counting(tmp_path, fail=hang), config=config)
    producer = Producer(journals)
    labels = {"shard": running.fqn, "journal": SOURCE}

    def lag(unit: str) -> float | None:
        return host.registry.get_sample_value(f"broadsheet_shard_source_lag_{unit}", labels)

    end = await producer.publish(SOURCE, ["slow"])
    await eventually(lambda: lag("bytes") == end, timeout_seconds=SECONDS_MAX)
    first = lag("seconds")
    assert first is not None
    end = await producer.publish(SOURCE, ["more"] * 10)
    await eventually(lambda: lag("bytes") == end, timeout_seconds=SECONDS_MAX)
    await eventually(lambda: (lag("seconds") or 0.0) > first, timeout_seconds=SECONDS_MAX)

    proceed.set()
    await read_through(running, source=end)
    await eventually(lambda: (lag("bytes"), lag("seconds")) == (0, 0), timeout_seconds=SECONDS_MAX)
    assert _value(host.registry, "broadsheet_shard_transaction_seconds_count") >= 1
    await running.stop()
    assert lag("bytes") is None


@pytest.mark.etcd
async def test_sizes_of_a_recovery_log_on_both_sides(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A primary records, a standby plays as much; both have files, and the standby is not behind."""
    await create_logs(journals, SHARD)
    application = TALLIES["sqlite"][0]
    settings: dict[str, Any] = {"zone": "zone-a", "state_dir": str(tmp_path / "one")}
    others: dict[str, Any] = {"zone": "zone-b", "state_dir": str(tmp_path / "two")}
    source = "test/source"
    async with (
        cluster.member(
            "one", application=application(cluster.directory, output=cluster.output), **settings
        ) as one,
        client_of(one) as client,
    ):
        spec = recorded(shard(SHARD, source, hot_standbys=1), cluster.root)
        await client.apply(upserts(spec))
        await wait_for_primaries(client, SHARD)
        end = await Producer(journals).publish(source, ["a", "b"])
        await counts_of(one.resolver, SHARD, "sqlite", read_through={source: end})
        async with cluster.member(
            "two", application=application(cluster.directory, output=cluster.output), **others
        ) as two:

            async def standing() -> bool:
                return ("member-two", "STANDBY") in (await statuses(client))[SHARD]

            await eventually(standing, timeout_seconds=SECONDS_MAX)
            label = {"shard": f"{cluster.root}/items/{SHARD}"}
            name = "broadsheet_shard_recovery_log_recorded_bytes_total"
            recorded_bytes = _value(one.registry, name, **label)
            assert recorded_bytes > 0
            assert _value(two.registry, name, **label) == 0
            played = _value(two.registry, "gazette_recoverylog_recovered_bytes_total")
            assert played > 0
            for member in (one, two):
                assert _value(member.registry, "broadsheet_shard_store_bytes", **label) > 0
            behind = "broadsheet_shard_recovery_log_behind_bytes"
            await eventually(
                lambda: two.registry.get_sample_value(behind, label) == 0,
                timeout_seconds=SECONDS_MAX,
            )
            txns = {"method": "Txn"}
            assert _value(one.registry, "broadsheet_etcd_request_seconds_count", **txns) > 0


@pytest.mark.etcd
async def test_calls_of_a_member_count_by_their_status(cluster: Cluster) -> None:
    """Whatever ends a call, it counts once, under the status that its client saw."""
    async with cluster.member("a", auth_keys=KEYS) as service:
        registry = service.registry
        async with client_of(service, AUTH) as client:
            await client.list()
        async with client_of(service) as stranger:
            with pytest.raises(UnauthenticatedError):
                await stranger.list()
        list_of = ("consumer.Shard", "List", "unary")
        # A refusal is sent before the call has ended here.
        for code in ("OK", "Unauthenticated"):
            await eventually(
                partial(_is_counted_once, registry, *list_of, code), timeout_seconds=SECONDS_MAX
            )
        target = service.address.removeprefix("http://")
        async with grpc.aio.insecure_channel(target) as channel:
            # `Any`: requests are raw.
            watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
            call = watch(b"")
            await call.read()
            call.cancel()
            malformed: Any = channel.unary_unary("/consumer.Shard/List")
            metadata = AUTH.metadata(Claims(capability=Capability.LIST))
            with pytest.raises(grpc.aio.AioRpcError):
                await malformed(b"\xff\xff", metadata=metadata)
            absent: Any = channel.unary_unary("/consumer.Shard/Nothing")
            with pytest.raises(grpc.aio.AioRpcError):
                await absent(b"", metadata=metadata)
        health = ("grpc.health.v1.Health", "Watch", "server_stream")
        for call, code in ((list_of, "InvalidArgument"), (health, "Canceled")):
            await eventually(
                partial(_is_counted_once, registry, *call, code), timeout_seconds=SECONDS_MAX
            )
        labels = {"grpc_type": "unary", "grpc_service": "consumer.Shard", "grpc_method": "List"}
        assert _value(registry, "grpc_server_started_total", **labels) == 3
        assert _value(registry, "grpc_server_handling_seconds_count", **labels) == 3
        # Names that strangers make up must not fill the memory with series.
        names = {s.labels.get("grpc_method") for m in registry.collect() for s in m.samples}
        assert "Nothing" not in names


async def test_broker_counts_commits_bytes_and_calls(tmp_path: Path) -> None:
    """Content in and out, a commit for it, and calls by status."""
    content = b"x" * 1000
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
    ):
        registry = broker.registry
        await apply_specs(stub, journal_spec("a/journal"))
        await append(stub, "a/journal", content)
        assert (await read(stub, "a/journal")).content == content
        async for _ in stub.List(JournalListRequest()):
            pass
        assert _value(registry, "broadsheet_broker_appended_bytes_total") == len(content)
        assert _value(registry, "broadsheet_broker_appends_total") == 1
        assert _value(registry, "broadsheet_broker_commit_seconds_count") >= 1
        assert _value(registry, "broadsheet_broker_read_bytes_total") == len(content)
        assert _value(registry, "broadsheet_broker_journals") == 1
        assert _value(registry, "broadsheet_broker_disk_free_bytes") > 0
        for method, kind in (("Append", "client_stream"), ("List", "server_stream")):
            await eventually(
                partial(_is_counted_once, registry, "protocol.Journal", method, kind, "OK"),
                timeout_seconds=SECONDS_MAX,
            )


class _Gateway:
    """What a Pushgateway is to its clients: groups of metrics that are put and deleted."""

    def __init__(self) -> None:
        self.groups: dict[str, str] = {}
        self.pushes = 0
        self.is_broken = False

    def routes(self) -> list[AdminRoute]:
        """Return its pages."""
        path, most = "/metrics/job/broadsheet/{group:.*}", 1 << 24
        return [
            AdminRoute(path=path, handler=self._put, method="PUT", body_bytes_max=most),
            AdminRoute(path=path, handler=self._delete, method="DELETE"),
        ]

    async def _put(self, request: web.Request) -> web.Response:
        self.pushes += 1
        if self.is_broken:
            return web.Response(status=500)
        self.groups[request.match_info["group"]] = await request.text()
        return web.Response()

    async def _delete(self, request: web.Request) -> web.Response:
        self.groups.pop(request.match_info["group"], None)
        return web.Response(status=202)


@pytest.mark.etcd
async def test_member_without_open_ports_pushes_its_metrics(cluster: Cluster) -> None:
    """Executors of Spark come and go, on ports that nobody knows: a gateway has their metrics as long as they live."""
    gateway = _Gateway()
    async with AdminServer("127.0.0.1", 0, routes=gateway.routes(), verifier=NoAuth()) as server:
        async with cluster.member("a", metrics_push_url=server.address) as service:
            await eventually(lambda: gateway.groups, timeout_seconds=SECONDS_MAX)
            [(group, text)] = gateway.groups.items()
            assert group == f"instance/{service.member_id}"
            assert "broadsheet_build_info{" in text
            # Those of the default registry, too.
            assert "python_info{" in text
        assert gateway.groups == {}


async def test_gateway_that_fails_is_tried_again_and_logged_once() -> None:
    """A gateway is not worth a member, nor a line a second; what it missed is in the next push."""
    gateway, registry = _Gateway(), CollectorRegistry()
    gateway.is_broken = True
    async with AdminServer("127.0.0.1", 0, routes=gateway.routes(), verifier=NoAuth()) as server:
        with structlog.testing.capture_logs() as logs:
            async with pushed_metrics(server.address, "one", registry, pause_seconds=0.01):
                await eventually(lambda: gateway.pushes >= 3, timeout_seconds=SECONDS_MAX)
                gateway.is_broken = False
                await eventually(lambda: gateway.groups, timeout_seconds=SECONDS_MAX)
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == [
        "metrics.push_failed"
    ]
    # Nothing listens there any more: the block still ends.
    async with pushed_metrics("http://127.0.0.1:1", "one", registry, pause_seconds=0.01):
        pass
