"""Which deaths of members make a shard suspect, and for how long it is then held back."""

from __future__ import annotations

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.consumer.shard.crash_loop import CrashLoop, DeathRecord, Life, YoungDeath

A, B = MemberId("z", "member-a"), MemberId("z", "member-b")
S, T = ItemId("s"), ItemId("t")
FIRST, SECOND = 11, 22
"""Revisions that created the members' keys."""


def _with_primary(young_seconds: float = 60.0) -> CrashLoop:
    deaths = CrashLoop(young_seconds=young_seconds)
    died = deaths.on_members({A: Life(FIRST, False), B: Life(SECOND, False)})
    deaths.on_primaries({S: A, T: B}, died=died, now_monotonic_seconds=0.0)
    return deaths


def test_primary_that_dies_young_makes_its_shards_suspect() -> None:
    """Member and assignments vanish at once, as they do when a lease ends: those of others are not touched."""
    deaths = _with_primary()

    died = deaths.on_members({A: None})
    found = deaths.on_primaries({S: None}, died=died, now_monotonic_seconds=59.0)

    assert found == (YoungDeath(S, A, FIRST),)


def test_primary_that_served_for_long_is_not_suspect() -> None:
    """What ran well for a minute does not kill its process at the start."""
    deaths = _with_primary()

    died = deaths.on_members({A: None})

    assert deaths.on_primaries({S: None}, died=died, now_monotonic_seconds=60.0) == ()


def test_member_that_leaves_by_itself_is_no_death() -> None:
    """An exiting member takes its leave, whatever it still holds."""
    deaths = _with_primary()
    deaths.on_members({A: Life(FIRST, True)})

    died = deaths.on_members({A: None})

    assert deaths.on_primaries({S: None}, died=died, now_monotonic_seconds=1.0) == ()


def test_moved_primary_is_no_death() -> None:
    """A hand-over changes the primary while both members live; its time begins again."""
    deaths = _with_primary()
    none = deaths.on_members({})
    assert deaths.on_primaries({S: B}, died=none, now_monotonic_seconds=100.0) == ()

    died = deaths.on_members({B: None})

    found = deaths.on_primaries({S: None, T: None}, died=died, now_monotonic_seconds=110.0)
    assert found == (YoungDeath(S, B, SECOND),), "t was served by it for 110 s, s for 10 s"


def test_status_of_a_primary_does_not_start_its_time_anew() -> None:
    """Assignments change with every status; only another primary counts."""
    deaths = _with_primary()
    none = deaths.on_members({})
    deaths.on_primaries({S: A}, died=none, now_monotonic_seconds=50.0)

    died = deaths.on_members({A: None})

    assert deaths.on_primaries({S: None}, died=died, now_monotonic_seconds=70.0) == ()


def test_member_that_is_back_under_its_name_in_the_same_step_has_died() -> None:
    """A supervisor restarts it at once and it takes the same name: its key is another, and its shards are elsewhere,
    or its own again.
    """
    deaths = _with_primary()
    deaths.on_primaries({T: A}, died={}, now_monotonic_seconds=1.0)

    died = deaths.on_members({A: Life(33, False)})
    found = deaths.on_primaries({S: B, T: A}, died=died, now_monotonic_seconds=2.0)

    assert found == (YoungDeath(S, A, FIRST), YoungDeath(T, A, FIRST))


def _record(*suffixes: str, at: float = 1000.0) -> DeathRecord:
    members = tuple(f"z#{suffix}" for suffix in suffixes)
    return DeathRecord(members, at, tuple(range(len(suffixes))))


def _death(member_id: MemberId, life: int) -> YoungDeath:
    return YoungDeath(S, member_id, life)


def test_hold_begins_with_the_third_death_and_doubles() -> None:
    """One or two deaths may be chance; each trial of a shard that kills costs a member, so trials grow rare."""
    holds = [
        _record(*"abcde"[:count]).held_seconds(
            now_wall_seconds=1010.0, deaths_max=3, hold_seconds=100
        )
        for count in (1, 2, 3, 4, 5)
    ]

    assert holds == [0.0, 0.0, 90.0, 190.0, 390.0]


def test_hold_can_be_switched_off() -> None:
    """0 deaths allowed means any number."""
    held = _record(*"abcde").held_seconds(now_wall_seconds=1000.0, deaths_max=0, hold_seconds=100)

    assert held == 0.0


def test_hold_ends_whatever_the_clock_of_who_recorded_it() -> None:
    """One machine's clock is an hour ahead: no shard waits for that hour. Once the hold is over, it is over."""
    record = _record(*"abc", at=4600.0)

    held = [
        record.held_seconds(now_wall_seconds=now, deaths_max=3, hold_seconds=100)
        for now in (1000.0, 4650.0, 4700.0, 9000.0)
    ]

    assert held == [100.0, 50.0, 0.0, 0.0]


def test_life_counts_once_and_old_deaths_are_forgotten() -> None:
    """Several members may tell of one death; deaths of another week are no row."""
    record = DeathRecord().plus(_death(A, 1), now_wall_seconds=1000.0, window_seconds=500)

    again = record.plus(_death(A, 1), now_wall_seconds=1010.0, window_seconds=500)
    second = record.plus(_death(B, 2), now_wall_seconds=1010.0, window_seconds=500)
    late = record.plus(_death(B, 2), now_wall_seconds=1500.0, window_seconds=500)

    assert again is record
    assert second == DeathRecord((str(A), str(B)), 1010.0, (1, 2))
    assert late == DeathRecord((str(B),), 1500.0, (2,))


def test_each_life_of_a_member_with_a_fixed_name_counts() -> None:
    """Where processes keep their names, two of them that die again and again are as many deaths."""
    record = DeathRecord()

    for life, member_id in enumerate((A, B, A, B)):
        record = record.plus(_death(member_id, life), now_wall_seconds=1000.0, window_seconds=500)

    assert record.members == (str(A), str(B), str(A), str(B))
