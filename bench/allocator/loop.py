"""The real loop over a real etcd: a rolling replacement of every member, and a cold start.

Beside each figure, in the same run: the same number of key writes through the bare client, in full transactions.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

import grpc.aio

from bench.allocator.cluster import Cluster, put_all, replicas_catching_up
from bench.report import Params, emit
from broadsheet.allocator.etcd import rpc_pb2
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.etcd.watch import WATCH_PATH
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import Put, prefix_range_end
from broadsheet.allocator.policy import AllocationPolicy, TransitionPolicy
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.runtime.interpreter import serve_only
from broadsheet.runtime.task_group import TaskGroup

ITEMS = int(os.environ.get("BENCH_LOOP_ITEMS", "10000"))
REPLICAS = 3
MEMBERS = 25
BLOCK = 5
"""Members replaced at a time."""
LIMIT_SHARE = 1.25
"""Limits have so much room over a fair share."""
COLD_MEMBERS = 10
SETTLE_SECONDS = 600.0
"""Balance towards newcomers waits for the end of the rollout."""


@dataclass
class Writes:
    """The writes of a run below its root."""

    kinds: Counter[str] = field(default_factory=Counter)
    """Changes of assignments' keys: added, status, rekeyed (the put of a new slot), deleted (of an old one, too)."""
    revision: int = 0
    """Of the last one."""
    grown: asyncio.Event = field(default_factory=asyncio.Event)


def run(bench: str) -> None:
    """Measure and print `rolling_wall_s`, `rolling_key_writes` by kind, `rolling_revisions` and `cold_start_s`."""
    # As members do: `shardctl serve`, and tasks of a ShardCluster.
    serve_only()
    with EmbeddedEtcdProcess() as server:
        asyncio.run(_cold_start(bench, server.endpoint))
    with EmbeddedEtcdProcess() as server:
        asyncio.run(_rolling(bench, server.endpoint))


async def _cold_start(bench: str, endpoint: str) -> None:
    async with EtcdClient(EtcdConfig(endpoints=(endpoint,))) as etcd:
        cluster = Cluster(
            etcd, _root(), AllocationPolicy(transition=TransitionPolicy(settle_seconds=0.0))
        )
        await cluster.put_shards(ITEMS, replicas=1)
        members = _members("cold", COLD_MEMBERS)
        await cluster.add(members, limit=int(ITEMS / COLD_MEMBERS * LIMIT_SHARE))
        began = time.perf_counter()
        async with cluster.running():
            await cluster.until(lambda: len(cluster.held) >= ITEMS)
            seconds = time.perf_counter() - began
        bound = await _bare_writes(etcd, ITEMS)
    params: Params = {"items": ITEMS, "members": COLD_MEMBERS, "replicas": 1}
    emit(bench, "cold_start_s", seconds, "s", **params)
    emit(bench, "cold_start_s_limit", bound, "s", limit="the same puts, bare client", **params)


