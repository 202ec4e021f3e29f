"""The stream of shards' rows: what it shows, that it goes on, and to whom it shows what."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest

from broadsheet.consumer.client import ShardClient, SyncShardClient
from broadsheet.consumer.client.shard_client import ShardTable
from broadsheet.runtime.errors import EndpointError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import BearerAuth, Capability, Claims, KeyedAuth
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus
from broadsheet.wire.shard_pb2_grpc import add_ShardServicer_to_server
from broadsheet.wire.watch_pb2 import WatchShardsRequest, WatchShardsResponse
from broadsheet.wire.watch_pb2_grpc import WatchServiceStub
from tests.support.members import (
    Cluster,
    MemberWithoutWatch,
    client_of,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
KEY = b64encode(b"a key of the test, thirty-two bytes").decode()
SECONDS = 300.0
"""Longest wait for a state, on a busy machine."""


async def _until(tables: AsyncIterator[ShardTable], shows: Callable[[ShardTable], bool]) -> None:
    """Follow a watch until it shows what it must."""
    async with asyncio.timeout(SECONDS):
        async for table in tables:
            if shows(table):
                return


def _is_primary(table: ShardTable, shard_id: str) -> bool:
    listed = table.get(shard_id)
    return listed is not None and [each.code for each in listed.status] == [ReplicaStatus.PRIMARY]


async def test_watch_shows_what_list_shows_after_each_change(cluster: Cluster) -> None:
    """Shards come, become primary, are changed and go; an idle watch says the same as List."""
    async with cluster.member("a") as member, client_of(member) as client:
        async with aclosing(client.watch()) as tables:
            assert not await anext(tables)
            await client.apply(upserts(shard("shard-1", SOURCE), shard("shard-2", SOURCE)))
            await _until(
                tables,
                lambda table: all(_is_primary(table, each) for each in ("shard-1", "shard-2")),
            )
            await client.apply([ApplyRequest.Change(delete="shard-1", expect_mod_revision=-1)])
            await client.apply(upserts(shard("shard-2", SOURCE, team="a"), expect=-1))
            shown: dict[str, bytes] = {}

            def settled(table: ShardTable) -> bool:
                shown.clear()
                shown.update(
                    (shard_id, row.SerializeToString(deterministic=True))
                    for shard_id, row in table.items()
                )
                return "shard-1" not in table and any(table["shard-2"].spec.labels.labels)

            await _until(tables, settled)
        listed = (await client.list()).shards
        assert shown == {row.spec.id: row.SerializeToString(deterministic=True) for row in listed}


async def test_watch_goes_on_at_another_member(cluster: Cluster) -> None:
    """The watched member dies. The table stays, and a change made meanwhile comes by the next one."""
    async with cluster.member("a") as a, cluster.member("b") as b, client_of(b) as other:
        await other.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(other, "shard-1")
        async with (
            ShardClient(f"{a.address},{b.address}") as client,
            aclosing(client.watch(selector(label_set(("id", "shard-1"))))) as tables,
        ):
            table = await anext(tables)
            before = table.revision
            assert client.address == a.address
            a.force_stop()
            await other.apply(upserts(shard("shard-1", SOURCE, team="a"), expect=-1))
            await _until(tables, lambda table: any(table["shard-1"].spec.labels.labels))
            assert table.revision > before
            assert client.address == b.address


async def test_member_without_watch_is_listed_again_and_again(cluster: Cluster) -> None:
    """Shards come, change and go as in a watch; a state that is the same is not told twice."""
    async with cluster.member("a") as member, client_of(member) as client:
        server = grpc.aio.server()
        # gRPC answers the methods that it lacks.
        elder = MemberWithoutWatch(client)  # type: ignore[abstract]
        add_ShardServicer_to_server(elder, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with (
                ShardClient(f"http://127.0.0.1:{port}") as other,
                aclosing(other.watch(poll_seconds=0.01)) as tables,
            ):
                assert not await anext(tables)
                await client.apply(upserts(shard("shard-1", SOURCE), shard("shard-2", SOURCE)))
                await _until(
                    tables,
                    lambda table: all(_is_primary(table, each) for each in ("shard-1", "shard-2")),
                )
                await client.apply(upserts(shard("shard-2", SOURCE, team="a"), expect=-1))
                await _until(tables, lambda table: any(table["shard-2"].spec.labels.labels))
                before = elder.lists
                await client.apply([ApplyRequest.Change(delete="shard-1", expect_mod_revision=-1)])
                told: list[frozenset[str]] = []

                def is_gone(table: ShardTable) -> bool:
                    told.append(table.changed)
                    return "shard-1" not in table

                await _until(tables, is_gone)
                assert elder.lists > before
                assert all(told)
        finally:
            await server.stop(None)


async def test_older_list_does_not_undo_a_table(cluster: Cluster) -> None:
    """Lists come from one member or another, and one of them may lag behind."""
    async with cluster.member("a") as member, client_of(member) as client:
        earlier = await client.list()
        await client.apply(upserts(shard("shard-1", SOURCE)))
        later = await client.list()
        table = ShardTable()

        assert table.apply(table.changes_to(later))
        assert not table.apply(table.changes_to(earlier))
        assert (set(table), table.revision) == ({"shard-1"}, later.header.etcd.revision)
        assert not table.apply(table.changes_to(later))


async def test_watch_ends_if_nobody_answers(cluster: Cluster) -> None:
    """All members are gone: the caller is told, and which address was asked."""
    async with (
        cluster.member("a") as member,
        client_of(member) as client,
        aclosing(client.watch(unreachable_seconds=0.5)) as tables,
    ):
        await anext(tables)
        member.force_stop()
        with pytest.raises(EndpointError, match=r"no member answered for 0\.5 s"):
            async with asyncio.timeout(SECONDS):
                while True:
                    await anext(tables)


async def test_label_scoped_token_never_learns_of_other_shards(cluster: Cluster) -> None:
    """A shard that leaves the caller's labels is removed; the id of one that never had them is not told."""
    cluster.settings["auth_keys"] = KEY
    keys = KeyedAuth(KEY)
    token = keys.sign(
        Claims(capability=Capability.LIST, selector=selector(label_set(("team", "a"))))
    )
    async with (
        cluster.member("a") as member,
        client_of(member, keys) as admin,
        client_of(member, BearerAuth(token)) as team_a,
        aclosing(team_a.watch()) as tables,
    ):
        assert not await anext(tables)
        seen: set[str] = set()
        await admin.apply(
            upserts(shard("secret", SOURCE, team="b"), shard("shard-a", SOURCE, team="a"))
        )

        def shows(wanted: set[str]) -> Callable[[ShardTable], bool]:
            def matches(table: ShardTable) -> bool:
                seen.update(table.changed)
                return set(table) == wanted

            return matches

        await _until(tables, shows({"shard-a"}))
        await admin.apply([ApplyRequest.Change(delete="secret", expect_mod_revision=-1)])
        await admin.apply(upserts(shard("shard-a", SOURCE, team="b"), expect=-1))
        await _until(tables, shows(set()))
        assert seen == {"shard-a"}


