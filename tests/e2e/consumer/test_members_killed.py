"""Members as processes of their own: killed, frozen and thawed, and etcd restarted, always exactly once."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.reader import read_batches
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.uuid import Flags
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.eventually import eventually
from tests.support.member_process import LOST_STATUS, MemberProcess
from tests.support.members import (
    Cluster,
    Producer,
    committed,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.pending_spans import sequenced

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(900)]

SOURCE = "e2e/source"
OUTPUT = "e2e/output"
SHARD = "e2e-shard"
NOTHING_CARRIED = ShardConfig(carried_bytes_max=0)
"""A small transaction, too, appends its messages before it commits, and not together with its acknowledgement."""


@pytest.fixture
async def cluster(
    etcd_server: EmbeddedEtcdProcess,
    broker: EmbeddedBroker,
    journals: JournalClient,
    tmp_path: Path,
) -> Cluster:
    """Journals, and shards in JSON files."""
    await create_journals(journals, SOURCE, OUTPUT)
    directory = tmp_path / "states"
    directory.mkdir()
    return Cluster(
        etcd_endpoint=etcd_server.endpoint,
        broker_address=broker.address,
        root=f"/e2e/{uuid4().hex}",
        directory=directory,
        output=OUTPUT,
        json_store=True,
    )


def spec() -> ShardSpec:
    """Transactions of some 0.2 s, so that there is nearly always one to interrupt."""
    made = shard(SHARD, SOURCE)
    made.min_txn_duration.FromMilliseconds(150)
    made.max_txn_duration.FromMilliseconds(300)
    return made


@asynccontextmanager
async def ready(member: MemberProcess) -> AsyncIterator[ShardClient]:
    """A client of the member, once it serves."""
    address = await eventually(member.address_or_none, timeout_seconds=30)
    assert address is not None, "eventually returns what is true"
    async with ShardClient(address) as client:
        yield client


class Load:
    """Publishes small batches until told to stop; knows how many messages that were, and where they end."""

    def __init__(self, journals: JournalClient) -> None:
        self._producer = Producer(journals)
        self._wanted = True
        self.messages = 0
        self.end = 0

    async def run(self) -> None:
        """Publish until `stop`."""
        while self._wanted:
            self.end = await self._producer.publish(SOURCE, ["a", "b", "c", "d", "e"])
            self.messages += 5

    def stop(self) -> None:
        """Publish no more."""
        self._wanted = False


@asynccontextmanager
async def under_load(journals: JournalClient) -> AsyncIterator[Load]:
    """Messages flow within the block."""
    load = Load(journals)
    async with TaskGroup() as group:
        running = group.start_soon(load.run(), name="load")
        try:
            yield load
        finally:
            load.stop()
        await running


async def check_exactly_once(
    cluster: Cluster, journals: JournalClient, client: ShardClient, load: Load
) -> None:
    """Every message is counted once, and its echo is visible once."""

    async def is_read() -> bool:
        try:
            answer = await client.stat(SHARD, read_through={SOURCE: load.end}, timeout_seconds=5)
        except (ServiceError, TimeoutError):
            return False
        return answer.read_through[SOURCE] == load.end

    await eventually(is_read, timeout_seconds=30)
    assert cluster.counts(SHARD) == dict.fromkeys("abcde", load.messages // 5)

    async def echoed() -> Counter[int]:
        found = Counter([message["n"] for message in await committed(journals, OUTPUT)])
        assert found.total() >= load.messages, (found.total(), load.messages)
        return found

    assert await eventually(echoed) == Counter(range(1, load.messages + 1))


async def test_killed_primary_is_replaced_by_its_next_attempt(
    cluster: Cluster, journals: JournalClient
) -> None:
    """`kill -9` under load with a lease of a minute: the next attempt revokes it, and the shard goes on at once."""
    cluster.settings["lease_ttl_seconds"] = 60.0
    with MemberProcess(cluster, "0-0") as first:
        async with ready(first) as client:
            await client.apply(upserts(spec()))
            await wait_for_primaries(client, SHARD)
        async with under_load(journals) as load:
            await eventually(lambda: cluster.counts(SHARD).total() > 0)
            first.kill()
            with MemberProcess(cluster, "0-1", revoke_predecessors_prefix="member-0-") as second:
                async with ready(second) as client:
                    announced = time.monotonic()
                    primaries = await wait_for_primaries(client, SHARD, timeout_seconds=60.0)
                    assert time.monotonic() - announced < 30.0, "waited for the lease"
                    load.stop()

                    assert primaries == {SHARD: second.suffix}
                    await check_exactly_once(cluster, journals, client, load)


async def test_killed_primary_is_succeeded_when_its_lease_ends(
    cluster: Cluster, journals: JournalClient
) -> None:
    """`kill -9` under load with another member alive that watches nobody: it takes over once etcd lets the lease go."""
    cluster.settings |= {"lease_ttl_seconds": 60.0, "watch_peers": False}
    # Only of the one that is killed is the lease short: on a busy machine it may end while its member lives.
    with MemberProcess(cluster, "a", lease_ttl_seconds=5.0) as first:
        async with ready(first) as client:
            await client.apply(upserts(spec()))
            await wait_for_primaries(client, SHARD)
        with MemberProcess(cluster, "b") as second:
            async with under_load(journals) as load, ready(second) as client:
                await eventually(lambda: cluster.counts(SHARD).total() > 0)
                first.kill()
                await eventually(lambda: _primary(client, second.suffix), timeout_seconds=30)
                load.stop()

                await check_exactly_once(cluster, journals, client, load)


async def test_killed_primary_is_succeeded_at_once_by_a_peer_that_watches_it(
    cluster: Cluster, journals: JournalClient
) -> None:
    """`kill -9` under load, the lease lasts a minute: the peer finds its port refusing, ends the lease, takes over."""
    cluster.settings["lease_ttl_seconds"] = 60.0
    with MemberProcess(cluster, "a") as first:
        async with ready(first) as client:
            await client.apply(upserts(spec()))
            await wait_for_primaries(client, SHARD)
        with MemberProcess(cluster, "b") as second:
            async with under_load(journals) as load, ready(second) as client:
                await eventually(lambda: cluster.counts(SHARD).total() > 0)
                await eventually(lambda: "peer.watched" in second.log())
                first.kill()
                await eventually(lambda: _primary(client, second.suffix), timeout_seconds=40)
                load.stop()

                await eventually(lambda: "peer.found_dead" in second.log())
                await check_exactly_once(cluster, journals, client, load)


async def test_frozen_primary_is_succeeded_long_before_its_lease_ends(
    cluster: Cluster, journals: JournalClient
) -> None:
    """SIGSTOP of a primary under load, as if packets were lost: no connection breaks, and the lease lasts a minute.
    Another finds it silent, and etcd says that it renews nothing; it takes over. Woken, the first ends; all is once.
    """
    cluster.settings["lease_ttl_seconds"] = 60.0
    with MemberProcess(cluster, "a") as first:
        async with ready(first) as client:
            await client.apply(upserts(spec()))
            await wait_for_primaries(client, SHARD)
        with MemberProcess(cluster, "b") as second:
            async with under_load(journals) as load, ready(second) as client:
                await eventually(lambda: cluster.counts(SHARD).total() > 0)
                heard = re.compile(rf"peer\.heard .*{first.suffix}")
                await eventually(lambda: heard.search(second.log()))
                await eventually(lambda: _frozen_outside_of_a_commit(first, cluster))
                await eventually(lambda: _primary(client, second.suffix), timeout_seconds=50)
                first.thaw()
                load.stop()

                assert "peer.found_silent" in second.log()
                await eventually(lambda: first.exit_code is not None, timeout_seconds=40)
                assert first.exit_code == LOST_STATUS, first.log()
                await check_exactly_once(cluster, journals, client, load)


def _frozen_outside_of_a_commit(member: MemberProcess, cluster: Cluster) -> bool:
    """Freeze a member that does not hold its store's lock, which nobody could take from it then; else let it go on."""
    member.freeze()
    with (cluster.directory / SHARD / "epoch").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            member.thaw()
            return False
    return True


