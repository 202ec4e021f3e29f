"""What a primary may say of itself without harm to the member that has its standby."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from broadsheet.allocator.key_space import ObserverStage
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Put
from broadsheet.allocator.policy import MoveLogPolicy
from broadsheet.consumer.member.standby_take_over import BrokerProof, StandbyTakeOver
from broadsheet.consumer.registry.key_space import process_id_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.shard_pb2 import ConsumerSpec, ReplicaStatus, ShardSpec
from tests.support.eventually import eventually
from tests.support.live_shards import SHARD, SOURCE, ShardHost

pytestmark = pytest.mark.etcd

SELF, PRIMARY = MemberId("zone-a", "member-0"), MemberId("zone-a", "member-1")
ITEM = ItemId(SHARD)


async def test_primary_that_names_no_journal_harms_no_standby(
    host: ShardHost, journals: JournalClient
) -> None:
    """A primary says that a journal does not answer it, and its name is none: the member that has the standby cannot
    ask, and must go on. Once the primary names a journal, the shard is taken over.
    """
    keys, asked = host.key_space.keys, 0

    def is_calm() -> bool:
        nonlocal asked
        asked += 1
        return True

    take_over = StandbyTakeOver(
        LocalMember(SELF, host.key_space, host.etcd),
        BrokerProof(journals, is_calm=is_calm, reads_journals=True),
        move_log=MoveLog(
            host.etcd, keys, member_id=SELF, policy=MoveLogPolicy(), clock=SystemClock()
        ),
        clock=SystemClock(),
        registry=CollectorRegistry(),
    )
    host.key_space.observe(ObserverStage.WAKE, take_over.look)
    spec = ShardSpec(id=SHARD, sources=[ShardSpec.Source(journal=SOURCE)], hot_standbys=1)
    spec.max_txn_duration.FromSeconds(1)
    member = ConsumerSpec(
        process_spec=ProcessSpec(id=process_id_of(SELF), endpoint="http://127.0.0.1:1"),
        shard_limit=10,
    )
    standby = ReplicaStatus(code=ReplicaStatus.STANDBY)
    await host.etcd.txn(
        (),
        (
            Put(keys.member(SELF), member.SerializeToString()),
            Put(keys.item(ITEM), spec.SerializeToString()),
            Put(keys.assignment(ITEM, SELF, 1), standby.SerializeToString()),
        ),
    )

    async def say(journal: str) -> None:
        status = ReplicaStatus(
            code=ReplicaStatus.PRIMARY, unavailable="no answer", unanswered_journal=journal
        )
        put = Put(keys.assignment(ITEM, PRIMARY, 0), status.SerializeToString())
        result = await host.etcd.txn((), (put,))
        await host.key_space.wait_for_revision(result.header.revision)

    async with TaskGroup() as group:
        group.start_soon(take_over.run(), name="take over")
        await say("no journal\n")
        await eventually(lambda: asked >= 1)
        await say(SOURCE)
        await eventually(lambda: (ITEM, SELF, 0) in host.key_space.assignments, timeout_seconds=30)
        group.stop()
