"""A shard that kills its members one after another is held back; one that happened to be there is not."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.api import TxnResult
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.key_space import ObserverStage
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Compare, Delete, LeaseId, Operation, Put
from broadsheet.consumer.errors import ShardHeldBackError
from broadsheet.consumer.member.crash_watch import CrashWatch
from broadsheet.consumer.registry.key_space import process_id_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.shard.crash_loop import YoungDeath
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.shard_pb2 import ConsumerSpec, ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_shards import SHARD, SOURCE, Counting, ShardHost, spec_of

pytestmark = pytest.mark.etcd

LEASE_SECONDS = 60
QUICK = ShardConfig(
    restart_delay_seconds=0.05, healthy_seconds=0.3, hold_seconds=1.5, young_deaths_max=2
)


def _death(name: str, life: int) -> YoungDeath:
    return YoungDeath(ItemId(SHARD), MemberId("zone-a", f"member-{name}"), life)


def _closed_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


async def _join(host: ShardHost, name: str, *shards: str, port: int = 0) -> LeaseId:
    """Announce a member that is the primary of shards, and return its lease."""
    port = port or _closed_port()
    member_id = MemberId("zone-a", f"member-{name}")
    spec = ConsumerSpec(
        process_spec=ProcessSpec(id=process_id_of(member_id), endpoint=f"http://127.0.0.1:{port}"),
        shard_limit=10,
    )
    lease = await host.etcd.lease_grant(LEASE_SECONDS)
    keys = host.key_space.keys
    puts = [Put(keys.member(member_id), spec.SerializeToString(), lease)]
    puts += [Put(keys.assignment(ItemId(s), member_id, 0), b"", lease) for s in shards]
    result = await host.etcd.txn((), tuple(puts))
    await host.key_space.wait_for_revision(result.header.revision)
    return lease


async def test_members_that_die_with_a_shard_are_recorded_by_the_oldest(
    host: ShardHost, etcd: EtcdClient
) -> None:
    """The oldest member writes down who died young with what; a younger one that sees the same writes nothing."""
    records = host.death_records(QUICK)
    keys = AuxiliaryKeys(host.key_space.keys.root)
    await _join(host, "old")
    async with TaskGroup() as group:
        for name in ("old", "young"):
            watch = CrashWatch(
                LocalMember(MemberId("zone-a", f"member-{name}"), host.key_space, etcd),
                records,
                young_seconds=60,
                clock=SystemClock(),
                group=group,
            )
            host.key_space.observe(ObserverStage.ACT, watch.look)
        await _join(host, "young")
        await etcd.put(host.key_space.keys.item(ItemId(SHARD)), b"")
        lease = await _join(host, "victim", SHARD)
        await etcd.lease_revoke(lease)

        async def recorded() -> bool:
            return bool((await etcd.get_range(keys.death(ItemId(SHARD)))).kvs)

        await eventually(recorded)
    record = await records.admit(SHARD)
    assert record.members == ("zone-a#member-victim",)


async def test_cut_off_or_frozen_primary_is_no_death(host: ShardHost, etcd: EtcdClient) -> None:
    """A network that is cut ends leases of members that live: what they served has killed nobody, and must not be held
    back. The member that comes again at the port of the one before proves its death.
    """
    records = host.death_records(QUICK)
    keys = AuxiliaryKeys(host.key_space.keys.root)
    await _join(host, "old")
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    alive = int(server.sockets[0].getsockname()[1])
    async with server, TaskGroup() as group:
        watch = CrashWatch(
            LocalMember(MemberId("zone-a", "member-old"), host.key_space, etcd),
            records,
            young_seconds=60,
            clock=SystemClock(),
            group=group,
        )
        host.key_space.observe(ObserverStage.ACT, watch.look)
        await etcd.put(host.key_space.keys.item(ItemId(SHARD)), b"")
        await etcd.lease_revoke(await _join(host, "cut-off", SHARD, port=alive))
        lease = await _join(host, "restarted", SHARD, port=alive)
        await _join(host, "its-next-life", port=alive)
        await etcd.lease_revoke(lease)

        async def recorded() -> bool:
            return bool((await etcd.get_range(keys.death(ItemId(SHARD)))).kvs)

        await eventually(recorded)
    assert (await records.admit(SHARD)).members == ("zone-a#member-restarted",)


async def test_shard_whose_primaries_died_is_held_back_then_cleared_by_a_long_life(
    host: ShardHost, etcd: EtcdClient, tmp_path: Path
) -> None:
    """Two primaries died: the next waits and says why, tries once the hold is over, and having lived long enough
    clears the shard.
    """
    records = host.death_records(QUICK)
    for life, name in enumerate(("first", "second")):
        await records.add(_death(name, life))
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)

    host.start(spec, Counting(tmp_path), config=QUICK)

    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "held back", "member-second", "QUARANTINED")
    )
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    key = AuxiliaryKeys(host.key_space.keys.root).death(ItemId(SHARD))

    async def cleared() -> bool:
        return not (await etcd.get_range(key)).kvs

    await eventually(cleared)


async def test_death_of_a_member_that_held_the_shard_back_is_not_counted(host: ShardHost) -> None:
    """Something else kills: the hold of an innocent shard must not grow with each member that never served it."""
    settings = replace(QUICK, hold_seconds=60.0)
    records = host.death_records(settings)
    for life, name in enumerate(("first", "second", "third", "fourth")):
        await records.add(_death(name, life))
    with pytest.raises(ShardHeldBackError, match="its last 2 primaries") as held:
        await records.admit(SHARD)
    assert held.value.members == ("zone-a#member-first", "zone-a#member-second")
    assert held.value.seconds <= 60.0

    over = host.death_records(replace(settings, hold_seconds=0.01))

    async def counted_once_the_hold_is_over() -> bool:
        await over.add(_death("later", 9))
        return len((await host.death_records(never).admit(SHARD)).members) == 3

    never = replace(settings, young_deaths_max=0)
    await eventually(counted_once_the_hold_is_over)


async def test_one_death_holds_nothing_back(host: ShardHost, tmp_path: Path) -> None:
    """Machines die; the first death is no reason to wait."""
    await host.death_records(QUICK).add(_death("first", 1))
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)

    application = Counting(tmp_path)
    host.start(spec, application, config=QUICK)

    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    assert len(application.stores) == 1


class _DeletesAtThirdTry(EtcdClient):
    """Etcd that does not answer the first transactions that delete."""

    refused = 0

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Fail twice."""
        if self.refused < 2 and any(isinstance(each, Delete) for each in success):
            self.refused += 1
            raise EtcdUnavailableError((), "gone for a moment")
        return await super().txn(compares, success, failure)


async def test_primary_that_cannot_clear_its_shard_yet_serves_on(
    host: ShardHost, etcd: EtcdClient, tmp_path: Path
) -> None:
    """Etcd is gone just then. Ending the primary for that would make it the next one that did not live long."""
    await host.death_records(QUICK).add(_death("first", 1))
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    key = AuxiliaryKeys(host.key_space.keys.root).death(ItemId(SHARD))
    async with _DeletesAtThirdTry(etcd.config) as wavering:
        host.etcd = wavering
        application = Counting(tmp_path)
        shard = host.start(spec, application, config=QUICK)

        async def cleared() -> bool:
            return not (await etcd.get_range(key)).kvs

        await eventually(cleared)
        assert wavering.refused == 2
        assert len(application.stores) == 1
        await shard.stop()
