"""Calls that a member passes on carry a token for just what was asked, however much the caller's permits."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.leader.election import (
    CandidateRecord,
    EpochRecord,
    LeaderRecord,
    encoded,
    name_of,
)
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Put
from broadsheet.consumer.registry.key_space import process_id_of
from broadsheet.consumer.rpc.guard import SHARD_CAPABILITIES
from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.wire.allocation_pb2 import (
    ApplyPlanRequest,
    ExplainRequest,
    ListOperationsRequest,
    PlanRequest,
)
from broadsheet.wire.allocation_pb2_grpc import AllocationServiceStub
from broadsheet.wire.journal_pb2 import LabelSelector, ProcessSpec
from broadsheet.wire.labels import label_set, parse_selector, selector
from broadsheet.wire.shard_pb2 import ConsumerSpec, ReplicaStatus, StatRequest
from broadsheet.wire.shard_pb2_grpc import ShardStub
from broadsheet.wire.state_pb2 import ListReplicasRequest
from broadsheet.wire.state_pb2_grpc import StateServiceStub
from tests.support.eventually import eventually
from tests.support.members import Cluster, shard
from tests.support.rpc_table import methods

pytestmark = pytest.mark.etcd

KEYS = b64encode(b"a key of the members, 32 bytes or more").decode()
AUTH = KeyedAuth(KEYS)
RECORDER, BYSTANDER = MemberId("zone-a", "recorder"), MemberId("zone-a", "bystander")
SHARD = "shard-1"
LEASE_SECONDS = 600
CALL_SECONDS = 60.0
WIDE = Capability.ALL
MINE = parse_selector("team=mine")
SHARD_ALONE = selector(label_set(("id", SHARD)))
EVERYTHING = LabelSelector()


@dataclass
class _Recorder(grpc.GenericRpcHandler):
    """Answers every call with an empty message, and keeps its metadata by method."""

    seen: dict[str, dict[str, str]] = field(default_factory=dict)

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of any method."""
        method = handler_call_details.method

        async def answer(request: bytes, context: Any) -> bytes:
            del request
            self.seen[method] = dict(context.invocation_metadata())
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)

    def claims(self, method: str) -> Claims:
        """Return the claims with which a method was called."""
        return AUTH.verify(self.seen[method].items(), Capability(0))


@pytest.fixture
async def recorder(cluster: Cluster, etcd: EtcdClient) -> AsyncIterator[_Recorder]:
    """Yield a process that is the leader and the primary of the shard, and does nothing but listen."""
    recorder = _Recorder()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((recorder,))
    endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    keys, others = Keys(cluster.root), AuxiliaryKeys(cluster.root)
    lease = await etcd.lease_grant(LEASE_SECONDS)
    primary = ReplicaStatus(code=ReplicaStatus.PRIMARY).SerializeToString()
    name = name_of(RECORDER)
    puts = (
        Put(others.candidate(RECORDER), encoded(CandidateRecord()), lease),
        Put(others.epoch, encoded(EpochRecord(member=name, epoch=1))),
        Put(others.leader, encoded(LeaderRecord(member=name, epoch=1, beat=1)), lease),
        Put(keys.item(ItemId(SHARD)), shard(SHARD, team="mine").SerializeToString()),
        Put(keys.assignment(ItemId(SHARD), RECORDER, 0), primary, lease),
    )
    await etcd.put(keys.member(RECORDER), _process(RECORDER, endpoint), lease=lease)
    # A member without a candidate's key, and younger: those who come after it never claim the leadership, so that it
    # stays with the recorder, which does not beat.
    await etcd.put(keys.member(BYSTANDER), _process(BYSTANDER, endpoint), lease=lease)
    await etcd.txn((), puts)
    yield recorder
    await etcd.lease_revoke(lease)
    await server.stop(None)


def _process(member_id: MemberId, endpoint: str) -> bytes:
    return ConsumerSpec(
        process_spec=ProcessSpec(id=process_id_of(member_id), endpoint=endpoint), shard_limit=10
    ).SerializeToString()


@dataclass(frozen=True, slots=True)
class _Hop:
    """A method that is passed on, and what its hop may permit."""

    method: str
    asked_with: LabelSelector
    """Of the caller's token, which has every capability."""
    capability: Capability
    selector: LabelSelector


