"""What members keep between Stats: decisions until the key space changes, tokens for one shard and caller, handlers."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import grpc

from broadsheet.allocator.etcd.api import Etcd, KeyDeleted, KeyPut, RangeResult, WatchBatch
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.registry.key_space import ShardDecoder, process_id_of
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.resolver.resolver import Peers, ShardResolution, ShardResolver
from broadsheet.consumer.rpc.call_limits import CallBounds, CallLimits
from broadsheet.consumer.rpc.guard import RpcGuard
from broadsheet.consumer.rpc.primary_hop import HopTokens
from broadsheet.security.auth import AUTHORIZATION, Capability, Claims, KeyedAuth, NoAuth
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.labels import ID, label_set, selector
from broadsheet.wire.shard_pb2 import ConsumerSpec, Status
from tests.support.key_space_values import KEYS, etcd_header, member_id, shard_spec

AUTH = KeyedAuth(b64encode(b"a key of the members, 32 bytes or more").decode())
EVERYTHING = Claims(capability=Capability.READ)
TEAM_A, TEAM_B = (
    Claims(capability=Capability.READ, selector=selector(label_set(("team", team))))
    for team in ("a", "b")
)
HERE, THERE, ELSEWHERE = (member_id(name) for name in ("a", "b", "c"))
SHARD = ItemId("shard-1")


class _World:
    """A member's resolver on a key space whose changes the test makes."""

    def __init__(self) -> None:
        # Nothing is asked of etcd, and no shard runs here: the test delivers what etcd would.
        self.key_space = KeySpace(cast("Etcd", None), KEYS, ShardDecoder(hot_standbys_max=3))
        self.resolver = ShardResolver(
            self.key_space,
            cast("LocalShards", None),
            member_id=HERE,
            application=cast("Any", None),
            peers=Peers(),
        )
        self.key_space.observe(ObserverStage.DERIVE, self.resolver.reindex)
        self.key_space.replace(RangeResult(header=etcd_header(1), kvs=()))
        self._revision = 1
        spec = shard_spec(SHARD, team="a")
        self.put(KEYS.item(SHARD), spec.SerializeToString())
        for each in (HERE, THERE, ELSEWHERE):
            self.announce(each, f"http://{each.suffix}:1")
        self.assign(THERE)

    def put(self, key: bytes, value: bytes = b"") -> None:
        self._revision += 1
        kv = KeyValue(
            key=key,
            value=value,
            create_revision=self._revision,
            mod_revision=self._revision,
            version=1,
            lease=0,
        )
        self._deliver(KeyPut(kv))

    def announce(self, identity: Any, endpoint: str) -> None:
        process = ProcessSpec(id=process_id_of(identity), endpoint=endpoint)
        spec = ConsumerSpec(process_spec=process, shard_limit=10)
        self.put(KEYS.member(identity), spec.SerializeToString())

    def assign(self, identity: Any) -> None:
        self.put(KEYS.assignment(SHARD, identity, 0))

    def unassign(self, identity: Any) -> None:
        self._revision += 1
        self._deliver(KeyDeleted(KEYS.assignment(SHARD, identity, 0), self._revision))

    def _deliver(self, change: KeyPut | KeyDeleted) -> None:
        self.key_space.apply([WatchBatch(header=etcd_header(self._revision), events=(change,))])

    async def ask(self, claims: Claims = EVERYTHING, *, may_proxy: bool = True) -> ShardResolution:
        return await self.resolver.resolve(SHARD, claims=claims, may_proxy=may_proxy)

    async def primary_endpoint(self) -> str:
        header = (await self.ask()).header
        return header.route.endpoints[header.route.primary]


async def test_resolver_key_space_changed_decides_anew() -> None:
    """A decision that was kept must not outlive what it rests on: primary, endpoint, revision, spec."""
    world = _World()
    assert await world.primary_endpoint() == "http://member-b:1"
    before = (await world.ask()).header.etcd.revision

    world.announce(THERE, "http://moved:1")
    assert await world.primary_endpoint() == "http://moved:1"
    assert (await world.ask()).header.etcd.revision == before + 1
    world.unassign(THERE)
    assert (await world.ask()).status == Status.NO_SHARD_PRIMARY
    world.assign(ELSEWHERE)
    assert await world.primary_endpoint() == "http://member-c:1"
    world.put(KEYS.item(SHARD), shard_spec(SHARD, team="b").SerializeToString())
    assert (await world.ask(TEAM_A)).status == Status.SHARD_NOT_FOUND


