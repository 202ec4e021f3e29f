"""The table from keys to shards as a member serves it, and a client in another language that asks by key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from broadsheet.consumer.client import ElasticClient, ShardClient
from broadsheet.consumer.member.service import Service
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.partitioning import fnv1a_32
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.key_range import GROUPS, group_of
from broadsheet.wire.keys_pb2 import (
    GetKeyTableRequest,
    KeyRule,
    KeyTable,
    WatchKeyTableRequest,
    WatchKeyTableResponse,
)
from broadsheet.wire.keys_pb2_grpc import KeyServiceStub
from broadsheet.wire.labels import label_set, selector
from tests.support.eventually import eventually
from tests.support.key_clients import CLIENTS, key_client, primaries_of
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.node_tools import find_node_tools
from tests.support.recorded_tally import create_logs, recorded
from tests.support.splitting import CHILD, KEYS as SPLIT_KEYS, PARENT, SOURCE, application, spec
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.etcd

JOURNALS = ("keys/part-000", "keys/part-001")
SHARDS = ("keys-000", "keys-001")
KEYS = [f"N{number}" for number in range(10)]
SECONDS = 300.0
HALF = GROUPS // 2


@asynccontextmanager
async def _stub(
    address: str,
) -> AsyncIterator[Any]:  # grpc.aio returns another call than the stub says
    async with grpc.aio.insecure_channel(address.partition("://")[2]) as channel:
        yield KeyServiceStub(channel)


async def _primaries(client: ShardClient, count: int) -> bool:
    """Tell whether so many members are primaries."""
    shards = (await client.list()).shards
    return len({each.route.endpoints[each.route.primary] for each in shards}) == count


async def _next_table(responses: AsyncIterator[WatchKeyTableResponse]) -> KeyTable:
    async for response in responses:
        if response.HasField("table"):
            return response.table
    raise AssertionError("the watch ended")


async def _is_not_sent_again(stub: Any, request: GetKeyTableRequest) -> bool:
    """Report whether a watch that knows the present table begins without it."""
    table = (await stub.GetKeyTable(request)).table
    known = WatchKeyTableRequest(
        rule=request.rule, known_version=table.version, known_cluster_id=table.cluster_id
    )
    call = stub.WatchKeyTable(known, timeout=SECONDS)
    first = await anext(aiter(call))
    call.cancel()
    return not first.HasField("table")


async def test_key_table_is_watched_through_a_change_of_the_primary(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A table comes at once, then when a row changes and not for statuses; a caller that has it is not sent it again.
    A question that no table answers is refused with its field.
    """
    await create_journals(journals, *JOURNALS)
    request = GetKeyTableRequest(rule=KeyRule.KEY_RULE_MODULO)
    async with cluster.member("a") as a, client_of(a) as client, _stub(a.address) as stub:
        await client.apply(upserts(*map(shard, SHARDS, JOURNALS)))
        await wait_for_primaries(client, *SHARDS)
        got = (await stub.GetKeyTable(request)).table
        with pytest.raises(grpc.aio.AioRpcError, match="rule: expected modulo or rendezvous"):
            await stub.GetKeyTable(GetKeyTableRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="selector: expected shards that have keys"):
            await stub.GetKeyTable(GetKeyTableRequest(selector=selector(label_set(("id", "none")))))
        async with cluster.member("b") as b, _stub(b.address) as other:
            await eventually(partial(_primaries, client, 2))
            call = other.WatchKeyTable(WatchKeyTableRequest(rule=request.rule), timeout=SECONDS)
            responses = aiter(call)
            both = await _next_table(responses)
            while len({each.primary for each in both.ranges}) != 2:
                both = await _next_table(responses)
            # Shards still change after their primaries are known, in what no table shows: until then it may come again.
            await eventually(partial(_is_not_sent_again, other, request))
            a.stop()
            moved = await _next_table(responses)
            while {each.primary for each in moved.ranges} != {"zone-a#member-b"}:
                moved = await _next_table(responses)
            call.cancel()

    assert [(each.journal, each.shard, each.primary) for each in got.ranges] == [
        (0, "keys-000", "zone-a#member-a"),
        (1, "keys-001", "zone-a#member-a"),
    ]
    assert list(got.journals) == list(JOURNALS)
    assert moved.version > both.version > got.version
    assert [each.shard for each in moved.ranges] == list(SHARDS)