HOPS = [
    _Hop("/consumer.Shard/Stat", MINE, Capability.READ, SHARD_ALONE),
    _Hop("/broadsheet.v1.AllocationService/Explain", MINE, Capability.LIST, MINE),
    _Hop("/broadsheet.v1.AllocationService/Plan", EVERYTHING, Capability.LIST, EVERYTHING),
    _Hop("/broadsheet.v1.AllocationService/ApplyPlan", EVERYTHING, Capability.APPLY, EVERYTHING),
    _Hop("/broadsheet.v1.StateService/ListReplicas", MINE, Capability.LIST, MINE),
    _Hop(
        "/broadsheet.v1.AllocationService/ListOperations", EVERYTHING, Capability.LIST, EVERYTHING
    ),
]


def _calls(channel: grpc.aio.Channel) -> dict[str, Callable[..., Awaitable[Any]]]:
    """Return what calls each method; `Any`, because stubs are generic in messages only."""
    shards: Any = ShardStub(channel)
    allocation: Any = AllocationServiceStub(channel)
    states: Any = StateServiceStub(channel)
    return {
        HOPS[0].method: lambda **given: shards.Stat(StatRequest(shard=SHARD), **given),
        HOPS[1].method: lambda **given: allocation.Explain(ExplainRequest(shard=SHARD), **given),
        HOPS[2].method: lambda **given: allocation.Plan(PlanRequest(), **given),
        HOPS[3].method: lambda **given: allocation.ApplyPlan(
            ApplyPlanRequest(plan_id="p-1"), **given
        ),
        HOPS[4].method: lambda **given: states.ListReplicas(
            ListReplicasRequest(member=str(RECORDER)), **given
        ),
        HOPS[5].method: lambda **given: allocation.ListOperations(ListOperationsRequest(), **given),
    }


async def test_each_hop_permits_no_more_than_its_request(
    cluster: Cluster, recorder: _Recorder
) -> None:
    """Plan: a caller that may do everything asks a member that must pass the call on, by each method that is. What the
    other process gets could otherwise be used there, or by who reads it on its way, for anything.
    """
    async with (
        cluster.member("a", auth_keys=KEYS, watch_peers=False) as service,
        grpc.aio.insecure_channel(service.address.removeprefix("http://")) as channel,
    ):
        calls = _calls(channel)
        for hop in HOPS:
            wide = AUTH.metadata(Claims(capability=WIDE, selector=hop.asked_with))
            latest = datetime.now(UTC) + timedelta(seconds=CALL_SECONDS)
            call = calls[hop.method]

            async def passed_on(
                hop: _Hop = hop,
                wide: tuple[tuple[str, str], ...] = wide,
                call: Callable[..., Awaitable[Any]] = call,
            ) -> bool:
                await call(metadata=wide, timeout=CALL_SECONDS)
                return hop.method in recorder.seen

            await eventually(passed_on, timeout_seconds=300)
            found = recorder.claims(hop.method)
            assert found.capability == hop.capability, hop.method
            assert list(found.selector.include.labels) == list(hop.selector.include.labels)
            assert list(found.selector.exclude.labels) == list(hop.selector.exclude.labels)
            assert found.expires_at is not None
            # A token's times are whole seconds; `passed_on` may have called more than once.
            spent = datetime.now(UTC) + timedelta(seconds=CALL_SECONDS) - latest
            assert found.expires_at <= latest + spent + timedelta(seconds=1)


async def test_no_other_method_is_passed_on(cluster: Cluster, recorder: _Recorder) -> None:
    """A method that begins to pass calls on must be added to the hops above: everything else a member answers itself,
    or refuses.
    """
    async with (
        cluster.member("a", auth_keys=KEYS, watch_peers=False) as service,
        grpc.aio.insecure_channel(service.address.removeprefix("http://")) as channel,
    ):
        wide = AUTH.metadata(Claims(capability=WIDE))
        for method in sorted(set(_unary_methods()) - {hop.method for hop in HOPS}):
            make: Any = channel.unary_unary(method)
            call = make(b"", metadata=wide, timeout=CALL_SECONDS)
            answered = (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
            assert await call.code() in answered, method

    assert recorder.seen == {}


def _unary_methods() -> list[str]:
    """Return the methods of members whose requests and answers are single messages."""
    declared = methods()
    return [
        method
        for method in SHARD_CAPABILITIES
        if not declared[method.removeprefix("/")].server_streaming
    ]
