"""Elections among simulated members, where a course of events was once got wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from allocator.core.model import ItemId
from allocator.runtime.task_group import TaskGroup
from allocator.simulation import Scenario
from allocator.simulation.cluster import Cluster
from allocator.simulation.trace import Trace
from allocator.simulation.virtual_loop import run_virtual, running_loop


def _new_cluster(group: TaskGroup) -> Cluster:
    scenario = Scenario(
        zones=(1, 1),
        limit=(4, 4),
        latencies_seconds=((0.001, 0.01),),
        policies=(Scenario().allocation.policy,),
    )
    return Cluster(1, scenario, group, Trace(running_loop().time), on_defect=lambda _: None)


def _assignments(cluster: Cluster) -> int:
    prefix = cluster.keys.assignments_prefix
    return sum(key.startswith(prefix) for key in cluster.etcd.store.kvs)


def test_member_whose_allocation_hangs_does_not_claim_again_from_one_that_leaves() -> None:
    """A leader that leaves gives way to one that stays, but not to one that was superseded for standing still: it would
    take leadership back at once, every time, and nobody would ever allocate.
    """

    async def hang_and_leave() -> tuple[int, int, int]:
        async with TaskGroup() as group:
            cluster = _new_cluster(group)
            hanging = cluster.join()
            await asyncio.sleep(3.0)
            leaving = cluster.join()
            # It has to stay as long as nobody else can hold its replica.
            cluster.put_item(ItemId("needs-both"), 2)
            await asyncio.sleep(10.0)
            before = _assignments(cluster)
            hanging.process.get_stuck()
            leaving.change(replace(leaving.value, exiting=True))
            cluster.put_item(ItemId("while-hanging"), 1)
            await asyncio.sleep(60.0)
            meanwhile = _assignments(cluster)
            hanging.process.get_unstuck()
            cluster.put_item(ItemId("afterwards"), 1)
            await asyncio.sleep(60.0)
            afterwards = _assignments(cluster)
            cluster.shut_down()
        return before, meanwhile, afterwards

    assert run_virtual(hang_and_leave()) == (2, 3, 4)
