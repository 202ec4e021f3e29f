"""KCL-style record processors on members: assigned by the allocator, exactly once by the shard's store."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.leases.codec import decode
from tests.support.counting_processors import Lives, counting_member, row_of
from tests.support.eventually import DEADLINE_SECONDS
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.tally import counts_in

pytestmark = pytest.mark.etcd

SOURCE = "kinesis/orders"
SHARD = "orders"
LEASE = f"{SHARD}:{SOURCE}"


@pytest.fixture
async def cluster(
    etcd_server: EmbeddedEtcdProcess,
    broker: EmbeddedBroker,
    journals: JournalClient,
    etcd_root: str,
    tmp_path: Path,
) -> Cluster:
    """A cluster without members; its source exists."""
    await create_journals(journals, SOURCE)
    return Cluster(
        etcd_endpoint=etcd_server.endpoint,
        broker_address=broker.address,
        root=etcd_root,
        directory=tmp_path,
    )


async def test_processor_counts_exactly_once_over_a_fail_over(
    cluster: Cluster, journals: JournalClient
) -> None:
    """It checkpoints every seventh record: its successor is given those since then, and nothing counts twice."""
    lives = Lives()
    producer = Producer(journals)
    async with counting_member(cluster, "a", lives, checkpoint_every=7) as first:
        async with client_of(first) as client:
            await client.apply(upserts(shard(SHARD, SOURCE)))
            await wait_for_primaries(client, SHARD)
            end = await producer.publish(SOURCE, ["k"] * 52)
            await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=DEADLINE_SECONDS)
        assert counts_in(cluster.directory, SHARD) == {"k": 49}

    async with (
        counting_member(cluster, "b", lives, checkpoint_every=7) as second,
        client_of(second) as client,
    ):
        await wait_for_primaries(client, SHARD)
        end = await producer.publish(SOURCE, ["k"] * 4)
        await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=DEADLINE_SECONDS)

    assert counts_in(cluster.directory, SHARD) == {"k": 56}
    assert [life.sequence_number for life in lives.initialized] == ["TRIM_HORIZON", "49"]
    assert lives.initialized[0].epoch < lives.initialized[1].epoch
    assert sorted(lives.delivered.values()) == [1] * 53 + [2] * 3
    assert lives.lost == 2


async def test_checkpoint_and_counts_are_in_one_transaction(
    cluster: Cluster, journals: JournalClient
) -> None:
    """The lease record is in the database with the counts, readable like any; nothing is retained that was done."""
    lives = Lives()
    async with counting_member(cluster, "a", lives, checkpoint_every=5) as member:
        async with client_of(member) as client:
            await client.apply(upserts(shard(SHARD, SOURCE)))
            await wait_for_primaries(client, SHARD)
            end = await Producer(journals).publish(SOURCE, ["x", "y"] * 6)
            await client.stat(SHARD, read_through={SOURCE: end}, timeout_seconds=DEADLINE_SECONDS)

        found = row_of(cluster.directory, SHARD, "SELECT record FROM broadsheet_processor_leases")
        kept = row_of(
            cluster.directory,
            SHARD,
            "SELECT MIN(seq), MAX(seq), COUNT(*) FROM broadsheet_retained_records",
        )

    assert found is not None
    record = decode(str(found[0]), key=LEASE)
    assert record.checkpoint is not None
    assert record.checkpoint.seq == "10"
    assert record.owner == SHARD
    assert counts_in(cluster.directory, SHARD) == {"x": 5, "y": 5}
    assert kept == (11, 12, 2)