async def test_primary_killed_within_a_transaction_leaves_nothing_pending(
    cluster: Cluster, journals: JournalClient
) -> None:
    """`kill -9` between publishing and commit: readers of the output would keep its messages as pending for ever. The
    successor rolls them back, as any producer would its own.
    """
    cluster.settings |= {"lease_ttl_seconds": 60.0, "shards": NOTHING_CARRIED}
    with MemberProcess(cluster, "0-0") as first:
        async with ready(first) as client:
            await client.apply(upserts(spec()))
            await wait_for_primaries(client, SHARD)
        async with under_load(journals):
            await eventually(lambda: _frozen_within_txn(first, cluster, journals))
            first.kill()
        assert len((await sequenced(journals, OUTPUT)).pending) == 1
        with MemberProcess(cluster, "0-1", revoke_predecessors_prefix="member-0-") as second:
            async with ready(second) as client:
                await wait_for_primaries(client, SHARD)

                async def nothing_pending() -> bool:
                    return not (await sequenced(journals, OUTPUT)).pending

                await eventually(nothing_pending)
                outcomes = (await sequenced(journals, OUTPUT)).outcomes
                assert SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS not in outcomes


async def test_frozen_primary_cannot_commit_after_its_replacement(
    cluster: Cluster, journals: JournalClient
) -> None:
    """SIGSTOP in the middle of a transaction, a replacement commits the same input, SIGCONT: the sleeper is fenced.

    Its lease is a minute long by its own clock, so it wakes in the belief to be the primary still. Whether its commit
    meets the store's fence or its watch ends it first is a race: what counts is that nothing of its transaction shows,
    neither in the store nor in the committed output (tests/e2e/consumer/test_stopped_primary.py pins the fence itself).
    """
    cluster.settings |= {"lease_ttl_seconds": 60.0, "shards": NOTHING_CARRIED}
    with MemberProcess(cluster, "0-0") as sleeper:
        async with ready(sleeper) as client:
            await client.apply(upserts(spec()))
            await wait_for_primaries(client, SHARD)
        async with under_load(journals) as load:
            await eventually(lambda: cluster.counts(SHARD).total() > 0)
            await eventually(lambda: _frozen_within_txn(sleeper, cluster, journals))
            with MemberProcess(cluster, "0-1", revoke_predecessors_prefix="member-0-") as second:
                async with ready(second) as client:
                    await eventually(lambda: _primary(client, second.suffix))
                    taken_over = cluster.counts(SHARD).total()
                    await eventually(lambda: cluster.counts(SHARD).total() > taken_over)

                    sleeper.thaw()
                    await eventually(lambda: sleeper.exit_code is not None, timeout_seconds=40)
                    load.stop()

                    assert sleeper.exit_code == LOST_STATUS, sleeper.log()
                    epoch = (cluster.directory / SHARD / "epoch").read_text()
                    assert int(epoch) == 2, "the replacement's restore was the last"
                    await check_exactly_once(cluster, journals, client, load)