async def _rolling(bench: str, endpoint: str) -> None:
    policy = AllocationPolicy(transition=TransitionPolicy(settle_seconds=SETTLE_SECONDS))
    root = _root()
    async with EtcdClient(EtcdConfig(endpoints=(endpoint,))) as etcd:
        cluster = Cluster(etcd, root, policy)
        await cluster.put_shards(ITEMS, replicas=REPLICAS)
        limit = int(ITEMS * REPLICAS / MEMBERS * LIMIT_SHARE)
        old, new = _members("old", MEMBERS), _members("new", MEMBERS)
        await cluster.add(old, limit=limit)
        async with replicas_catching_up(endpoint, root), cluster.running():
            await cluster.until(lambda: _is_settled(cluster))
            first_revision = cluster.key_space.header.revision
            writes, before = Writes(), _counters(cluster)
            async with TaskGroup() as group:
                group.start_soon(_count(endpoint, root, first_revision, writes), name="count")
                began, cpu_began = time.perf_counter(), time.process_time()
                for at in range(0, MEMBERS, BLOCK):
                    leaving = old[at : at + BLOCK]
                    await cluster.add(new[at : at + BLOCK], limit=limit)
                    await cluster.mark_exiting(leaving, limit=limit)
                    await cluster.until(partial(_is_drained, cluster, leaving))
                    await cluster.revoke(leaving)
                await cluster.until(lambda: _is_settled(cluster))
                seconds = time.perf_counter() - began
                cpu_seconds = time.process_time() - cpu_began
                revision = cluster.key_space.header.revision
                while writes.revision < revision:
                    await writes.grown.wait()
                    writes.grown.clear()
                group.stop()
            done = {k: v - before[k] for k, v in _counters(cluster).items()}
        bound = await _bare_writes(etcd, writes.kinds.total())
    params: Params = {"items": ITEMS, "members": MEMBERS, "replicas": REPLICAS, "mode": "up-first"}
    emit(bench, "rolling_wall_s", seconds, "s", **params)
    emit(bench, "rolling_wall_s_limit", bound, "s", limit="the same puts, bare client", **params)
    emit(bench, "rolling_cpu_s", cpu_seconds, "s", **params)
    emit(bench, "rolling_key_writes", writes.kinds.total(), "1", **params)
    for kind, count in sorted(writes.kinds.items()):
        emit(bench, f"rolling_key_writes_{kind}", count, "1", **params)
    emit(
        bench,
        "rolling_key_writes_limit",
        ITEMS * (REPLICAS * 3 + 2),
        "1",
        limit="add, status and delete of each replica; put and delete of each shard's next primary",
        **params,
    )
    emit(bench, "rolling_revisions", revision - first_revision, "1", **params)
    for name, value in done.items():
        emit(bench, f"rolling_{name}", value, "1", **params)


def _root() -> str:
    return f"/bench/{uuid4().hex[:8]}"


def _members(name: str, count: int) -> list[MemberId]:
    """Return members of two zones, three to two."""
    return [
        MemberId("zone-a" if number % 5 < 3 else "zone-b", f"{name}-{number:02}")
        for number in range(count)
    ]


def _is_settled(cluster: Cluster) -> bool:
    return len(cluster.held) == ITEMS * REPLICAS and not cluster.behind


def _is_drained(cluster: Cluster, leaving: list[MemberId]) -> bool:
    return len(cluster.held) == ITEMS * REPLICAS and set(leaving).isdisjoint(cluster.held.values())


def _counters(cluster: Cluster) -> dict[str, float]:
    names = ("assignment_added", "assignment_packed", "assignment_removed", "converge")
    registry = cluster.session.metrics.registry
    values = {n: registry.get_sample_value(f"gazette_allocator_{n}_total") for n in names}
    return {name.removeprefix("assignment_"): value or 0.0 for name, value in values.items()}


async def _count(endpoint: str, root: str, after: int, writes: Writes) -> None:
    """Count changes below a root. Bare, for our own client's decoding would take time from what is measured."""
    prefix, assignments = f"{root}/".encode(), f"{root}/assign/".encode()
    create = rpc_pb2.WatchCreateRequest(
        key=prefix, range_end=prefix_range_end(prefix), start_revision=after + 1
    )
    async with grpc.aio.insecure_channel(endpoint) as channel:
        watch: grpc.aio.StreamStreamMultiCallable[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse] = (
            channel.stream_stream(
                WATCH_PATH,
                request_serializer=rpc_pb2.WatchRequest.SerializeToString,
                response_deserializer=rpc_pb2.WatchResponse.FromString,
            )
        )
        call = watch()
        await call.write(rpc_pb2.WatchRequest(create_request=create))
        async for response in call:
            if response.events:
                writes.kinds.update(
                    _kind(event)
                    for event in response.events
                    if event.kv.key.startswith(assignments)
                )
                writes.revision = response.events[-1].kv.mod_revision
                writes.grown.set()


def _kind(event: rpc_pb2.Event) -> str:
    if event.type == rpc_pb2.Event.DELETE:
        return "deleted"
    if event.kv.version > 1:
        return "status"
    return "rekeyed" if event.kv.value else "added"


async def _bare_writes(etcd: EtcdClient, count: int) -> float:
    puts = [Put(f"/bare/{number:08}".encode(), b"v" * 4) for number in range(count)]
    began = time.perf_counter()
    await put_all(etcd, puts)
    return time.perf_counter() - began
