"""The example's client in Go asks by key through a fail-over: `make nightly-clients`, where there is Go."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from broadsheet.consumer.client import ElasticClient, ShardClient
from broadsheet.consumer.member.service import Service
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.partitioning import fnv1a_32
from broadsheet.wire.key_range import GROUPS, group_of
from tests.support.eventually import eventually
from tests.support.key_clients import CLIENTS, key_client, primaries_of
from tests.support.members import (
    Cluster,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs, recorded
from tests.support.splitting import CHILD, PARENT, application, spec
from tests.support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

JOURNALS = ("keys/part-000", "keys/part-001")
SHARDS = ("keys-000", "keys-001")
KEYS = [f"N{number}" for number in range(10)]


async def test_client_in_go_asks_the_primary_of_each_key_through_a_fail_over(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """The program knows one member's address. That member ends: the client goes on with those that the table named."""
    program = tmp_path / "ask"
    build = ["go", "build", "-o", str(program), "."]
    await asyncio.to_thread(subprocess.run, build, cwd=CLIENTS / "go", check=True)
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
        command = [str(program), a.admin_address, "rule=modulo"]
        async with key_client(command, directory=tmp_path) as asking:
            before = await primaries_of(asking, KEYS)
            async with member("b"):
                a.stop()
                after = await primaries_of(asking, KEYS)

    shards = {key: SHARDS[fnv1a_32(key.encode()) % 2] for key in KEYS}
    assert {key: one for key, (one, _) in before.items()} == shards
    assert {key: one for key, (one, _) in after.items()} == shards
    assert "zone-a#member-b" in {member for _, member in after.values()}


async def test_client_in_go_leaves_a_member_that_takes_its_connection_and_answers_nothing(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """The member that it watches ends. The next address accepts connections and never answers; after 30 seconds the
    client goes on to another, which tells it of the split.
    """
    program = tmp_path / "ask"
    build = ["go", "build", "-o", str(program), "."]
    await asyncio.to_thread(subprocess.run, build, cwd=CLIENTS / "go", check=True)
    await create_logs(journals, PARENT)
    key = next(each for each in KEYS if _group(each) >= GROUPS // 2)

    def member(name: str) -> AbstractAsyncContextManager[Service]:
        directory = str(tmp_path / name)
        return cluster.member(name, application=application(), state_dir=directory, admin_port=0)

    async with member("a") as a, client_of(a) as client:
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        async with (
            _silent_server() as silent,
            TcpProxy(a.admin_address.partition("://")[2]) as proxy,
            key_client([str(program), f"http://{proxy.endpoint}"], directory=tmp_path) as asking,
        ):
            await asking.ask(key)
            await proxy.cut()
            proxy.lead_to(silent)
            await proxy.heal()
            async with ElasticClient(a.address) as elastic:
                # What it learns now it learns from the member itself, of which the table told.
                await _split(elastic, client, journals)
                assert (await asking.ask(key))["shard"] == CHILD
                await elastic.merge(PARENT, CHILD)
                await eventually(partial(_is_alone, client))
                assert (await asking.ask(key))["shard"] == PARENT
            async with member("b") as b, client_of(b) as other, ElasticClient(b.address) as elastic:
                a.stop()
                await wait_for_primaries(other, PARENT)
                await eventually(lambda: proxy.connections >= 2)
                await _split(elastic, other, journals)
                answer = await asking.ask(key)

    assert answer["shard"] == CHILD


@asynccontextmanager
async def _silent_server() -> AsyncIterator[str]:
    """Yield the address of one that takes connections, reads what comes, and answers nothing."""

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    try:
        yield "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


async def _split(elastic: ElasticClient, client: ShardClient, journals: JournalClient) -> None:
    await elastic.split(PARENT, journals, at_group=GROUPS // 2)
    await wait_for_primaries(client, CHILD)

    async def over() -> bool:
        return not await elastic.splits()

    await eventually(over)


async def _is_alone(client: ShardClient) -> bool:
    return len((await client.list()).shards) == 1


def _group(key: str) -> int:
    return group_of(b"\x01" + key.encode() + b"\x00\x00")
