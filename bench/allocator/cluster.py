"""A cluster for the loop's benchmarks: shards and bare members in a real etcd, and one real session that leads.

Members are keys on leases of their own, as those of processes are. The replicas of all of them catch up as soon as
they are assigned; `catch_up` sees to that in another process, as the members would:
`python -m bench.allocator.cluster ENDPOINT ROOT`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from broadsheet.allocator.config import AllocationConfig
from broadsheet.allocator.errors import EtcdRequestError
from broadsheet.allocator.etcd.api import KeyPut, WatchBatch
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import AssignmentKey, AuxiliaryKeys, Keys
from broadsheet.allocator.leader.election import CandidateRecord, encoded
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue, LeaseId, Put
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.allocator.session import Session, SessionConfig
from broadsheet.consumer.registry.key_space import ReplicaConsistency, ShardDecoder, is_failed
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.shard_pb2 import ConsumerSpec, ReplicaStatus, ShardSpec

PUTS_PER_TXN = 128
LANES = 4
"""Transactions that mark replicas at a time."""
TTL_SECONDS = 600
LEADER = MemberId("zone-a", "leader")


class Cluster:
    """One root, the leader's session, and leases of bare members."""

    def __init__(self, etcd: EtcdClient, root: str, policy: AllocationPolicy) -> None:
        self.etcd = etcd
        self.keys = Keys(root)
        self.key_space = KeySpace(etcd, self.keys, ShardDecoder(hot_standbys_max=4))
        self.session = Session(
            etcd,
            self.key_space,
            SessionConfig(member_id=LEADER, allocation=AllocationConfig(policy=policy)),
            ReplicaConsistency(),
            is_failed=is_failed,
        )
        self.held: dict[AssignmentKey, MemberId] = {}
        """What is assigned, by the leader's mirror."""
        self.behind: set[AssignmentKey] = set()
        """What has not caught up."""
        self.key_space.observe(ObserverStage.WAKE, self._look)
        self._leases: dict[MemberId, LeaseId] = {}

    async def put_shards(self, count: int, *, replicas: int) -> None:
        """Write shards of `replicas` replicas."""
        names = [f"shard-{number:06}" for number in range(count)]
        puts = [Put(self.keys.item(ItemId(name)), _shard(name, replicas)) for name in names]
        await put_all(self.etcd, puts)

    async def add(self, members: Sequence[MemberId], *, limit: int) -> None:
        """Write members in one transaction, each on a lease of its own. They know of elections and stay out of them."""
        for member_id in members:
            self._leases[member_id] = await self.etcd.lease_grant(TTL_SECONDS)
        puts = [
            Put(self.keys.member(m), member_value(m, limit), lease=self._leases[m]) for m in members
        ]
        spectator = encoded(CandidateRecord(may_lead=False))
        candidates = AuxiliaryKeys(self.keys.root).candidate
        puts += [Put(candidates(m), spectator, lease=self._leases[m]) for m in members]
        await self.etcd.txn((), tuple(puts))

    async def mark_exiting(self, members: Sequence[MemberId], *, limit: int) -> None:
        """Have members leave."""
        puts = [
            Put(self.keys.member(m), member_value(m, limit, exiting=True), ignore_lease=True)
            for m in members
        ]
        await self.etcd.txn((), tuple(puts))

    async def revoke(self, members: Sequence[MemberId]) -> None:
        """End members' leases."""
        for member_id in members:
            await self.etcd.lease_revoke(self._leases.pop(member_id))

    def _look(self) -> None:
        """Follow what is assigned by what changed: looking at everything would take time from what is measured."""
        assignments = self.key_space.assignments
        for key in self.key_space.changes.assignments:
            found = assignments.get((key.item_id, key.member_id, key.slot))
            if found is None:
                self.held.pop(key, None)
                self.behind.discard(key)
                continue
            self.held[key] = key.member_id
            if found.kv.value:
                self.behind.discard(key)
            else:
                self.behind.add(key)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the leader's mirror shows something."""
        while not condition():
            await self.key_space.wait_for_update()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the leader's session, which takes next to nothing itself."""
        await self.session.start(member_value(LEADER, 1))
        async with TaskGroup() as group:
            group.start_soon(self.session.run(), name="leader")
            yield
            group.stop()
        await self.session.revoke()


def member_value(member_id: MemberId, limit: int, *, exiting: bool = False) -> bytes:
    """Encode a member."""
    spec = ConsumerSpec(
        process_spec=ProcessSpec(
            id=ProcessSpec.ID(zone=member_id.zone, suffix=member_id.suffix),
            endpoint=f"http://{member_id.suffix}:8080",
        ),
        shard_limit=limit,
        exiting=exiting,
    )
    return spec.SerializeToString()


CAUGHT_UP = ReplicaStatus(code=ReplicaStatus.STANDBY).SerializeToString()


async def put_all(etcd: EtcdClient, puts: Sequence[Put], *, in_flight: int = 4) -> None:
    """Write keys as fast as the client can."""
    batches = [tuple(puts[at : at + PUTS_PER_TXN]) for at in range(0, len(puts), PUTS_PER_TXN)]

    async def write(lane: int) -> None:
        for batch in batches[lane::in_flight]:
            await etcd.txn((), batch)

    async with TaskGroup() as group:
        for lane in range(in_flight):
            group.start_soon(write(lane), name=f"lane {lane}")


@asynccontextmanager
async def replicas_catching_up(endpoint: str, root: str) -> AsyncIterator[None]:
    """Run the writer of statuses beside."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.allocator.cluster",
        endpoint,
        root,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def _shard(name: str, replicas: int) -> bytes:
    spec = ShardSpec(id=name, hot_standbys=replicas - 1)
    spec.sources.add(journal=f"sources/{name}")
    spec.max_txn_duration.seconds = 1
    return spec.SerializeToString()


async def catch_up(endpoint: str, root: str) -> None:
    """Follow the assignments of a root for ever."""
    async with EtcdClient(EtcdConfig(endpoints=(endpoint,))) as etcd, TaskGroup() as group:
        found = await etcd.get_range(b"/bench")
        behind: asyncio.Queue[KeyValue] = asyncio.Queue()
        for lane in range(LANES):
            group.start_soon(_mark(etcd, behind), name=f"lane {lane}")
        watch = etcd.watch(Keys(root).assignments_prefix, start_revision=found.header.revision + 1)
        print("ready", flush=True)
        async for batch in watch:
            for kv in _new(batch):
                behind.put_nowait(kv)


def _new(batch: WatchBatch) -> list[KeyValue]:
    return [event.kv for event in batch.events if isinstance(event, KeyPut) and not event.kv.value]


async def _mark(etcd: EtcdClient, behind: asyncio.Queue[KeyValue]) -> None:
    while True:
        kvs = [await behind.get()]
        while len(kvs) < PUTS_PER_TXN and not behind.empty():
            kvs.append(behind.get_nowait())
        puts = {kv.key: Put(kv.key, CAUGHT_UP, ignore_lease=True) for kv in kvs}
        try:
            await etcd.txn((), tuple(puts.values()))
        except EtcdRequestError:
            # One of them was moved or removed meanwhile: then each by itself.
            for put in puts.values():
                await _mark_one(etcd, put)


async def _mark_one(etcd: EtcdClient, put: Put) -> None:
    try:
        await etcd.txn((), (put,))
    except EtcdRequestError:
        return  # gone: nothing to mark


if __name__ == "__main__":
    asyncio.run(catch_up(*sys.argv[1:3]))
