"""Shards that a caller's token does not cover, beside shards that do not exist: nothing tells one from the other."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.serving.standard_services import is_public
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import ApplyRequest, UnassignRequest
from broadsheet.wire.shard_pb2_grpc import ShardStub
from tests.integration.consumer.conftest import SOURCE
from tests.support.eventually import eventually
from tests.support.members import Cluster, client_of, shard, upserts, wait_for_primaries

AUTH = KeyedAuth(b64encode(b"a key of the members and the brokers").decode())
KEYS = b64encode(b"a key of the members and the brokers").decode()
HIDDEN, ABSENT, MINE = "theirs-1", "absent-1", "mine-1"


def _token(
    *include: tuple[str, str], exclude: tuple[tuple[str, str], ...] = ()
) -> tuple[tuple[str, str], ...]:
    chosen = selector(label_set(*include), label_set(*exclude))
    return AUTH.metadata(Claims(capability=Capability.ALL, selector=chosen))


OURS = _token(("team", "ours"))
NOT_THEIRS = _token(exclude=(("team", "theirs"),))
ALL = _token()


async def _answer(call: Any) -> str:
    """Return a call's answer, or its status, without the id that was asked for."""
    try:
        found = str(await call)
    except grpc.aio.AioRpcError as error:
        found = f"{error.code()} {error.details()}"
    return found.replace(HIDDEN, "ID").replace(ABSENT, "ID")


@pytest.mark.etcd
async def test_hidden_shard_answers_like_an_absent_one(cluster: Cluster) -> None:
    """A token for some shards must not find out which others exist. Plan: the same question about a shard of another
    team, and about none, by tokens that include one team, and that exclude the other, and by nobody.
    """
    async with (
        cluster.member("a", admin_port=0, auth_keys=KEYS) as member,
        client_of(member, AUTH) as client,
    ):
        await client.apply(
            upserts(shard(HIDDEN, SOURCE, team="theirs"), shard(MINE, SOURCE, team="ours"))
        )
        await wait_for_primaries(client, HIDDEN, MINE)
        async with grpc.aio.insecure_channel(member.address.removeprefix("http://")) as channel:
            health, shards = HealthStub(channel), ShardStub(channel)

            async def told(shard_id: str, token: Any) -> dict[str, str]:
                asked = HealthCheckRequest(service=f"shard/{shard_id}")
                found = {"check": await _answer(health.Check(asked, metadata=token))}
                watch = health.Watch(asked, metadata=token)
                found["watch"] = str(await watch.read())
                watch.cancel()
                if token:
                    for only in (True, False):
                        request = UnassignRequest(
                            shards=[shard_id], only_failed=only, dry_run=not only
                        )
                        found[f"unassign {only}"] = await _answer(
                            shards.Unassign(request, metadata=token)
                        )
                    for expect in (-1, 0, 999_999):
                        change = ApplyRequest.Change(delete=shard_id, expect_mod_revision=expect)
                        found[f"delete {expect}"] = _status(
                            await _answer(
                                shards.Apply(ApplyRequest(changes=[change]), metadata=token)
                            )
                        )
                    change = ApplyRequest.Change(
                        upsert=shard(shard_id, SOURCE, team="ours"), expect_mod_revision=999_999
                    )
                    found["update"] = _status(
                        await _answer(shards.Apply(ApplyRequest(changes=[change]), metadata=token))
                    )
                async with (
                    aiohttp.ClientSession(
                        headers={"Authorization": dict(token)["authorization"]} if token else {}
                    ) as session,
                    session.get(
                        f"{member.admin_address}/readyz?service=shard/{shard_id}"
                    ) as answer,
                ):
                    found["readyz"] = f"{answer.status}"
                return found

            for token in (OURS, NOT_THEIRS, ()):
                assert await told(HIDDEN, token) == await told(ABSENT, token)
            async with (
                aiohttp.ClientSession(
                    headers={"Authorization": dict(OURS)["authorization"]}
                ) as session,
                session.get(f"{member.admin_address}/debug/tasks") as answer,
            ):
                assert HIDDEN not in await answer.text()
            serving = await eventually(lambda: _is_serving(health, OURS, MINE))
            assert serving
            assert await _is_serving(health, ALL, HIDDEN)


def _status(answer: str) -> str:
    """Return what an Apply says, without revisions, which go on by themselves."""
    statuses = [line for line in answer.splitlines() if "status" in line or "StatusCode" in line]
    return "".join(statuses)


async def _is_serving(health: HealthStub, token: Any, shard_id: str) -> bool:
    request = HealthCheckRequest(service=f"shard/{shard_id}")
    return await _answer(health.Check(request, metadata=token)) == "status: SERVING\n"


def test_public_methods_are_the_standard_ones_alone() -> None:
    """An application may add a method below the name of health, and must not be served without a token."""
    assert is_public("/grpc.health.v1.Health/Check")
    assert is_public("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    assert not is_public("/grpc.health.v1.Health/Secrets")
    assert not is_public("/grpc.health.v1.Health/Check/More")


@pytest.mark.etcd
async def test_channelz_tells_of_channels(cluster: Cluster) -> None:
    """The library's own servicer does not know a field of its core, and answered INTERNAL."""
    async with (
        cluster.member("a") as member,
        grpc.aio.insecure_channel(member.address.removeprefix("http://")) as channel,
    ):
        stub = channelz_pb2_grpc.ChannelzStub(channel)
        top = await stub.GetTopChannels(channelz_pb2.GetTopChannelsRequest())
        first = top.channel[0].ref.channel_id
        found = await stub.GetChannel(channelz_pb2.GetChannelRequest(channel_id=first))
        assert found.channel.ref.channel_id == first
        with pytest.raises(grpc.aio.AioRpcError, match="nothing of this id"):
            await stub.GetChannel(channelz_pb2.GetChannelRequest(channel_id=1 << 40))
