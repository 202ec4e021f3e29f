"""A worker's watch: route changes come by themselves, one thread does it, and it ends when nobody asks any more."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing.connection import Connection

import grpc
import pytest

from broadsheet.spark_bridge.routing.channels import this_worker
from broadsheet.spark_bridge.routing.route_watch import RouteWatch, keep_watch
from broadsheet.spark_bridge.routing.routes import RouteTable, ShardRoute
from broadsheet.spark_bridge.task_resolver import TaskResolver
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import ApplyRequest, StatRequest
from broadsheet.wire.shard_pb2_grpc import add_ShardServicer_to_server
from tests.support.asked_tally import TOTAL, TallyStub
from tests.support.eventually import eventually
from tests.support.members import MemberWithoutWatch, client_of, shard, upserts, wait_for_primaries
from tests.support.resolving import JOURNALS, AskedCluster, ask, resolver_of

pytestmark = pytest.mark.etcd

SHARD, OTHER = "ask-0", "ask-1"
SECONDS = 300.0
"""Longest wait for what a busy machine may take long for."""


@pytest.fixture(autouse=True)
def _old_enough() -> None:
    """Let the worker be one that has made calls for a while."""
    this_worker().started_monotonic_seconds = float("-inf")


def watch_threads() -> list[threading.Thread]:
    """Return the threads of this process that watch."""
    return [thread for thread in threading.enumerate() if thread.name == "route watch"]


def table_of(resolver: TaskResolver) -> RouteTable:
    """Return what this process knows of the resolver's routes."""
    return this_worker().routes(resolver.plan.cluster)


def believed(resolver: TaskResolver, shard_id: str = SHARD) -> ShardRoute | None:
    """Return the route that a call would take now."""
    return table_of(resolver).believed(shard_id, time.monotonic())


async def _watching(resolver: TaskResolver) -> RouteWatch:
    """Ask, which starts the watch."""
    assert await ask(resolver, SHARD) == 0
    watch = this_worker().watch
    assert isinstance(watch, RouteWatch)
    return watch


async def test_move_is_known_without_a_call(cluster: AskedCluster) -> None:
    """The primary leaves in good order, and so does the member that is watched, if it is the same. Nobody asks
    meanwhile, so that no refusal can tell; then the first attempt is at the new primary.
    """
    async with cluster.member("a") as first:
        async with client_of(first) as client:
            await client.apply(upserts(shard(SHARD, JOURNALS[0]), shard(OTHER, JOURNALS[1])))
            await wait_for_primaries(client, SHARD, OTHER)
        async with cluster.member("b") as second:
            resolver = await resolver_of(first, second)
            watch = await _watching(resolver)
            first.stop()

            def moved() -> bool:
                # As a call that goes on does: without a use, the watch ends on a slow machine.
                keep_watch(resolver.plan, this_worker())
                found = [believed(resolver, each) for each in (SHARD, OTHER)]
                return all(each and each.endpoint == second.address for each in found)

            await eventually(moved, timeout_seconds=SECONDS)
            assert await ask(resolver, SHARD) == 0
            assert this_worker().watch is watch
            assert len(watch_threads()) == 1


async def test_new_shard_is_removed_and_recreated_under_a_watch(cluster: AskedCluster) -> None:
    """A shard that is deleted is no longer believed, and a shard of its name is found again."""
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard(SHARD, JOURNALS[0]), shard(OTHER, JOURNALS[1])))
        await wait_for_primaries(client, SHARD, OTHER)
        resolver = await resolver_of(member)
        await _watching(resolver)
        await client.apply([ApplyRequest.Change(delete=OTHER, expect_mod_revision=-1)])

        def is_gone() -> bool:
            keep_watch(resolver.plan, this_worker())
            return believed(resolver, OTHER) is None

        await eventually(is_gone, timeout_seconds=SECONDS)
        assert believed(resolver) is not None
        await client.apply(upserts(shard(OTHER, JOURNALS[1])))
        await wait_for_primaries(client, OTHER)
        assert await ask(resolver, OTHER) == 0


async def test_tasks_share_one_watch_and_another_cluster_waits(cluster: AskedCluster) -> None:
    """Each task unpickles a resolver, also one of some shards only. The shards of another selector are asked for by
    List while the watch is used.
    """
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard(SHARD, JOURNALS[0]), shard(OTHER, JOURNALS[1])))
        await wait_for_primaries(client, SHARD, OTHER)
        wanted = selector(label_set(("id", SHARD)))
        resolver = await resolver_of(member, shards=wanted)
        watch = await _watching(resolver)
        for _ in range(3):
            shipped: TaskResolver = pickle.loads(pickle.dumps(resolver))  # noqa: S301 - our own
            await ask(shipped, SHARD)
        everything = await resolver_of(member)
        assert await ask(everything, OTHER) == 0

        assert this_worker().watch is watch
        assert len(watch_threads()) == 1


