"""When a holder is taken for dead: `LeaseTest` of awslabs/amazon-kinesis-client, the cases of `isAvailable`."""

from __future__ import annotations

import pytest

from broadsheet.leases.expiry import LastSeen, is_free, sighted
from broadsheet.leases.record import LeaseRecord, Version, Versioned

FREE = LeaseRecord(key="a", epoch=1, counter=2)
HELD = LeaseRecord(key="a", epoch=1, counter=2, owner="w1")


def _found(record: LeaseRecord, *, fence: int = 2) -> Versioned:
    return Versioned(record=record, version=Version("1"), fence=fence)


@pytest.mark.parametrize(
    ("record", "moved", "now", "free"),
    [
        (FREE, None, 100.0, True),
        (FREE, 100.0, 100.0, True),
        (HELD, None, 100.0, True),
        (HELD, 100.0, 100.0, False),
        (HELD, 100.0, 110.0, False),
        (HELD, 100.0, 110.1, True),
    ],
    ids=["nobody's", "let go now", "never moved", "moved now", "at its length", "past it"],
)
def test_lease_is_free(record: LeaseRecord, moved: float | None, now: float, free: bool) -> None:
    """Nobody's is free at once; somebody's strictly after its length."""
    sighting = LastSeen(epoch=1, counter=2, moved_monotonic_seconds=moved)

    assert is_free(_found(record), sighting, now_seconds=now, lease_seconds=10.0) is free


def test_lease_without_a_fence_is_free() -> None:
    """It has an owner's name, and its store knows that nobody lives by it."""
    sighting = LastSeen(epoch=1, counter=2, moved_monotonic_seconds=100.0)

    assert is_free(_found(HELD, fence=0), sighting, now_seconds=100.0, lease_seconds=10.0)


@pytest.mark.parametrize(
    ("before", "record", "moved"),
    [
        (None, HELD, 50.0),
        (None, FREE, None),
        (LastSeen(epoch=1, counter=2, moved_monotonic_seconds=7.0), HELD, 7.0),
        (LastSeen(epoch=1, counter=2, moved_monotonic_seconds=None), FREE, None),
        (LastSeen(epoch=1, counter=1, moved_monotonic_seconds=7.0), HELD, 50.0),
        (LastSeen(epoch=0, counter=2, moved_monotonic_seconds=7.0), HELD, 50.0),
        (LastSeen(epoch=1, counter=1, moved_monotonic_seconds=None), FREE, 50.0),
    ],
    ids=["held", "free", "same", "still free", "renewed", "taken", "let go"],
)
def test_sighting_after_a_look(
    before: LastSeen | None, record: LeaseRecord, moved: float | None
) -> None:
    """A record that did not move keeps its time; at first sight only what is held counts as moved."""
    found = sighted(before, record, now_seconds=50.0)

    assert found == LastSeen(epoch=1, counter=2, moved_monotonic_seconds=moved)
