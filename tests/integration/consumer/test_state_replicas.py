"""How far replicas have come, as their members tell it, over real members, etcd and broker."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import grpc
import pytest

from broadsheet.consumer.client import StateClient
from broadsheet.journals.client import JournalClient
from broadsheet.security.actor import FORWARDED
from broadsheet.security.auth import KeyedAuth
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.wire.labels import parse_selector
from broadsheet.wire.state_pb2 import ListReplicasRequest
from broadsheet.wire.state_pb2_grpc import StateServiceStub
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import TALLIES, create_logs, recorded

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
OUTPUT = "test/output"
SHARD = "shard-a"
KEY = b64encode(b"a key of the test, thirty-two bytes").decode()


async def test_list_replicas_tells_what_a_primary_has_read_and_what_is_left(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A primary that has read everything has nothing left; one whose application fails has all of it left, and the
    member tells of both in one answer. A selector narrows it.
    """
    application = cluster.tally()
    application.broken_by = "poison"
    producer = Producer(journals)
    async with (
        cluster.member("a", application=application) as member,
        client_of(member) as shards,
        StateClient(member.address) as client,
    ):
        end = await producer.publish(SOURCE, ["a", "b"])
        await shards.apply(upserts(shard("reading", SOURCE, env="test"), shard("other", OUTPUT)))
        await wait_for_primaries(shards, "reading", "other")
        await shards.wait_read_through("reading", {SOURCE: end}, timeout_seconds=DEADLINE_SECONDS)

        (one,) = (await client.list_replicas(parse_selector("env=test"))).replicas
        assert (one.shard, one.slot, dict(one.read_through)) == ("reading", 0, {SOURCE: end})
        assert (one.behind_bytes, one.behind_seconds) == (0, 0.0)
        everything = (await client.list_replicas()).replicas
        assert {each.shard for each in everything} == {"other", "reading"}

        grown = await producer.publish(SOURCE, ["poison"])

        async def is_behind() -> bool:
            (one,) = (await client.list_replicas(parse_selector("env=test"))).replicas
            # While it restarts nobody knows.
            assert one.behind_bytes == grown - end, one
            return True

        await eventually(is_behind)


async def test_list_replicas_tells_what_a_standby_has_yet_to_play(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A standby's member answers for it, with its slot: it has played its log."""
    await create_logs(journals, SHARD)
    application = TALLIES["sqlite"][0]
    first = application(cluster.directory, output=OUTPUT)
    second = application(cluster.directory, output=OUTPUT)
    async with (
        cluster.member("a", application=first, state_dir=str(tmp_path / "a")) as one,
        client_of(one) as shards,
    ):
        await shards.apply(upserts(recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)))
        await wait_for_primaries(shards, SHARD)
        async with (
            cluster.member("b", application=second, state_dir=str(tmp_path / "b")) as two,
            StateClient(two.address) as client,
        ):

            async def standing_by() -> bool:
                replicas = (await client.list_replicas()).replicas
                assert [(each.slot, each.behind_bytes) for each in replicas] == [(1, 0)], replicas
                (told,) = replicas[0].operations
                assert (told.subject, told.phase, told.to_do) == (SHARD, "following", 0)
                return not replicas[0].read_through

            await eventually(standing_by)

            # Who reaches the first member alone, as a browser may, has it ask the second; neither asks a third.
            async with grpc.aio.insecure_channel(one.address.removeprefix("http://")) as channel:
                stub: Any = StateServiceStub(channel)  # Stubs are generic in messages only.
                asked = ListReplicasRequest(member=str(two.member_id))
                answer = await stub.ListReplicas(asked)
                assert answer.header.process_id.suffix == two.member_id.suffix
                assert [each.slot for each in answer.replicas] == [1]
                gone = stub.ListReplicas(ListReplicasRequest(member="zone-a#nobody"))
                with pytest.raises(grpc.aio.AioRpcError, match="member of the cluster"):
                    await gone
                with pytest.raises(grpc.aio.AioRpcError, match="member of the cluster"):
                    await stub.ListReplicas(asked, metadata=((FORWARDED, "1"),))


async def test_list_replicas_shows_what_the_token_allows(cluster: Cluster) -> None:
    """A caller without a token is refused, and one of another shard sees nothing of this one."""
    settings: dict[str, Any] = {"auth_keys": KEY}
    async with (
        cluster.member("a", **settings) as member,
        client_of(member, KeyedAuth(KEY)) as shards,
    ):
        await shards.apply(upserts(shard("shard-a", SOURCE)))
        await wait_for_primaries(shards, "shard-a")
        async with StateClient(member.address, auth=KeyedAuth(KEY)) as client:
            seen = await client.list_replicas(parse_selector("id=shard-a"))
            assert [each.shard for each in seen.replicas] == ["shard-a"]
            assert not (await client.list_replicas(parse_selector("id=shard-b"))).replicas
        async with StateClient(member.address) as stranger:
            with pytest.raises(UnauthenticatedError):
                await stranger.list_replicas()
