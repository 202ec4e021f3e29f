"""What a Python worker keeps between tasks: few connections, none for long, and nothing of its parent's."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection

import psutil
import pytest

from broadsheet.spark_bridge.routing.channels import PythonWorkerCache, WorkerChannels, this_worker
from broadsheet.spark_bridge.routing.heads import token_of_heads
from broadsheet.spark_bridge.routing.lookup import ask_list
from broadsheet.spark_bridge.routing.plan import MemberAccess
from broadsheet.spark_bridge.task_resolver import TaskResolver
from broadsheet.wire.shard_pb2 import StatRequest
from tests.support.asked_tally import TOTAL, TallyStub
from tests.support.eventually import eventually
from tests.support.members import client_of, shard, upserts, wait_for_primaries
from tests.support.resolving import JOURNALS, AskedCluster, ask, resolver_of

pytestmark = pytest.mark.etcd

TASKS = 300


def connections_to(endpoints: Sequence[str]) -> int:
    """Count the connections that this process has opened to members, which are in it as well."""
    ports = {int(endpoint.rpartition(":")[2]) for endpoint in endpoints}
    return sum(
        1
        for one in psutil.Process().net_connections("tcp")
        if one.status == psutil.CONN_ESTABLISHED and getattr(one.raddr, "port", None) in ports
    )


async def test_many_tasks_share_one_connection_a_member(cluster: AskedCluster) -> None:
    """Each task unpickles a resolver of its own from its closure, and all find the worker's channels and routes."""
    async with (
        cluster.member("a") as first,
        cluster.member("b") as second,
        client_of(first) as client,
    ):
        await client.apply(upserts(*(shard(f"ask-{n}", JOURNALS[n]) for n in range(2))))
        await wait_for_primaries(client, "ask-0", "ask-1")
        shipped = pickle.dumps(await resolver_of(first, second))
        endpoints = [first.address, second.address]
        before = connections_to(endpoints)

        for number in range(TASKS):
            resolver: TaskResolver = pickle.loads(shipped)  # noqa: S301 - our own
            await ask(resolver, f"ask-{number % 2}")

        assert set(this_worker().channels.endpoints) <= set(endpoints)
        assert connections_to(endpoints) - before <= len(endpoints)


async def test_idle_connection_closes_by_itself_each_time_and_the_next_call_opens_it(
    cluster: AskedCluster,
) -> None:
    """A worker that waits for its next task holds no connection, though nothing of ours runs in it meanwhile. gRPC
    closes the connection of a channel once, and forgets it from then on.
    """
    async with cluster.member("a") as member:
        before = connections_to([member.address])
        worker = PythonWorkerCache()
        worker.channels = WorkerChannels(idle_seconds=1.0)

        def listing() -> None:
            ask_list(worker, member.address, None, MemberAccess(), seconds=5.0)

        for _ in range(3):
            await asyncio.to_thread(listing)
            assert connections_to([member.address]) == before + 1
            await eventually(lambda: connections_to([member.address]) == before)
        worker.close()


def _ask_in_a_fork(resolver: TaskResolver, parents: PythonWorkerCache, pipe: Connection) -> None:
    assert this_worker() is not parents
    answer = resolver.stub("ask-0", TallyStub).Count(StatRequest())
    pipe.send((os.getpid(), answer.publish_at[TOTAL]))
    os._exit(0)  # what pytest would do at the end is the parent's


def _fork_before_grpc(resolver_bytes: bytes, pipe: Connection) -> None:
    """Be a daemon as Spark's is: it forks a worker, which uses gRPC; the daemon has a cache, but no connection."""
    resolver: TaskResolver = pickle.loads(resolver_bytes)  # noqa: S301 - our own
    child = multiprocessing.get_context("fork").Process(
        target=_ask_in_a_fork, args=(resolver, this_worker(), pipe)
    )
    child.start()
    child.join(20)


async def test_fork_of_a_process_that_knows_the_resolver_asks_for_itself(
    cluster: AskedCluster,
) -> None:
    """Spark's daemon forks workers: what one of them finds at the place of its cache must be its own."""
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard("ask-0", JOURNALS[0])))
        await wait_for_primaries(client, "ask-0")
        shipped = pickle.dumps(await resolver_of(member))
        here, there = multiprocessing.Pipe()
        daemon = multiprocessing.get_context("spawn").Process(
            target=_fork_before_grpc, args=(shipped, there)
        )

        await asyncio.to_thread(daemon.start)
        arrived = await asyncio.to_thread(here.poll, 30.0)
        assert arrived, "the fork did not answer"
        worker_pid, total = here.recv()
        await asyncio.to_thread(daemon.join, 30.0)

        assert total == 0
        assert worker_pid not in (os.getpid(), daemon.pid)


async def test_heads_of_journals_are_where_they_end(cluster: AskedCluster) -> None:
    """Told to threads, which have no event loop, as drivers and tasks have none."""
    heads = await asyncio.to_thread(token_of_heads, cluster.broker_address, JOURNALS)

    assert heads == dict.fromkeys(JOURNALS, 0)


def test_worker_of_a_process_is_found_again() -> None:
    """By the process' id: the next task's look finds the same."""
    assert this_worker() is this_worker()