async def test_client_in_javascript_asks_the_primary_of_each_key_through_a_fail_over(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """The program knows one member's address. That member ends: the client goes on with those that the table named."""
    await create_journals(journals, *JOURNALS)
    await create_logs(journals, *SHARDS)

    def member(name: str) -> AbstractAsyncContextManager[Service]:
        directory = str(tmp_path / name)
        return cluster.member(name, application=application(), state_dir=directory, admin_port=0)

    async with member("a") as a, client_of(a) as client:
        specs = [
            recorded(shard(*each), cluster.root) for each in zip(SHARDS, JOURNALS, strict=True)
        ]
        await client.apply(upserts(*specs))
        await wait_for_primaries(client, *SHARDS)
        command = [str(find_node_tools().node), "ask.mjs", a.admin_address, "rule=modulo"]
        async with key_client(command, directory=CLIENTS / "js") as asking:
            before = await primaries_of(asking, KEYS)
            async with member("b"):
                # From then on the table names both, and the client knows whom to ask next.
                await eventually(partial(_primaries, client, 2))
                a.stop()
                after = await primaries_of(asking, KEYS)

    shards = {key: SHARDS[fnv1a_32(key.encode()) % 2] for key in KEYS}
    assert {key: one for key, (one, _) in before.items()} == shards
    assert {key: one for key, (one, _) in after.items()} == shards
    assert {member for _, member in before.values()} == {"zone-a#member-a"}
    assert "zone-a#member-b" in {member for _, member in after.values()}


async def test_client_whose_table_is_of_before_a_split_gets_no_answer_of_the_wrong_shard(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Its watch stands still while a shard is split. The shard that gave the key away still serves, and refuses it; the
    client waits, and gets the state from the other one when its watch goes on.
    """
    await create_logs(journals, PARENT)
    key, missing = next(each for each in SPLIT_KEYS if _group(each) >= HALF), "absent"
    async with (
        cluster.member(
            "a", application=application(), state_dir=str(tmp_path), admin_port=0
        ) as member,
        client_of(member) as client,
        ElasticClient(member.address) as elastic,
        TcpProxy(member.admin_address.partition("://")[2]) as proxy,
    ):
        await client.apply(upserts(spec(cluster)))
        end = await Producer(journals).publish(SOURCE, SPLIT_KEYS)
        await wait_for_primaries(client, PARENT)
        await client.wait_read_through(PARENT, {SOURCE: end}, timeout_seconds=60)
        command = [str(find_node_tools().node), "ask.mjs", f"http://{proxy.endpoint}"]
        async with key_client(command, directory=CLIENTS / "js") as asking:
            before = await asking.ask(key)
            assert (await asking.ask(missing))["rows"] == []
            proxy.freeze()
            await elastic.split(PARENT, journals, at_group=HALF)
            await wait_for_primaries(client, CHILD)
            async with TaskGroup() as group:
                waiting = group.start_soon(asking.ask(key), name="ask")
                for _ in range(3):
                    status, told = await _get_keys(member, PARENT, key)
                    assert (status, told["code"]) == (409, "ABORTED"), told
                assert not waiting.done()
                proxy.thaw()
                after = await waiting

    assert (before["shard"], before["rows"]) == (PARENT, after["rows"])
    assert after["shard"] == CHILD


def _group(key: str) -> int:
    return group_of(b"\x01" + key.encode() + b"\x00\x00")


async def _get_keys(member: Service, shard_id: str, key: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(base_url=member.admin_address) as http,
        http.post("/v1/keyed/get_keys", json={"shard": shard_id, "keys": [[key]]}) as answer,
    ):
        return answer.status, await answer.json()
