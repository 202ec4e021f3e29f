"""A lease that is kept, and the promise that we count it as lost before etcd does."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator

import pytest

from broadsheet.allocator.errors import LeaseLostError
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.etcd.lease import SAFETY_SHARE, LeaseKeeper
from broadsheet.embedded.etcd import EmbeddedEtcd
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.etcd
KEY = b"/member"


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedEtcd]:
    """An etcd that the test may hurt."""
    async with EmbeddedEtcd() as running:
        yield running


@pytest.fixture
async def client(server: EmbeddedEtcd) -> AsyncIterator[EtcdClient]:
    """A client of it."""
    async with EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as connected:
        yield connected


async def _exists(client: EtcdClient) -> bool:
    return bool((await client.get_range(KEY)).kvs)


async def _lost(keeper: LeaseKeeper) -> tuple[LeaseLostError, float]:
    """Run the keeper until it gives up; return why, and when by the clock that leases go by."""
    with pytest.raises(LeaseLostError) as loss:
        await keeper.run()
    return loss.value, SystemClock().monotonic_seconds()


async def test_lease_kept_outlives_its_ttl(client: EtcdClient) -> None:
    """Renewals move the deadline; the key on the lease stays for more than twice the TTL, and goes when revoked."""
    keeper = await LeaseKeeper.grant(client, 4, SystemClock())
    await client.put(KEY, b"", keeper.lease)
    first_deadline = keeper.deadline_monotonic_seconds

    async with TaskGroup() as group:
        group.start_soon(keeper.run(), name="keep")
        await eventually(lambda: keeper.deadline_monotonic_seconds > first_deadline + 8.8)
        assert await _exists(client)
        group.stop()
    assert await keeper.revoke()

    assert not await _exists(client)


async def test_lease_revoked_by_another_is_lost_at_the_next_renewal(client: EtcdClient) -> None:
    """A successor that revokes our lease ends us within a second."""
    keeper = await LeaseKeeper.grant(client, 6, SystemClock())
    await client.lease_revoke(keeper.lease)

    error, _ = await _lost(keeper)

    assert error.lease_id == keeper.lease
    assert "expired or was revoked" in error.reason


async def test_lease_is_lost_by_our_clock_before_etcd_gives_it_up(
    server: EmbeddedEtcd, client: EtcdClient
) -> None:
    """Etcd falls silent: we fence ourselves at the local deadline, when the key is still there; then it goes."""
    keeper = await LeaseKeeper.grant(client, 10, SystemClock())
    await client.put(KEY, b"", keeper.lease)
    deadline = keeper.deadline_monotonic_seconds
    expiry = deadline + 10 * SAFETY_SHARE
    server.suspend()

    error, lost_at = await _lost(keeper)

    server.resume()
    assert deadline <= lost_at < expiry
    assert "not renewed within 10 s by our clock" in error.reason
    assert await _exists(client)
    await eventually(lambda: _is_gone(client), interval_seconds=0.05)


async def _is_gone(client: EtcdClient) -> bool:
    return not await _exists(client)


async def test_lease_survives_a_pause_of_etcd_shorter_than_its_ttl(
    server: EmbeddedEtcd, client: EtcdClient
) -> None:
    """A renewal that is answered late, but in time, counts from when it was sent."""
    keeper = await LeaseKeeper.grant(client, 10, SystemClock())
    await client.put(KEY, b"", keeper.lease)
    first_deadline = keeper.deadline_monotonic_seconds

    async with TaskGroup() as group:
        group.start_soon(keeper.run(), name="keep")
        server.suspend()
        await eventually(lambda: SystemClock().monotonic_seconds() > first_deadline - 5)
        server.resume()
        await eventually(lambda: keeper.deadline_monotonic_seconds > first_deadline)
        group.stop()

    assert await _exists(client)


async def test_lease_renewed_too_late_is_lost_although_etcd_still_has_it(
    client: EtcdClient,
) -> None:
    """A process that stood still past its deadline must not go on because its renewal happens to succeed."""
    clock = _SettableClock()
    keeper = await LeaseKeeper.grant(client, 60, clock)
    clock.now = 55.0

    error, _ = await _lost(keeper)

    assert "by our clock" in error.reason
    assert await client.lease_keep_alive_once(keeper.lease) == 60


class _SettableClock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic_seconds(self) -> float:
        """Return what was set."""
        return self.now

    def wall_seconds(self) -> float:
        """Return what was set."""
        return self.now


async def test_lease_fractions_of_a_second_are_rounded_up(client: EtcdClient) -> None:
    """Etcd counts in whole seconds; a shorter lease than asked for would break the caller's promise."""
    keeper = await LeaseKeeper.grant(client, 1.2, SystemClock())

    assert math.isclose(keeper.ttl_seconds, 2.0)


async def test_revoke_without_etcd_gives_up_in_time(
    server: EmbeddedEtcd, client: EtcdClient
) -> None:
    """Shutting down must not wait for a dead etcd longer than the lease would live anyway."""
    keeper = await LeaseKeeper.grant(client, 1, SystemClock())
    await server.kill()
    started = time.monotonic()

    async with asyncio.timeout(5):
        assert not await keeper.revoke()

    assert time.monotonic() - started < 4


async def test_lease_whose_holder_was_suspended_is_lost_long_before_its_next_renewal(
    client: EtcdClient,
) -> None:
    """A machine sleeps for longer than the lease: the loop's timers stood still meanwhile, and the one for the next
    renewal of a long lease has minutes left. The deadline is looked at all the same, before much can be written.
    """
    clock = _SettableClock()
    keeper = await LeaseKeeper.grant(client, 600, clock)

    async with TaskGroup() as group, asyncio.timeout(DEADLINE_SECONDS):
        lost = group.start_soon(_lost(keeper), name="keep")
        await asyncio.sleep(0)
        clock.now = 590.0
        error, _ = await lost

    assert "by our clock" in error.reason
