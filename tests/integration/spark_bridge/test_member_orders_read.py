"""Orders to a member on Spark, read from a real etcd."""

from __future__ import annotations

import asyncio

import pytest

from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.embedded.etcd import EmbeddedEtcd
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.spark_bridge.member.identity import Incarnation
from broadsheet.spark_bridge.member.orders import Order, all_members_key
from broadsheet.spark_bridge.member.serving import Orders
from tests.support.eventually import DEADLINE_SECONDS

pytestmark = pytest.mark.etcd
PREFIX = b"/orders/"


async def test_orders_that_etcd_does_not_tell_for_longer_than_a_call_are_still_obeyed() -> None:
    """The deadline of a call is shorter than a member's lease: an etcd that restarts must not end the member."""
    async with EmbeddedEtcd(listen="tcp") as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), request_timeout_seconds=0.1)
        incarnation = Incarnation(application_id="app", partition=0, attempt=0)
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            EtcdClient(config) as client,
            EtcdClient(
                EtcdConfig(endpoints=(etcd.endpoint,), request_timeout_seconds=20.0)
            ) as driver,
            TaskGroup() as group,
        ):
            await etcd.kill()
            waiting = group.start_soon(Orders(client, PREFIX, incarnation).wait(), name="orders")
            done, _ = await asyncio.wait((waiting,), timeout=0.3)
            assert not done

            await etcd.restart()
            await driver.put(all_members_key(PREFIX), b"")

            assert await waiting is Order.LEAVE
