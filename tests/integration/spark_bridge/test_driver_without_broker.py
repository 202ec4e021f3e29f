"""Shards that are applied by a driver which cannot reach the broker that its members reach."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.model import MemberId
from broadsheet.spark_bridge.cluster.broker_journals import BrokerAccess
from broadsheet.spark_bridge.cluster.membership import MemberInfo
from broadsheet.spark_bridge.cluster.shards import LiveMemberClient, Shards
from tests.support.members import shard
from tests.support.resolving import JOURNALS, AskedCluster

pytestmark = pytest.mark.etcd


async def test_logs_that_a_driver_cannot_look_for_are_told_and_shards_are_applied(
    cluster: AskedCluster,
) -> None:
    """A driver outside the brokers' network must be able to declare shards; its log says what it did not check."""
    spec = shard("ask-0", JOURNALS[0])
    spec.recovery_log_prefix, spec.hint_prefix = "recovery/logs", "/hints"
    async with cluster.member("a") as member:
        info = MemberInfo(
            member_id=MemberId("local", "a"),
            endpoint=member.address,
            partition=0,
            attempt=0,
            exiting=False,
            executor_id="0",
            log_url="",
        )
        client = LiveMemberClient(lambda: [info], auth=None)
        nowhere = BrokerAccess("http://127.0.0.1:1", None, None)

        with capture_logs() as logs:
            await asyncio.to_thread(Shards(client).apply, [spec], nowhere, timeout_seconds=60.0)
        listed = await asyncio.to_thread(client.current().list)
        await asyncio.to_thread(client.close)

    (told,) = (each for each in logs if each["event"] == "cluster.log_journals_unchecked")
    assert "cannot reach http://127.0.0.1:1" in told["error"]
    assert told["log_level"] == "warning"
    assert [each.spec.id for each in listed.shards] == ["ask-0"]
