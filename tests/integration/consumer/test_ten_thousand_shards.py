"""Ten thousand shards at a real member: applied, listed and watched, also beside watchers that take nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest

from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.client.shard_client import ShardTable
from broadsheet.consumer.rpc.watch_api import SHARED_TABLES_MAX, SharedTable
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec
from broadsheet.wire.watch_pb2 import WatchShardsRequest, WatchShardsResponse
from broadsheet.wire.watch_pb2_grpc import WatchServiceStub
from tests.support.members import Cluster, client_of, shard, upserts

pytestmark = pytest.mark.etcd

SHARDS = 10_000
STALLED = SHARED_TABLES_MAX + 4
CHANGES = 30
SECONDS = 240.0
"""Longest wait for a state, on a busy machine."""
NARROW = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 << 10),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
]
"""Options of a client whose gRPC takes little before it is asked for."""
CHANGED = "shard-00000"


def _spec(number: int, step: str = "none") -> ShardSpec:
    """A shard that nobody runs, because what counts here is the table."""
    spec = shard(f"shard-{number:05d}", f"test/source-{number:05d}", step=step)
    spec.disable = True
    return spec


@asynccontextmanager
async def _stalling(address: str) -> AsyncIterator[Any]:
    """Yield the call of a watcher that has taken the first response, and no other."""
    async with grpc.aio.insecure_channel(address.removeprefix("http://"), NARROW) as channel:
        call: Any = WatchServiceStub(channel).WatchShards(WatchShardsRequest(), timeout=SECONDS)
        first: WatchShardsResponse = await call.read()
        assert (first.reset, first.more) == (True, True)
        yield call, first
        call.cancel()


async def _taken(call: Any, first: WatchShardsResponse, last: str) -> tuple[ShardTable, int]:
    """Take what is left until the table shows the last change; return it, and how often the shard came in it."""
    table, rows, response = ShardTable(), 0, first
    while True:
        rows += sum(1 for row in response.shards if row.spec.id == CHANGED)
        table.apply(response)
        if table.revision and _step(table) == last:
            return table, rows
        response = await call.read()


def _step(table: ShardTable) -> str:
    labels = table[CHANGED].spec.labels.labels
    return next((label.value for label in labels if label.name == "step"), "")


async def test_ten_thousand_shards_are_applied_listed_and_watched(cluster: Cluster) -> None:
    """Plan: apply all, list and watch them. More watchers than share their tables stall within the first rows, each at
    another revision, while a shard changes again and again: List and a watcher that reads are served. Those that
    stalled then get the table and the last change, and not each state between, because nothing waits for them.
    """
    async with AsyncExitStack() as stack:
        member = await stack.enter_async_context(cluster.member("a"))
        client = await stack.enter_async_context(client_of(member))
        await client.apply(upserts(*map(_spec, range(SHARDS))))
        listed = (await client.list()).shards
        assert [row.spec.id for row in listed] == [f"shard-{n:05d}" for n in range(SHARDS)]

        tables = await stack.enter_async_context(aclosing(client.watch()))
        async with asyncio.timeout(SECONDS):
            table = await anext(tables)
            assert len(table) == SHARDS
            stalled = []
            for number in range(STALLED + CHANGES):
                if number < STALLED:
                    stalled.append(await stack.enter_async_context(_stalling(member.address)))
                await _change(client, number)
                while _step(table) != str(number):
                    assert await anext(tables) is table
            only = await client.list(selector(label_set(("step", str(STALLED + CHANGES - 1)))))
            assert [row.spec.id for row in only.shards] == [CHANGED]

            kept = sum(isinstance(each, SharedTable) for each in gc.get_objects())
            assert kept <= SHARED_TABLES_MAX
            for call, first in stalled[:: STALLED // 4]:
                got, rows = await _taken(call, first, str(STALLED + CHANGES - 1))
                assert len(got) == SHARDS
                # With the table, and with the change; a change that was on its way may come, too.
                assert rows <= 3


async def _change(client: ShardClient, number: int) -> None:
    spec = _spec(0, step=str(number))
    await client.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)])