@asynccontextmanager
async def _responses(
    address: str, request: WatchShardsRequest
) -> AsyncIterator[AsyncIterator[WatchShardsResponse]]:
    async with grpc.aio.insecure_channel(address.removeprefix("http://")) as channel:
        call = WatchServiceStub(channel).WatchShards(request, timeout=SECONDS)
        yield aiter(call)
        call.cancel()


async def test_resumed_watch_gets_the_table_anew_only_if_it_must(cluster: Cluster) -> None:
    """From a known revision come changes alone. A revision of before the member's time, and another cluster's, are of
    no use.
    """
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        async with _responses(member.address, WatchShardsRequest()) as responses:
            first = await anext(responses)
        assert first.reset
        assert [row.spec.id for row in first.shards] == ["shard-1"]
        etcd = first.header.etcd

        known = WatchShardsRequest(resume_revision=etcd.revision, resume_cluster_id=etcd.cluster_id)
        await client.apply(upserts(shard("shard-2", SOURCE)))
        async with _responses(member.address, known) as responses:
            resumed = await anext(responses)
        assert not resumed.reset
        assert [row.spec.id for row in resumed.shards] == ["shard-2"]

        for request in (
            WatchShardsRequest(resume_revision=1, resume_cluster_id=etcd.cluster_id),
            WatchShardsRequest(resume_revision=etcd.revision, resume_cluster_id=1),
        ):
            async with _responses(member.address, request) as responses:
                again = await anext(responses)
            assert again.reset
            assert [row.spec.id for row in again.shards] == ["shard-1", "shard-2"]


async def test_watch_refuses_a_revision_below_zero(cluster: Cluster) -> None:
    """The field is named."""
    async with cluster.member("a") as member:
        request = WatchShardsRequest(resume_revision=-1)
        async with _responses(member.address, request) as responses:
            with pytest.raises(grpc.aio.AioRpcError, match=r"resume_revision: expected 0 or"):
                await anext(responses)


async def test_watches_share_equal_selectors_and_bound_different_ones(cluster: Cluster) -> None:
    """Each change was prepared for each watch, a tenth of a second of the loop for a long selector: 200 of them cost a
    member half a minute for one change. Selectors are prepared once; what differs is bounded, what is equal is shared.
    """

    def long_selector(number: int) -> WatchShardsRequest:
        labels = ((f"{number}-{each}", "v" * 1_000) for each in range(1_500))
        return WatchShardsRequest(selector=selector(exclude=label_set(*labels)))

    async with (
        cluster.member("a") as member,
        grpc.aio.insecure_channel(member.address.removeprefix("http://")) as channel,
        AsyncExitStack() as watches,
    ):
        # `Any`: generated stubs have no types for grpc.aio.
        stub: Any = WatchServiceStub(channel)

        async def begin(request: WatchShardsRequest) -> grpc.StatusCode | None:
            call = stub.WatchShards(request)
            watches.callback(call.cancel)
            try:
                await call.read()
            except grpc.aio.AioRpcError as error:
                return error.code()
            return None

        equal = long_selector(0)
        assert [await begin(equal) for _ in range(6)] == [None] * 6
        assert await begin(long_selector(1)) is None
        assert await begin(long_selector(2)) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_thread_without_a_loop_watches(cluster: Cluster) -> None:
    """A driver's thread iterates; the next change comes to it, and it may leave at any time."""
    async with cluster.member("a") as member, client_of(member) as client:

        def follow() -> list[set[str]]:
            shown = []
            with SyncShardClient(member.address) as blocking:
                for table in blocking.watch():
                    shown.append(set(table))
                    if table:
                        break
            return shown

        async with TaskGroup() as group:
            following = group.start_soon(asyncio.to_thread(follow), name="follow")
            await client.apply(upserts(shard("shard-1", SOURCE)))
            async with asyncio.timeout(SECONDS):
                assert (await following)[-1] == {"shard-1"}