async def test_resolver_callers_with_other_rights_share_no_decision() -> None:
    """Who may not see a shard must not get the decision made for one who may, nor the other way round."""
    world = _World()

    statuses = [(await world.ask(claims)).status for claims in (TEAM_A, TEAM_B, TEAM_A, EVERYTHING)]

    assert statuses == [Status.OK, Status.SHARD_NOT_FOUND, Status.OK, Status.OK]
    assert (await world.ask(may_proxy=False)).status == Status.NOT_SHARD_PRIMARY


async def test_resolver_caller_changes_its_header_others_keep_theirs() -> None:
    """Headers belong to their callers, who may send them on with changes."""
    world = _World()
    first = (await world.ask()).header
    expected = first.SerializeToString(deterministic=True)

    first.process_id.suffix = "changed"

    assert (await world.ask()).header.SerializeToString(deterministic=True) == expected


def _claims(metadata: tuple[tuple[str, str], ...]) -> Claims:
    ((name, value),) = metadata
    assert name == AUTHORIZATION
    return AUTH.claims_in(value.removeprefix("Bearer "))


def test_hop_token_is_for_one_shard_and_caller() -> None:
    """One caller's token must never speak for another's shard or name, however often it is used again."""
    hops, now = HopTokens(AUTH), datetime.now(UTC)

    for shard_id, subject in (("shard-1", "ann"), ("shard-2", "ann"), ("shard-1", "bob")) * 2:
        claims = _claims(hops.metadata(shard_id, subject, timeout_seconds=10, now=now))
        assert claims.capability == Capability.READ
        assert claims.selector.include == label_set((ID, shard_id))
        assert not claims.selector.exclude.labels
        assert claims.subject == subject


def test_hop_token_is_shared_only_by_calls_whose_claims_are_equal() -> None:
    """Signing is what sharing saves; a token must never live longer than its own call's would."""
    hops = HopTokens(AUTH)
    now = datetime.now(UTC).replace(microsecond=200_000) + timedelta(seconds=1)
    first = hops.metadata("shard-1", "", timeout_seconds=10.3, now=now)

    later = now + timedelta(seconds=0.3)
    assert hops.metadata("shard-1", "", timeout_seconds=10, now=later) is first
    assert _claims(first).expires_at == now.replace(microsecond=0) + timedelta(seconds=10)
    longer = hops.metadata("shard-1", "", timeout_seconds=11, now=later)
    assert _claims(longer).expires_at == now.replace(microsecond=0) + timedelta(seconds=11)


def test_hop_token_is_signed_anew_in_another_second() -> None:
    """A key that was replaced must not stay in use."""
    hops, now = HopTokens(AUTH), datetime.now(UTC)
    first = hops.metadata("shard-1", "", timeout_seconds=10, now=now)

    later = now + timedelta(seconds=1)

    assert hops.metadata("shard-1", "", timeout_seconds=9, now=later) is not first
    assert HopTokens(NoAuth()).metadata("shard-1", "", timeout_seconds=10, now=now) == ()


class _Details:
    """gRPC's details of a call."""

    method = "/test.Service/Method"
    invocation_metadata = ()


async def test_guard_keeps_the_guarded_handler_of_the_handler_it_guards() -> None:
    """A method that gets another handler must get that one, guarded; the former is kept until then."""
    guard = RpcGuard(NoAuth(), CallLimits(CallBounds()))

    async def answer(request: bytes, context: Any) -> bytes:
        del context
        return request

    async def guarded(handler: object) -> Any:
        async def found(_: object) -> Any:
            return handler

        return await guard.intercept_service(found, cast("Any", _Details()))

    first: object = grpc.unary_unary_rpc_method_handler(answer)
    second: object = grpc.unary_unary_rpc_method_handler(answer)

    kept = await guarded(first)
    assert await guarded(first) is kept
    assert await guarded(second) is not kept
    assert await guarded(None) is None
