"""Shards that weigh differently, and what members report, over real etcd, broker and allocator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.policy import LoadPolicy
from broadsheet.allocator.state.load import MeasuredLoads, MemberReport
from broadsheet.consumer.member.load_report import decode_report
from broadsheet.consumer.member.load_reporter import LoadReporter, ReportPolicy
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.labels import WEIGHT, label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.eventually import eventually
from tests.support.live_shards import (
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    read_through,
    spec_of,
)
from tests.support.members import Cluster, Producer, client_of, shard, upserts, wait_for_primaries

pytestmark = pytest.mark.etcd

MEMBER = MemberId("zone-a", "reporter")
LIGHT = ["part-1", "part-2", "part-3", "part-4"]
TEST_SOURCE = "test/source"


def heavy_shard(weight: str) -> ShardSpec:
    """A shard of this weight."""
    spec = shard("heavy-shard", TEST_SOURCE)
    spec.labels.CopyFrom(label_set({WEIGHT: weight}))
    return spec


async def reported(etcd: EtcdClient, root: str, member_id: MemberId) -> MemberReport | None:
    """What a member says in etcd, if anything."""
    found = await etcd.get_range(AuxiliaryKeys(root).load(member_id))
    return decode_report(found.kvs[0].value) if found.kvs else None


async def test_members_share_shards_by_weight(cluster: Cluster) -> None:
    """One shard as heavy as four others: by count each member would get two or three, by weight it stands alone."""
    async with (
        cluster.member("one") as one,
        cluster.member("two"),
        client_of(one) as client,
    ):
        heavy = heavy_shard("4")
        await client.apply(upserts(heavy, *(shard(name, TEST_SOURCE) for name in LIGHT)))

        homes = await wait_for_primaries(client, "heavy-shard", *LIGHT)

        assert Counter(homes.values())[homes["heavy-shard"]] == 1
        assert len({homes[name] for name in LIGHT}) == 1
        gap = one.registry.get_sample_value("broadsheet_allocator_gap_ratio")
        assert gap == 0.0
        spread = one.registry.get_sample_value("broadsheet_allocator_primary_spread")
        assert spread == 3.0


async def test_member_a_changed_weight_moves_shards(cluster: Cluster) -> None:
    """A label that is set later asks for a new placement, though nobody wants another number of replicas."""
    names = ["heavy-shard", *LIGHT[:3]]
    async with (
        cluster.member("one") as one,
        cluster.member("two"),
        client_of(one) as client,
    ):
        await client.apply(upserts(*(shard(name, TEST_SOURCE) for name in names)))
        homes = await wait_for_primaries(client, *names)
        assert sorted(Counter(homes.values()).values()) == [2, 2]
        listed = {each.spec.id: each for each in (await client.list()).shards}
        revision = listed["heavy-shard"].mod_revision
        heavier = heavy_shard("3")

        await client.apply(upserts(heavier, expect=revision))

        async def stands_alone() -> bool:
            now = await wait_for_primaries(client, *names)
            return Counter(now.values())[now["heavy-shard"]] == 1

        await eventually(stands_alone)


async def test_weight_that_is_none_is_refused_by_name(cluster: Cluster) -> None:
    """The error of an Apply names the label and what was expected."""
    async with cluster.member("one") as one, client_of(one) as client:
        with pytest.raises(Exception, match=r"labels\[broadsheet.dev/weight\].*decimal above 0"):
            await client.apply(upserts(heavy_shard("-1")))


async def test_member_tells_its_capacity_and_takes_it_along(
    cluster: Cluster, etcd: EtcdClient
) -> None:
    """The report is there soon after the member is ready, and goes with its lease."""
    async with cluster.member("one", capacity=30) as one:
        async with cluster.member("two", capacity=10) as two:
            for service, capacity in ((one, 30), (two, 10)):
                member_id = service.member_id

                async def told(member_id: MemberId = member_id, wanted: int = capacity) -> bool:
                    report = await reported(etcd, cluster.root, member_id)
                    return report is not None and report.capacity == wanted

                await eventually(told)
        gone = two.member_id

        async def is_gone() -> bool:
            return await reported(etcd, cluster.root, gone) is None

        await eventually(is_gone)


async def test_member_that_declares_and_measures_nothing_writes_no_report(
    cluster: Cluster, etcd: EtcdClient
) -> None:
    """An ordinary cluster has no such keys at all."""
    async with cluster.member("one") as one, client_of(one) as client:
        await client.apply(upserts(shard("part-1", TEST_SOURCE)))
        await wait_for_primaries(client, "part-1")

        assert await reported(etcd, cluster.root, one.member_id) is None


async def test_reporter_tells_what_a_shard_takes_and_then_nothing_more(
    host: ShardHost, etcd: EtcdClient, etcd_root: str, journals: JournalClient, tmp_path: Path
) -> None:
    """Bytes and CPU of a busy shard arrive decoded; once it idles, one more write says so, and then none follows."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    running = host.start(spec, Counting(tmp_path))
    lease = await etcd.lease_grant(60)
    reporter = LoadReporter(
        LocalMember(MEMBER, host.key_space, etcd),
        lease=lambda: lease,
        shards=lambda: {ItemId(SHARD): running},
        policy=ReportPolicy(measure=True, report_seconds=0.25),
        clock=SystemClock(),
    )
    producer = Producer(journals)
    async with TaskGroup() as group:
        group.start_soon(reporter.run(), name="report")

        async def seen_busy() -> MemberReport:
            end = await producer.publish(SOURCE, [f"key-{n}" for n in range(200)])
            await read_through(running, source=end)
            report = await reported(etcd, etcd_root, MEMBER)
            # The first report may be of a look that saw the shard for the first time: it has no rates.
            assert report is not None
            assert ItemId(SHARD) in report.replicas
            load = report.replicas[ItemId(SHARD)]
            assert load.bytes_per_second > 1_000
            assert load.cpu_ratio > 0.001
            return report

        busy = await eventually(seen_busy)
        loads = MeasuredLoads(LoadPolicy(measure=True))
        assert loads.observe({MEMBER: busy}, 0.0)
        assert (loads.loads or {})[ItemId(SHARD)] >= 1

        async def seen_idle() -> bool:
            report = await reported(etcd, etcd_root, MEMBER)
            return report == MemberReport()

        await eventually(seen_idle)
        before = (await etcd.get_range(AuxiliaryKeys(etcd_root).load(MEMBER))).kvs[0]
        looks = reporter.looks

        async def looked_again() -> bool:
            return reporter.looks >= looks + 3

        await eventually(looked_again)
        after = (await etcd.get_range(AuxiliaryKeys(etcd_root).load(MEMBER))).kvs[0]
        assert after.mod_revision == before.mod_revision
        group.stop()
