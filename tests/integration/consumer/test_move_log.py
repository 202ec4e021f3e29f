"""The move log over real members and etcd: who did what to which replica, and why; how long it is kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from google.protobuf.timestamp_pb2 import Timestamp

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.leader.move_records import decoded_or_none
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.allocator.policy import AllocationPolicy, MoveLogPolicy
from broadsheet.cli.main import main
from broadsheet.consumer.client import AllocationClient, ShardClient
from broadsheet.consumer.errors import PlanNotAppliedError
from broadsheet.consumer.member.service import Service
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.actor import ACTOR, actor_of, local_actor
from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.wire.allocation_pb2 import MoveKind, ShardMove
from broadsheet.wire.allocation_pb2_grpc import AllocationServiceStub
from broadsheet.wire.labels import label_set, selector
from tests.support.eventually import eventually
from tests.support.members import Cluster, client_of, shard, statuses, upserts, wait_for_primaries

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
KEYS = "c2VjcmV0LWtleS1vZi1zaXh0ZWVuLWJ5dGVzLCAzMiBieXRlcyBvciBtb3Jl"
ONE, TWO = "zone-a#member-a", "zone-b#member-b"


async def _moves(service: Service, **wanted: str) -> list[ShardMove]:
    async with AllocationClient(service.address) as client:
        return [move async for move in client.moves(**wanted)]  # type: ignore[arg-type]  # Names of texts only.


def _shown(moves: list[ShardMove]) -> list[tuple[str, str, str, int]]:
    return [
        (each.shard, MoveKind.Name(each.kind)[len("MOVE_KIND_") :], each.member, each.slot)
        for each in moves
    ]


async def _placed(client: ShardClient, *expected: str) -> None:
    async def are_there() -> bool:
        found = await statuses(client)
        return [suffix for suffix, _ in found["shard-a"]] == list(expected)

    await eventually(are_there)


async def test_moves_tell_who_did_what_and_why(cluster: Cluster, etcd: EtcdClient) -> None:
    """A shard is placed, restarted by an operator, drained by a plan, and deleted: each move has its time, revision,
    reason, plan and actor, and each transaction one entry.
    """
    began = datetime.now(UTC) - timedelta(seconds=1)
    async with cluster.member("a") as one, client_of(one) as client:
        await client.apply(upserts(shard("shard-a", SOURCE, hot_standbys=1)))
        await wait_for_primaries(client, "shard-a")
        async with cluster.member("b", zone="zone-b") as two:
            await _placed(client, "member-a", "member-b")
            placed = await _moves(two)
            assert _shown(placed) == [("shard-a", "ASSIGN", ONE, 0), ("shard-a", "ASSIGN", TWO, 1)]
            assert [each.reason for each in placed] == ["uncovered", "under-replicated"]
            assert {each.writer for each in placed} == {ONE}
            assert all(each.epoch > 0 and not each.actor and not each.plan_id for each in placed)
            assert all(began < each.time.ToDatetime(UTC) < datetime.now(UTC) for each in placed)
            assert placed[0].revision < placed[1].revision

            await client.unassign(["shard-a"])
            restarted = (await _moves(two))[len(placed) :]
            assert _shown(restarted)[0] == ("shard-a", "REMOVE", ONE, 0)
            assert (restarted[0].reason, restarted[0].actor) == ("unassigned", local_actor())
            assert restarted[0].epoch == 0
            await wait_for_primaries(client, "shard-a")
            await _placed(client, "member-b", "member-a")
            followed = (await _moves(one))[len(placed) + 1 :]
            assert ("shard-a", "PROMOTE", TWO, 0) in _shown(followed)

            before = len(await _moves(one))
            async with (
                cluster.member("c", zone="zone-b"),
                AllocationClient(one.address) as allocation,
            ):

                async def drained() -> str:
                    plan = await allocation.plan(drain=[TWO])
                    try:
                        await allocation.apply_plan(plan.plan_id)
                    except PlanNotAppliedError:
                        return ""  # A status was written in between.
                    return plan.plan_id

                plan_id = await eventually(drained)
                await _placed(client, "member-a", "member-c")
                planned = (await _moves(one))[before:]
                assert {each.plan_id for each in planned} == {plan_id}
                assert {each.actor for each in planned} == {local_actor()}
                assert {each.reason for each in planned} <= {"draining", "under-replicated"}

    entries = await etcd.get_range(
        AuxiliaryKeys(cluster.root).moves_prefix,
        prefix_range_end(AuxiliaryKeys(cluster.root).moves_prefix),
    )
    decoded = [decoded_or_none(kv) for kv in entries.kvs]
    assert all(entry is not None and entry.moves for entry in decoded)
    assert len({kv.create_revision for kv in entries.kvs}) == len(entries.kvs)


async def test_moves_are_filtered_and_paged(cluster: Cluster) -> None:
    """By shard, member and time, in pages that a client puts together; a page's token must be one of ours."""
    names = [f"shard-{index}" for index in range(5)]
    async with cluster.member("a") as one, client_of(one) as client:
        for name in names:
            await client.apply(upserts(shard(name, SOURCE)))
            await wait_for_primaries(client, name)

        assert [each.shard for each in await _moves(one)] == names
        assert [each.shard for each in await _moves(one, shard_id="shard-3")] == ["shard-3"]
        assert len(await _moves(one, member=ONE)) == 5
        assert not await _moves(one, member=TWO)
        async with AllocationClient(one.address) as allocation:
            later = datetime.now(UTC) + timedelta(seconds=5)
            assert not [each async for each in allocation.moves(since=later)]
            paged: list[ShardMove] = []
            token = b""
            while True:
                page = await allocation.move_page(page_size=2, page_token=token)
                assert len(page.moves) <= 2
                paged += page.moves
                token = page.next_page_token
                if not token:
                    break
            assert [each.shard for each in paged] == names
            with pytest.raises(ValidationError, match="page_token: expected the next_page_token"):
                await allocation.move_page(page_token=b"/elsewhere")