async def test_etcd_restarted_under_load(
    journals: JournalClient, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Etcd is killed and comes back within the lease: shards run on meanwhile, and changes apply afterwards."""
    await create_journals(journals, SOURCE, OUTPUT)
    directory = tmp_path / "states"
    directory.mkdir()
    with EmbeddedEtcdProcess(data_dir=tmp_path / "etcd") as etcd:
        cluster = Cluster(
            etcd_endpoint=etcd.endpoint,
            broker_address=broker.address,
            root="/e2e/etcd",
            directory=directory,
            output=OUTPUT,
            json_store=True,
        )
        cluster.settings["lease_ttl_seconds"] = 20.0
        with MemberProcess(cluster, "a") as member:
            async with ready(member) as client, under_load(journals) as load:
                await client.apply(upserts(spec()))
                await wait_for_primaries(client, SHARD)
                await eventually(lambda: cluster.counts(SHARD).total() > 0)

                etcd.kill()
                during = cluster.counts(SHARD).total()
                await eventually(lambda: cluster.counts(SHARD).total() > during)
                # In a thread: the broker is on this loop, and must not take its own standstill for a slow sender.
                await asyncio.to_thread(etcd.restart)

                await eventually(lambda: _applied(client, "e2e-second"), timeout_seconds=20)
                await wait_for_primaries(client, SHARD, "e2e-second")
                load.stop()
                await check_exactly_once(cluster, journals, client, load)
            assert member.exit_code is None


async def _primary(client: ShardClient, suffix: str) -> bool:
    listed = (await client.list()).shards
    route = listed[0].route
    return (
        route.primary >= 0
        and route.members[route.primary].suffix == suffix
        and listed[0].status[route.primary].code == 300
    )


async def _applied(client: ShardClient, shard_id: str) -> bool:
    try:
        await client.apply(upserts(shard(shard_id), expect=-1))
    except (ServiceError, TimeoutError):
        return False
    return True


async def _frozen_within_txn(
    member: MemberProcess, cluster: Cluster, journals: JournalClient
) -> bool:
    """Freeze the member; thaw it again if it has no uncommitted output, or holds the lock that every commit takes."""
    member.freeze()
    await eventually(lambda: member.is_frozen)
    if await _has_pending(journals) and not _is_locked(cluster):
        # What it sent, maybe an acknowledgement, may not be in the journal yet: it is, once an append of ours is done.
        await journals.append(OUTPUT, b"")
        if await _has_pending(journals):
            return True
    member.thaw()
    return False


async def _has_pending(journals: JournalClient) -> bool:
    last = Flags.ACK_TXN
    async with aclosing(read_batches(journals, OUTPUT, JsonType(), block=False)) as batches:
        async for batch in batches:
            last = batch.flags[-1]
    return last == Flags.CONTINUE_TXN


def _is_locked(cluster: Cluster) -> bool:
    with _opened(cluster.directory / SHARD / "epoch") as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
