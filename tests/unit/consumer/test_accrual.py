"""How sure a listener is that a peer beats no more: by its silence, its habits, and the listener's own pauses."""

from __future__ import annotations

from random import Random

import pytest

from broadsheet.allocator.etcd.api import LeaseLife
from broadsheet.consumer.member.accrual import SUSPICION_PHI, AccrualDetector
from broadsheet.consumer.member.silence_watch import is_unrenewed

EVERY = 0.25


def _heard(*, until: float, jitter: float = 0.0, pauses: tuple[float, ...] = ()) -> AccrualDetector:
    """A detector that heard beats up to a time; after some of them the peer stood still for a second."""
    detector, random, now = AccrualDetector(expected_seconds=EVERY), Random(7), 0.0
    stops = list(pauses)
    while now < until:
        detector.on_beat(now)
        now += EVERY + random.uniform(0.0, jitter)
        if stops and now >= stops[0]:
            now += 1.0
            stops.pop(0)
    return detector


def _suspected_after(detector: AccrualDetector, last: float) -> float:
    """Return after how much silence it is suspected, seconds."""
    silence = 0.0
    while detector.phi(last + silence) < SUSPICION_PHI:
        silence += 0.01
    return silence


def test_regular_peer_is_suspected_within_a_second() -> None:
    """Quick enough to leave time for a witness and etcd within the two seconds in which a peer is given up."""
    detector = _heard(until=60.0)

    assert 0.6 < _suspected_after(detector, 60.0 - EVERY) < 1.0


@pytest.mark.parametrize("missed", [1, 2])
def test_lost_beats_are_no_suspicion(missed: int) -> None:
    """A beat or two late is what busy machines do all day."""
    detector = _heard(until=60.0)

    assert detector.phi(60.0 - EVERY + EVERY * (missed + 0.5)) < SUSPICION_PHI


def test_peer_that_stands_still_now_and_then_is_given_more_time() -> None:
    """A detector with a fixed limit would suspect it each time; this one learns its habits."""
    habitual = _heard(until=60.0, pauses=(40.0, 45.0, 50.0, 55.0))

    assert _suspected_after(habitual, habitual_last(habitual)) > 1.2


def habitual_last(detector: AccrualDetector) -> float:
    """Return when the last beat came."""
    return next(
        now / 100 for now in range(6500, 0, -1) if detector.silence_seconds(now / 100) < 0.01
    )


def test_own_pause_is_no_silence_of_the_peer() -> None:
    """This process was stopped for ten seconds: it could not have heard anybody, and must suspect nobody for it."""
    detector = _heard(until=60.0)
    last = 60.0 - EVERY
    detector.on_own_pause(10.0)

    assert detector.phi(last + 10.0 + EVERY) < SUSPICION_PHI
    assert _suspected_after(detector, last + 10.0) < 1.0, "silence after the pause counts"

    detector.on_beat(last + 10.1)
    assert _suspected_after(detector, last + 10.1) < 1.0, "the pause is no habit of the peer"


def test_peer_is_suspected_only_once_it_was_heard() -> None:
    """One that is announced may be starting, for as long as it takes; one beat shows that it served."""
    detector = AccrualDetector(expected_seconds=EVERY)
    assert detector.phi(1000.0) == 0.0

    detector.on_beat(1000.0)

    assert _suspected_after(detector, 1000.0) < 1.0


def test_time_without_a_connection_is_no_habit() -> None:
    """The stream was opened again after a minute: what lies between is no time between two beats."""
    detector = _heard(until=60.0)
    detector.on_gap()
    for beat in range(10):
        detector.on_beat(120.0 + beat * EVERY)

    assert _suspected_after(detector, 120.0 + 9 * EVERY) < 1.0


@pytest.mark.parametrize(
    ("left_seconds", "asked_seconds", "is_dead"),
    [(18, 0.01, False), (17, 0.01, True), (16, 3.1, False), (15, 3.1, False), (14, 3.1, True)],
)
def test_lease_counts_as_unrenewed_by_the_round_trips_of_its_etcd(
    left_seconds: int, asked_seconds: float, is_dead: bool
) -> None:
    """With round trips of 3 s a live member renews every 3 s: an age of 2 s then proves nothing against it."""
    life = LeaseLife(granted_seconds=20, left_seconds=left_seconds)

    assert is_unrenewed(life, asked_seconds) is is_dead
