"""The driver's view of its members, where etcd holds keys that none of them wrote."""

from __future__ import annotations

import asyncio

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.spark_bridge.cluster.membership import Membership
from broadsheet.spark_bridge.member.identity import Incarnation
from broadsheet.wire.shard_pb2 import ConsumerSpec

APPLICATION = "app-20261231235959-0000"


async def test_a_key_that_no_member_wrote_does_not_hide_the_members(
    etcd_server: EmbeddedEtcdProcess, etcd: EtcdClient, etcd_root: str
) -> None:
    """`ShardCluster` would otherwise fail in every call because of one stray key below `members/`."""
    keys = Keys(etcd_root)
    incarnation = Incarnation(application_id=APPLICATION, partition=3, attempt=0)
    member_id = MemberId("zone-a", incarnation.suffix)
    await etcd.put(keys.members_prefix + b"stray", b"not a member")
    await etcd.put(keys.member(member_id), ConsumerSpec(exiting=True).SerializeToString())

    with Membership(
        EtcdConfig(endpoints=(etcd_server.endpoint,)), keys, application_id=APPLICATION
    ) as membership:
        found = await asyncio.to_thread(membership.members)

    assert [(one.member_id, one.exiting) for one in found] == [(member_id, True)]
