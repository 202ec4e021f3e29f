"""Who watches whom."""

from __future__ import annotations

from collections import Counter

from broadsheet.allocator.model import MemberId
from broadsheet.consumer.member.failure_detector import WATCHED_PER_MEMBER, watched_by


def _members(count: int) -> list[MemberId]:
    return [MemberId("zone", f"member-{index:02}") for index in range(count)]


def test_everyone_is_watched_by_as_many_as_it_watches() -> None:
    """Around a ring of ten each has two watchers, and none watches itself."""
    members = _members(10)

    watched = Counter(other for member in members for other in watched_by(member, members))

    assert watched == dict.fromkeys(members, WATCHED_PER_MEMBER)
    assert all(member not in watched_by(member, members) for member in members)


def test_small_rings_watch_whom_there_is() -> None:
    """One alone watches nobody; of two each watches the other, once."""
    one, two = _members(2)

    assert watched_by(one, [one]) == ()
    assert watched_by(one, [one, two]) == (two,)
    assert watched_by(two, [one, two]) == (one,)


def test_the_last_watches_the_first() -> None:
    """The ring closes."""
    members = _members(5)

    assert watched_by(members[-1], members) == (members[0], members[1])
