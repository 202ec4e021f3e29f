"""Which deaths of members make a shard suspect, and for how long it is then held back."""

from __future__ import annotations

from allocator.core.model import ItemId, MemberId
from consumer.core.young_deaths import DeathRecord, YoungDeath, YoungDeaths

A, B = MemberId("z", "member-a"), MemberId("z", "member-b")
S, T = ItemId("s"), ItemId("t")


def _with_primary(young_seconds: float = 60.0) -> YoungDeaths:
    deaths = YoungDeaths(young_seconds=young_seconds)
    died = deaths.on_members({A: False, B: False})
    deaths.on_primaries({S: A, T: B}, died=died, now_monotonic_seconds=0.0)
    return deaths


def test_primary_that_dies_young_makes_its_shards_suspect() -> None:
    """Member and assignments vanish at once, as they do when a lease ends: those of others are not touched."""
    deaths = _with_primary()

    died = deaths.on_members({A: None})
    found = deaths.on_primaries({S: None}, died=died, now_monotonic_seconds=59.0)

    assert found == (YoungDeath(S, A),)


def test_primary_that_served_for_long_is_not_suspect() -> None:
    """What ran well for a minute does not kill its process at the start."""
    deaths = _with_primary()

    died = deaths.on_members({A: None})

    assert deaths.on_primaries({S: None}, died=died, now_monotonic_seconds=60.0) == ()


def test_member_that_leaves_by_itself_is_no_death() -> None:
    """An exiting member takes its leave, whatever it still holds."""
    deaths = _with_primary()
    deaths.on_members({A: True})

    died = deaths.on_members({A: None})

    assert deaths.on_primaries({S: None}, died=died, now_monotonic_seconds=1.0) == ()


def test_moved_primary_is_no_death() -> None:
    """A hand-over changes the primary while both members live; its time begins anew."""
    deaths = _with_primary()
    none = deaths.on_members({})
    assert deaths.on_primaries({S: B}, died=none, now_monotonic_seconds=100.0) == ()

    died = deaths.on_members({B: None})

    found = deaths.on_primaries({S: None, T: None}, died=died, now_monotonic_seconds=110.0)
    assert found == (YoungDeath(S, B),), "t was served by it for 110 s, s for 10 s"


def test_status_of_a_primary_does_not_start_its_time_anew() -> None:
    """Assignments change with every status; only another primary counts."""
    deaths = _with_primary()
    none = deaths.on_members({})
    deaths.on_primaries({S: A}, died=none, now_monotonic_seconds=50.0)

    died = deaths.on_members({A: None})

    assert deaths.on_primaries({S: None}, died=died, now_monotonic_seconds=70.0) == ()


def _record(*suffixes: str, at: float = 1000.0) -> DeathRecord:
    return DeathRecord(tuple(f"z#{suffix}" for suffix in suffixes), at)


def test_hold_begins_with_the_third_death_and_doubles() -> None:
    """One or two deaths may be chance; each trial of a shard that kills costs a member, so trials grow rare."""
    holds = [
        _record(*"abcde"[:count]).held_until_wall_seconds(deaths_max=3, hold_seconds=100)
        for count in (1, 2, 3, 4, 5)
    ]

    assert holds == [None, None, 1100.0, 1200.0, 1400.0]


def test_hold_can_be_switched_off() -> None:
    """0 deaths allowed means any number."""
    assert _record(*"abcde").held_until_wall_seconds(deaths_max=0, hold_seconds=100) is None


def test_member_counts_once_and_old_deaths_are_forgotten() -> None:
    """Several members may tell of one death; deaths of another week are no row."""
    record = _record("member-a", at=1000.0)

    again = record.plus(A, now_wall_seconds=1010.0, window_seconds=500)
    second = record.plus(B, now_wall_seconds=1010.0, window_seconds=500)
    late = record.plus(B, now_wall_seconds=1500.0, window_seconds=500)

    assert again is record
    assert second == _record("member-a", "member-b", at=1010.0)
    assert late == _record("member-b", at=1500.0)
