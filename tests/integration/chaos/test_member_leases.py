"""What a chaos run tells by a member's lease: whether the member is one still, or has only not noticed yet."""

from __future__ import annotations

import pytest

from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import LeaseId
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from tests.chaos.leases import MemberLeases, Renewals
from tests.support.eventually import eventually

pytestmark = pytest.mark.etcd

TTL_SECONDS = 30


async def _announced(etcd: EtcdClient, root: str, suffix: str) -> LeaseId:
    lease = await etcd.lease_grant(TTL_SECONDS)
    await etcd.put(Keys(root).member(MemberId("a", suffix)), b"{}", lease)
    return lease


async def test_member_renews_only_if_its_lease_was_renewed_since_the_last_look(
    etcd: EtcdClient, etcd_server: EmbeddedEtcdProcess, etcd_root: str
) -> None:
    """The first look shows nothing, and neither does a lease that runs down, or another member's renewal."""
    leases = MemberLeases(EtcdConfig(endpoints=(etcd_server.endpoint,)), etcd_root)
    renewals = Renewals(leases)
    lease = await _announced(etcd, etcd_root, "m-1")
    other = await _announced(etcd, etcd_root, "m-11")

    async def runs_down() -> bool:
        assert await etcd.lease_keep_alive_once(other) == TTL_SECONDS
        assert not await renewals.renews("m-1")
        left = await leases.seconds_left("m-1")
        return left is not None and left < TTL_SECONDS - 2

    await eventually(runs_down, interval_seconds=0.2)
    await etcd.lease_keep_alive_once(lease)

    assert await renewals.renews("m-1")
    await etcd.lease_revoke(lease)
    await etcd.lease_revoke(other)


async def test_member_without_lease_does_not_renew_and_its_successor_begins_anew(
    etcd: EtcdClient, etcd_server: EmbeddedEtcdProcess, etcd_root: str
) -> None:
    """A revoked lease leaves nothing to compare with."""
    leases = MemberLeases(EtcdConfig(endpoints=(etcd_server.endpoint,)), etcd_root)
    renewals = Renewals(leases)
    await _announced(etcd, etcd_root, "m-1")
    assert not await renewals.renews("m-1")

    await leases.revoke("m-1")

    assert await leases.seconds_left("m-1") is None
    assert not await renewals.renews("m-1")
    lease = await _announced(etcd, etcd_root, "m-1")
    assert not await renewals.renews("m-1")
    await etcd.lease_revoke(lease)
    await leases.revoke("m-1")  # Nothing is left to do.