async def test_moves_are_shown_to_whom_the_shards_are(cluster: Cluster) -> None:
    """A token of some shards shows their moves alone; of a shard that is gone, its id alone can be judged."""
    settings = {"auth_keys": KEYS}
    narrow = selector(label_set(("env", "test")))
    async with (
        cluster.member("a", **settings) as one,  # type: ignore[arg-type]  # A setting is any value.
        client_of(one, KeyedAuth(KEYS)) as client,
    ):
        await client.apply(upserts(shard("shard-a", SOURCE, env="test"), shard("shard-b", SOURCE)))
        await wait_for_primaries(client, "shard-a", "shard-b")
        async with AllocationClient(one.address, auth=KeyedAuth(KEYS)) as all_of_it:
            assert len([each async for each in all_of_it.moves()]) == 2
        import grpc

        token = KeyedAuth(KEYS).metadata(Claims(capability=Capability.LIST, selector=narrow))
        async with grpc.aio.insecure_channel(one.address.removeprefix("http://")) as channel:
            from broadsheet.wire.allocation_pb2 import ListMovesRequest

            page = await AllocationServiceStub(channel).ListMoves(
                ListMovesRequest(), metadata=tuple(token)
            )
            no_time = ListMovesRequest(since=Timestamp(seconds=1 << 60))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await AllocationServiceStub(channel).ListMoves(no_time, metadata=tuple(token))
        assert [each.shard for each in page.moves] == ["shard-a"]
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith("since: expected a time")


async def test_move_log_is_bounded_and_can_be_switched_off(
    cluster: Cluster, etcd: EtcdClient
) -> None:
    """The leader removes what is more than the bound, a batch of entries later; with a bound of 0 nothing is noted."""
    import broadsheet.allocator.leader.move_log as move_log_module

    prefix = AuxiliaryKeys(cluster.root).moves_prefix
    kept = AllocationPolicy(move_log=MoveLogPolicy(entries_max=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(move_log_module, "PRUNE_ENTRIES", 4)
        async with cluster.member("a", allocation=kept) as one, client_of(one) as client:
            for index in range(6):
                await client.apply(upserts(shard(f"shard-{index}", SOURCE)))
                await wait_for_primaries(client, f"shard-{index}")

            async def is_pruned() -> bool:
                found = await etcd.get_range(prefix, prefix_range_end(prefix))
                return 3 <= len(found.kvs) <= 5

            await eventually(is_pruned)
            assert [each.shard for each in await _moves(one)][-1] == "shard-5"
    cluster.root += "/other"
    off = AllocationPolicy(move_log=MoveLogPolicy(entries_max=0))
    async with cluster.member("a", allocation=off) as one, client_of(one) as client:
        await client.apply(upserts(shard("shard-a", SOURCE)))
        await wait_for_primaries(client, "shard-a")
        assert not await _moves(one)


async def test_shardctl_shards_moves_prints_them(cluster: Cluster) -> None:
    """A table for people, JSON for programs."""
    import asyncio

    async with cluster.member("a") as one, client_of(one) as client:
        await client.apply(upserts(shard("shard-a", SOURCE)))
        await wait_for_primaries(client, "shard-a")

        def shardctl(*arguments: str) -> str:
            command = ["shards", "moves", *arguments, "--address", one.address]
            result = CliRunner().invoke(main, command, catch_exceptions=False)
            assert result.exit_code == 0, result.output
            return result.output

        table = await asyncio.to_thread(shardctl, "shard-a", "--since", "1h")
        assert table.splitlines()[0].split() == [
            "TIME",
            "SHARD",
            "MOVE",
            "MEMBER",
            "SLOT",
            "REASON",
            "PLAN",
            "ACTOR",
        ]
        assert table.splitlines()[1].split()[1:] == ["shard-a", "assign", ONE, "0", "uncovered"]
        (move,) = json.loads(await asyncio.to_thread(shardctl, "-o", "json"))["moves"]
        assert (move["shard"], move["kind"], move["slot"]) == ("shard-a", "MOVE_KIND_ASSIGN", 0)


def test_actor_is_what_a_client_says_or_its_address() -> None:
    """Printable, and no longer than a log line bears."""
    assert actor_of([(ACTOR, "maria@here")], "ipv4:10.0.0.1:5") == "maria@here"
    assert actor_of([("other", "x")], "ipv4:10.0.0.1:5") == "ipv4:10.0.0.1:5"
    assert actor_of([(ACTOR, "a\nb" * 100)], "")[:4] == "a?ba"
    assert len(actor_of([(ACTOR, "a" * 1000)], "")) == 128