async def test_unused_watch_ends_and_the_next_call_resumes_it(cluster: AskedCluster) -> None:
    """Its thread and its call are gone, and its connection may become idle; a call starts another watch, which goes on
    from the revision that the routes have.
    """
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard(SHARD, JOURNALS[0])))
        await wait_for_primaries(client, SHARD)
        resolver = await resolver_of(member)
        worker = this_worker()
        worker.watch = first = RouteWatch(resolver.plan, worker, idle_seconds=0.01)

        await eventually(lambda: not first.is_running, timeout_seconds=SECONDS)
        assert watch_threads() == []
        second = await _watching(resolver)
        assert second is not first
        assert second.is_running

        await asyncio.to_thread(worker.close)
        assert watch_threads() == []
        assert worker.channels.endpoints == ()


@asynccontextmanager
async def _without_watch(
    *shards: str, cluster: AskedCluster
) -> AsyncIterator[tuple[str, MemberWithoutWatch]]:
    """Serve a real member's lists, and no WatchShards, as Gazette's members do."""
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(*(shard(each, JOURNALS[0]) for each in shards)))
        await wait_for_primaries(client, *shards)
        server = grpc.aio.server()
        # gRPC answers the methods that it lacks.
        elder = MemberWithoutWatch(client)  # type: ignore[abstract]
        add_ShardServicer_to_server(elder, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"http://127.0.0.1:{port}", elder
        finally:
            await server.stop(None)


async def test_members_without_watch_are_asked_for_lists(cluster: AskedCluster) -> None:
    """The watch gives up, and is not tried again with each call, which looks the route up by List."""
    async with _without_watch(SHARD, cluster=cluster) as (address, elder):
        resolver = await asyncio.to_thread(TaskResolver, [address])
        # Without the driver's routes, the worker knows no member but this one.
        resolver = TaskResolver.from_plan(replace(resolver.plan, routes=()))
        worker = this_worker()
        keep_watch(resolver.plan, worker)
        watch = worker.watch
        assert isinstance(watch, RouteWatch)
        await eventually(lambda: not watch.is_running, timeout_seconds=SECONDS)

        before = elder.lists
        for _ in range(3):
            assert await ask(resolver, SHARD) == 0
        assert elder.lists == before + 1
        assert worker.watch is watch
        assert watch_threads() == []


def _watch_in_a_fork(resolver_bytes: bytes, pipe: Connection) -> None:
    """Be Spark's daemon: it knows the resolver, and forks a worker, which watches."""
    resolver: TaskResolver = pickle.loads(resolver_bytes)  # noqa: S301 - our own
    this_worker().started_monotonic_seconds = float("-inf")
    child = multiprocessing.get_context("fork").Process(target=_ask_and_exit, args=(resolver, pipe))
    child.start()
    child.join(60)
    pipe.send(child.exitcode)


def _ask_and_exit(resolver: TaskResolver, pipe: Connection) -> None:
    worker = this_worker()
    worker.started_monotonic_seconds = float("-inf")
    answer = resolver.stub(SHARD, TallyStub).Count(StatRequest(shard=SHARD))
    pipe.send((answer.publish_at[TOTAL], len(watch_threads()), os.getpid()))


async def test_forked_worker_watches_and_ends_at_once(cluster: AskedCluster) -> None:
    """A fork has a cache, and so a watch, of its own; its exit does not wait for the watch, nor fail by it."""
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard(SHARD, JOURNALS[0])))
        await wait_for_primaries(client, SHARD)
        shipped = pickle.dumps(await resolver_of(member))
        here, there = multiprocessing.Pipe()
        daemon = multiprocessing.get_context("spawn").Process(
            target=_watch_in_a_fork, args=(shipped, there)
        )
        await asyncio.to_thread(daemon.start)
        assert await asyncio.to_thread(here.poll, 120.0), "the fork did not answer"
        total, watches, worker_pid = here.recv()
        assert await asyncio.to_thread(here.poll, 120.0), "the fork did not end"
        exit_code = here.recv()
        await asyncio.to_thread(daemon.join, 60.0)

        assert (total, watches, exit_code) == (0, 1, 0)
        assert worker_pid not in (os.getpid(), daemon.pid)
