"""The status of a replica in etcd is the last one that was said, whatever the mirror shows at that moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.ops import Put
from broadsheet.consumer.shard.replica_status import ReplicaStatusWriter, failed_status
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually

pytestmark = pytest.mark.etcd

KEY = b"/late-mirror/assign/s#zone#one#0"
PRIMARY = ReplicaStatus(code=ReplicaStatus.PRIMARY)


@dataclass
class LateMirror:
    """A mirror of one assignment that shows what etcd has only once it is `refresh`ed."""

    etcd: EtcdClient
    observed: list[Assignment] = field(default_factory=list)
    waited: int = 0

    async def refresh(self) -> None:
        """Show what etcd has now."""
        (kv,) = (await self.etcd.get_range(KEY)).kvs
        status = ReplicaStatus.FromString(kv.value)
        self.observed.append(
            Assignment(
                item_id=ItemId("s"), member_id=MemberId("zone", "one"), slot=0, value=status, kv=kv
            )
        )

    async def wait_for_revision(self, revision: int) -> None:
        """Return once the mirror shows `revision` or a later one."""
        self.waited += 1
        await eventually(lambda: self.observed[-1].kv.mod_revision >= revision)

    async def stored(self) -> ReplicaStatus:
        """Return what etcd has now."""
        return ReplicaStatus.FromString((await self.etcd.get_range(KEY)).kvs[0].value)


async def test_status_is_written_though_a_late_mirror_still_shows_it(etcd: EtcdClient) -> None:
    """A primary fails and is primary again before the mirror shows the failure, whose write was cancelled meanwhile."""
    mirror = LateMirror(etcd)
    await etcd.txn((), (Put(KEY, PRIMARY.SerializeToString()),))
    await mirror.refresh()
    writer = ReplicaStatusWriter(etcd, mirror, lambda: mirror.observed[-1], random=Random(7))
    async with TaskGroup() as tasks:
        failing = tasks.start_soon(writer.replace(failed_status(("it broke",))), name="failing")
        await eventually(lambda: mirror.waited == 1)
        failing.cancel()

        saying = tasks.start_soon(writer.replace(PRIMARY), name="saying")
        await mirror.refresh()
        await eventually(lambda: mirror.waited == 2)
        await mirror.refresh()
        await saying

    assert await mirror.stored() == PRIMARY
