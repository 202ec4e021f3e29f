"""A task that reads a shard's state finds whoever answers for it, whatever the driver knew."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.client import ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.spark_bridge.format_options import TlsPaths
from broadsheet.spark_bridge.shard_tables.access import (
    ClusterAccess,
    NoMemberAnsweredError,
    StateReadError,
)
from broadsheet.spark_bridge.shard_tables.shard_listing import list_shards, progress_of
from broadsheet.spark_bridge.shard_tables.state_scan import ScanOrder, scan_batches
from broadsheet.wire.journal_pb2 import ProcessSpec, Route
from tests.support.certificates import CertificateAuthority
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import TALLIES, create_logs, recorded

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
SHARD = "shard-a"
KEYS = ["a", "b", "a", "c", "b", "a"]
GONE = "http://127.0.0.1:1"


def _order(address: str, primary: str, **others: Any) -> ScanOrder:
    """What to read, from a member that is said to be the primary."""
    route = Route(
        members=[ProcessSpec.ID(zone="zone-a", suffix="said")], endpoints=[primary], primary=0
    )
    defaults: dict[str, Any] = {
        "access": ClusterAccess(addresses=(GONE, address)),
        "columns": ("count", "key"),
        "max_staleness_seconds": 0.0,
        "patience_seconds": 10.0,
    }
    return ScanOrder(
        shard_id=SHARD,
        route=route.SerializeToString(),
        table="counts",
        **defaults | others,
    )


async def _read(order: ScanOrder) -> tuple[set[str], dict[str, int]]:
    """The members that answered, and the rows; read by a thread of its own, as a task would."""

    def read() -> tuple[set[str], dict[str, int]]:
        members: set[str] = set()
        rows: dict[str, int] = {}
        for provenance, batch in scan_batches(order):
            members.add(provenance.member)
            rows |= {row["key"]: row["count"] for row in batch.to_pylist()}
        return members, rows

    return await asyncio.to_thread(read)


async def test_reader_goes_on_to_the_primary_from_wherever_it_was_sent(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """The driver's primary is gone, or a standby by now: members say who it is. Nobody at all, or a mistake that no
    other member would forgive, is told in words, and in time.
    """
    await create_logs(journals, SHARD)

    def tally() -> Any:
        return TALLIES["sqlite"][0](cluster.directory, output="test/output")

    async with (
        cluster.member("a", application=tally(), state_dir=str(tmp_path / "a")) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)))
        end = await Producer(journals).publish(SOURCE, KEYS)
        await wait_for_primaries(client, SHARD)
        await client.wait_read_through(SHARD, {SOURCE: end}, timeout_seconds=DEADLINE_SECONDS)
        async with cluster.member("b", application=tally(), state_dir=str(tmp_path / "b")) as two:

            async def standing() -> bool:
                return (await statuses(client))[SHARD][1:] == [("member-b", "STANDBY")]

            await eventually(standing)
            expected = {"zone-a#member-a"}, dict(Counter(KEYS))
            assert await _read(_order(one.address, one.address)) == expected
            assert await _read(_order(two.address, GONE)) == expected
            assert await _read(_order(two.address, two.address)) == expected
            standby = await _read(_order(one.address, two.address, max_staleness_seconds=10.0))
            assert standby == ({"zone-a#member-b"}, dict(Counter(KEYS)))

        with pytest.raises(StateReadError, match="expected one of key, count; got 'sum'"):
            await _read(_order(one.address, one.address, columns=("sum",)))
    with pytest.raises(StateReadError, match=r"no member answered for it within 0\.3 s; .*refused"):
        await _read(_order(GONE, GONE, patience_seconds=0.3))


async def test_reader_speaks_tls_and_follows_no_route_into_clear_text(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Tables of members that serve TLS alone. A route that names a member in clear text is not followed, because a
    token would be readable on the way: the members that were given tell another.
    """
    await create_logs(journals, SHARD)
    tls = CertificateAuthority(tmp_path).tls("member", "127.0.0.1", mutual=True)
    async with (
        cluster.member(
            "a",
            application=TALLIES["sqlite"][0](cluster.directory, output="test/output"),
            state_dir=str(tmp_path / "a"),
            tls=tls,
        ) as member,
        ShardClient(member.address, tls=tls) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        end = await Producer(journals).publish(SOURCE, KEYS)
        await wait_for_primaries(client, SHARD, timeout_seconds=300.0)
        await client.wait_read_through(SHARD, {SOURCE: end}, timeout_seconds=300.0)
        access = ClusterAccess(addresses=(member.address,), tls=TlsPaths.of_config(tls))
        order = _order(member.address, GONE, access=access, patience_seconds=300.0)
        listing = await list_shards(access, "")
        progress = await progress_of(access, "", listing)
        without = replace(access, tls=TlsPaths())

        assert await _read(order) == ({"zone-a#member-a"}, dict(Counter(KEYS)))
        assert [key[0] for key in progress] == [SHARD]
        with pytest.raises(NoMemberAnsweredError, match="--tls-ca"):
            await list_shards(without, "")
