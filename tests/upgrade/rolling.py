"""A cluster is rolled from the previous release to this one, and back. Too slow for CI: `make nightly-upgrade`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.upgrade.fleet import MEMBERS, Fleet, pauses
from tests.upgrade.releases import previous_release, this_release

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(900)]

PAUSE_SECONDS_MAX = 15.0
"""Of one shard while members are replaced: far more than a hand-over takes, less than a lease and a recovery."""


_FIRST, _SECOND = range(MEMBERS), range(MEMBERS, 2 * MEMBERS)
"""Places of members: of a cluster, and of the one that replaces it."""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A cluster of the previous release, under load of a client of that release."""
    previous = previous_release()
    with Fleet(tmp_path) as running:
        await running.start_broker(previous)
        for place in range(MEMBERS):
            await running.start_member(previous, place)
        await running.apply()
        await running.settle()
        await running.start_client(previous)
        yield running


async def test_rolling_upgrade_counts_exactly_once_and_fails_no_query(fleet: Fleet) -> None:
    """The order of the page on upgrades: broker, members, clients. Every message is counted once, no query fails, and
    no shard pauses for longer than a hand-over.
    """
    this = this_release()
    await fleet.stop("broker")
    await fleet.start_broker(this)
    await fleet.settle()
    begun = time.time()
    await fleet.roll_members(this, places=range(MEMBERS, 2 * MEMBERS), old=range(MEMBERS))
    ended = time.time()
    await fleet.stop_client()
    await fleet.start_client(this)
    await fleet.settle()
    await fleet.stop_client()

    longest = pauses(await fleet.check_exactly_once(), begun, ended)
    print(
        f"longest pauses, s: {longest}; {[(r.queries, r.repeated, r.slowest) for r in fleet.reports]}"
    )
    assert [each.failed for each in fleet.reports] == [[], []]
    assert max(longest.values()) < PAUSE_SECONDS_MAX


async def test_rolling_downgrade_counts_exactly_once(fleet: Fleet) -> None:
    """Members go back one by one, after those of this release have written stores, hints and logs."""
    this, previous = this_release(), previous_release()
    await fleet.roll_members(this, places=range(MEMBERS, 2 * MEMBERS), old=range(MEMBERS))
    await fleet.stop_client()
    await fleet.start_client(this)
    await fleet.roll_members(previous, places=range(MEMBERS), old=range(MEMBERS, 2 * MEMBERS))
    await fleet.stop_client()

    await fleet.check_exactly_once()
    assert [each.failed for each in fleet.reports] == [[], []]
    assert await fleet.failures() == []


async def test_members_of_this_release_follow_an_earlier_leader_until_it_leaves(
    fleet: Fleet,
) -> None:
    """Members of both releases run side by side, and the earlier release plans for all of them. What it would
    misunderstand is refused until its last member has left; then it may join, and gets no shards.
    """
    this, previous = this_release(), previous_release()
    await fleet.is_led_from(_FIRST)
    for place in _SECOND:
        await fleet.start_member(this, place)
    await fleet.settle()
    leader = await fleet.leader()
    assert leader in _FIRST
    with pytest.raises(Exception, match=rf"member-{leader}\b.*; replace them"):
        await fleet.apply_key_ranges(_SECOND)
    for place in (each for each in _FIRST if each != leader):
        await fleet.stop_member(place)
        await fleet.settle()
        assert await fleet.leader() == leader
    await fleet.stop_member(leader)
    await fleet.is_led_from(_SECOND)
    await fleet.settle()
    await fleet.apply_key_ranges(_SECOND)

    await fleet.start_member(previous, 0)
    await fleet.roll_members(this, places=range(1, 2), old=range(3, 4))
    assert await fleet.replicas_at(0) == 0
    await fleet.is_led_from(range(1, 6))
    await fleet.stop_client()
    await fleet.check_exactly_once()
    assert [each.failed for each in fleet.reports] == [[]]


async def test_members_of_the_earlier_release_follow_a_later_leader_until_it_leaves(
    fleet: Fleet,
) -> None:
    """The way back, with the leader of this release as the last to leave."""
    this, previous = this_release(), previous_release()
    await fleet.roll_members(this, places=_SECOND, old=_FIRST)
    await fleet.is_led_from(_SECOND)
    for place in _FIRST:
        await fleet.start_member(previous, place)
    await fleet.settle()
    leader = await fleet.leader()
    assert leader in _SECOND
    for place in (each for each in _SECOND if each != leader):
        await fleet.stop_member(place)
        await fleet.settle()
        assert await fleet.leader() == leader
    await fleet.stop_member(leader)
    await fleet.is_led_from(_FIRST)
    await fleet.settle()
    await fleet.stop_client()

    await fleet.check_exactly_once()
    assert [each.failed for each in fleet.reports] == [[]]
    assert await fleet.failures() == []


async def test_earlier_release_that_leads_what_it_cannot_read_is_superseded(fleet: Fleet) -> None:
    """All members that read the level have left, so nothing could refuse the earlier release: it leads, alone. The
    first member of this release that comes back takes the lead and the shards.
    """
    this, previous = this_release(), previous_release()
    await fleet.roll_members(this, places=_SECOND, old=_FIRST)
    await fleet.apply_key_ranges(_SECOND)
    await fleet.stop_client()
    for place in _SECOND:
        await fleet.stop_member(place)
    await fleet.start_member(previous, 0)
    await fleet.is_led_from(range(1))

    await fleet.start_member(this, 3)
    await fleet.is_led_from(_SECOND)
    await fleet.start_member(this, 4)
    await fleet.start_client(this)
    await fleet.settle()
    assert await fleet.replicas_at(0) == 0
    await fleet.stop_client()
    await fleet.check_exactly_once()
    assert [each.failed for each in fleet.reports] == [[], []]


async def test_broker_goes_back_to_the_previous_release_on_its_directory(fleet: Fleet) -> None:
    """A broker of this release writes its files meanwhile: the earlier one reads them, or refuses them by name."""
    await fleet.stop("broker")
    await fleet.start_broker(this_release())
    await fleet.settle()
    await fleet.stop("broker")
    await fleet.start_broker(previous_release())
    await fleet.settle()
    await fleet.stop_client()

    await fleet.check_exactly_once()
