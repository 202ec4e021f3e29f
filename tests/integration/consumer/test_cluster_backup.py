"""`shardctl backup`: a cluster whose etcd is lost, and made again of a file."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.ops import Delete, prefix_range_end
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.main import main
from broadsheet.consumer.member.service import Service
from broadsheet.journals.client import JournalClient
from broadsheet.leases.addresses import parse_store_address
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.opening import open_store
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.pruned_logs import create_small_log
from tests.support.recorded_tally import LOGS, TALLIES, counts_of, recorded

pytestmark = pytest.mark.etcd

SOURCE, SHARD = "test/source", "shard-a"
KEYS = [f"key-{number % 7}" for number in range(40)]


def _member(cluster: Cluster, name: str, directory: Path) -> AbstractAsyncContextManager[Service]:
    application = TALLIES["sqlite"][0](cluster.directory, output="")
    return cluster.member(name, application=application, state_dir=str(directory / f"state-{name}"))


async def _shardctl(cluster: Cluster, member: Service, *words: str) -> Result:
    addresses = ["--address", member.address, "--broker", cluster.broker_address]
    arguments = [*words, *addresses]
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def _lose_etcd(etcd: EtcdClient, root: str) -> None:
    """Remove all that a cluster has in etcd, as a new etcd would not have it."""
    for prefix in (root, f"/broadsheet.v1{root}", f"/hints{root}"):
        await etcd.txn((), (Delete(prefix.encode(), prefix_range_end(prefix.encode())),))


async def test_cluster_whose_etcd_is_lost_goes_on_of_its_backup(
    cluster: Cluster, journals: JournalClient, etcd: EtcdClient, tmp_path: Path
) -> None:
    """State is in logs and databases; what etcd had says which, and how to read them. Nothing counts twice."""
    producer, counts = Producer(journals), Counter[str]()
    spec = recorded(shard(SHARD, SOURCE, app="tally"), cluster.root)
    file = tmp_path / "cluster.jsonl"

    async def work(member: Service) -> None:
        end = await producer.publish(SOURCE, KEYS)
        counts.update(KEYS)
        read = {SOURCE: end}
        assert await counts_of(member.resolver, SHARD, "sqlite", read_through=read) == dict(counts)

    async with _member(cluster, "a", tmp_path) as member, client_of(member) as client:
        await create_small_log(journals, f"{LOGS}/{SHARD}")
        await client.apply(upserts(spec))
        await wait_for_primaries(client, SHARD)
        await work(member)

        async def is_hinted() -> bool:
            return (await client.get_hints(SHARD)).primary_hints.HasField("hints")

        await eventually(is_hinted)
        done = await _shardctl(cluster, member, "backup", "create", str(file))
        assert done.exit_code == 0, done.output
        assert "1 shard (1 with hints)" in done.stderr
        assert file.stat().st_mode & 0o077 == 0
        # What is committed after the backup is in the log, and is not lost either.
        await work(member)
    await _lose_etcd(etcd, cluster.root)

    async with _member(cluster, "b", tmp_path) as member, client_of(member) as client:
        dry = await _shardctl(cluster, member, "backup", "restore", str(file))
        assert dry.exit_code == 0, dry.output
        assert (await client.list()).shards == []
        done = await _shardctl(cluster, member, "backup", "restore", str(file), "--yes")
        assert done.exit_code == 0, done.output
        await wait_for_primaries(client, SHARD)
        await work(member)
        again = await _shardctl(cluster, member, "backup", "restore", str(file), "--yes")
        assert again.exit_code == 0, again.output

        # What is there in another form is not touched.
        changed = (await client.list()).shards[0]
        changed.spec.hot_standbys = 1
        await client.apply(upserts(changed.spec, expect=changed.mod_revision))
        refused = await _shardctl(cluster, member, "backup", "restore", str(file), "--yes")
        assert refused.exit_code == ExitStatus.CONFLICT
        assert f"1 shard of the cluster differ from the backup: {SHARD}" in refused.stderr


async def test_leases_of_named_stores_are_part_of_a_backup(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Workers without shards have their positions in a store of their own, which may be lost with the rest."""
    store = f"sql:sqlite:///{tmp_path}/leases.db"
    async with open_store(parse_store_address(store)) as opened:
        manager = LeaseManager(opened)
        await manager.create_store_if_not_exists()
        await manager.create_lease(LeaseRecord(key="one", checkpoint=Position("4711")))
    file = str(tmp_path / "cluster.jsonl")
    async with cluster.member("a") as member:
        made = await _shardctl(cluster, member, "backup", "create", file, "--lease-store", store)
        assert made.exit_code == 0, made.output
        (tmp_path / "leases.db").unlink()
        done = await _shardctl(cluster, member, "backup", "restore", file, "--yes")
        assert done.exit_code == 0, done.output
    async with open_store(parse_store_address(store)) as opened:
        found = await LeaseManager(opened).get_lease("one")
        assert found is not None
        assert found.record.checkpoint == Position("4711")
