"""Drivers at one root of a real etcd: who is there, whose settings count, and what the dead left."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import LeaseId, prefix_range_end
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.spark_bridge.cluster.enrolment import Enrolment, read_drivers
from broadsheet.spark_bridge.cluster.joining import DriverRecord
from broadsheet.spark_bridge.errors import ClusterJoinError
from broadsheet.spark_bridge.keys import driver_key, hosts_prefix
from broadsheet.wire.shard_pb2 import ConsumerSpec
from tests.support.eventually import eventually

FIRST = DriverRecord(application_id="app-1", broker="http://b:8080", is_embedded=False, zone="one")
SECOND = msgspec.structs.replace(FIRST, application_id="app-2", zone="two")


def _driver(etcd: EtcdClient, root: str, name: str, *, joins: bool = True) -> Enrolment:
    return Enrolment(etcd, Keys(root), cluster=name, joins=joins)


async def _keys_at(etcd: EtcdClient, prefix: bytes) -> list[bytes]:
    return [kv.key for kv in (await etcd.get_range(prefix, prefix_range_end(prefix))).kvs]


async def test_drivers_that_come_and_leave_are_told_in_their_order(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """A driver that joins by an address takes the broker of the first; the last one leaves nothing."""
    first, second = _driver(etcd, etcd_root, "app-1-x"), _driver(etcd, etcd_root, "app-2-y")
    await first.enrol(FIRST)
    await second.enrol(SECOND)
    both = await read_drivers(etcd, etcd_root)
    await first.leave()
    one = await read_drivers(etcd, etcd_root)
    await second.leave()

    assert (both, one) == ((FIRST, SECOND), (SECOND,))
    assert await _keys_at(etcd, etcd_root.encode()) == []


async def test_driver_whose_settings_do_not_fit_is_refused_and_leaves_no_key(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """The one that was there goes on; with join=False the same is a warning, as it was before."""
    first = _driver(etcd, etcd_root, "app-1-x")
    await first.enrol(msgspec.structs.replace(FIRST, is_embedded=True))

    with pytest.raises(ClusterJoinError, match=r"application app-1 at .* start both on their own"):
        await _driver(etcd, etcd_root, "app-2-y").enrol(SECOND)
    left = await read_drivers(etcd, etcd_root)
    alone = _driver(etcd, etcd_root, "app-3-z", joins=False)
    with capture_logs() as logs:
        await alone.enrol(SECOND)

    assert [one.application_id for one in left] == ["app-1"]
    assert [one["event"] for one in logs] == ["cluster.root_shared"]
    await alone.leave()
    await first.leave()


async def test_drivers_that_come_at_once_and_do_not_fit_leave_the_earlier_one(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """If each refused the other, none would serve; if none did, members could not talk to each other."""
    found = await asyncio.gather(
        *(
            _driver(etcd, etcd_root, f"app-{number}-x").enrol(
                msgspec.structs.replace(FIRST, application_id=f"app-{number}", is_tls=bool(number))
            )
            for number in range(2)
        ),
        return_exceptions=True,
    )

    assert [type(one) for one in found if one is not None] == [ClusterJoinError]
    assert len(await read_drivers(etcd, etcd_root)) == 1


async def test_driver_beside_the_record_of_a_later_release_or_damage_is_refused(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Settings that cannot be read cannot be said to fit. A driver that does not join is not held up."""
    key = driver_key(etcd_root, "app-9-q")
    for value, told in ((b'{"min_reader":2}', "a later release wrote"), (b"{", "app-2|truncated")):
        await etcd.put(key, value)
        with pytest.raises(ClusterJoinError, match=told):
            await _driver(etcd, etcd_root, "app-2-y").enrol(SECOND)
    await _driver(etcd, etcd_root, "app-3-z", joins=False).enrol(SECOND)

    assert await read_drivers(etcd, etcd_root) == (SECOND,)


async def test_driver_whose_lease_was_lost_enrols_again(etcd: EtcdClient, etcd_root: str) -> None:
    """A driver that was suspended must not look dead afterwards: others would sweep its members' orders."""
    driver = _driver(etcd, etcd_root, "app-1-x")
    await driver.enrol(FIRST)
    key = driver_key(etcd_root, "app-1-x")
    lost = LeaseId((await etcd.get_range(key)).kvs[0].lease)

    async def is_back() -> bool:
        return [kv.lease != lost for kv in (await etcd.get_range(key)).kvs] == [True]

    async with TaskGroup() as group:
        group.start_soon(driver.run(), name="enrolment")
        await etcd.lease_revoke(lost)
        await eventually(is_back)
        group.stop()


async def test_keys_of_a_killed_application_are_swept_and_those_of_a_living_one_stay(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """A killed driver clears nothing. One whose members still live, of an earlier release, has no key of its own."""
    dead, memberless, early = "app-5-dead", "app-6-starts", "app-7-early"
    for name in (dead, memberless, early):
        await etcd.put(hosts_prefix(etcd_root, name) + b"0", b"{}")
    await etcd.put(
        Keys(etcd_root).member(MemberId("h", "app-7-0-0")), ConsumerSpec().SerializeToString()
    )
    starting = _driver(etcd, etcd_root, memberless)
    await starting.enrol(msgspec.structs.replace(FIRST, application_id="app-6"))

    driver = _driver(etcd, etcd_root, "app-2-y")
    await driver.enrol(SECOND)

    assert await _keys_at(etcd, hosts_prefix(etcd_root, dead)) == []
    assert len(await _keys_at(etcd, hosts_prefix(etcd_root, memberless))) == 1
    assert len(await _keys_at(etcd, hosts_prefix(etcd_root, early))) == 1
