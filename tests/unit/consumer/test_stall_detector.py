"""When a primary counts as stalled: there is work, and nothing moves."""

from __future__ import annotations

from broadsheet.consumer.shard.stall_detector import ProgressSample, Stall, StallDetector
from broadsheet.consumer.shard.transaction_events import Activity


def _look(
    *,
    read: int = 0,
    committed: int = 0,
    deliveries: int = 0,
    activity: Activity = Activity.READING,
    head: int = 0,
) -> ProgressSample:
    return ProgressSample(
        read={"in": read},
        committed={"in": committed},
        deliveries=deliveries,
        activity=activity,
        heads={"in": head},
    )


def test_unread_input_without_progress_is_a_stall_after_the_patience() -> None:
    """The head moves on, the shard does not: told once the patience is over, with what waits."""
    detector = StallDetector(stall_seconds=10)

    stalls = [
        detector.observed(_look(head=100 + now), now_monotonic_seconds=now) for now in (0, 5, 9, 10)
    ]

    assert stalls == [None, None, None, Stall(seconds=10, bytes_behind=110, in_transaction=False)]


def test_idle_shard_never_stalls() -> None:
    """A journal that nobody writes to is no reason for alarm, however long."""
    detector = StallDetector(stall_seconds=10)

    stalls = [
        detector.observed(_look(read=50, committed=50, head=50), float(now)) for now in range(100)
    ]

    assert not any(stalls)


def test_messages_that_wait_for_their_acknowledgement_are_no_stall() -> None:
    """What its producer has not committed gives the shard nothing to do, though its checkpoint stands."""
    detector = StallDetector(stall_seconds=10)

    stalls = [detector.observed(_look(read=50, head=50), float(now)) for now in range(100)]

    assert not any(stalls)


def test_callback_that_hangs_in_a_transaction_is_a_stall() -> None:
    """All input is read, and yet the transaction does not end: the application waits for something."""
    detector = StallDetector(stall_seconds=10)

    detector.observed(_look(read=50, head=50, activity=Activity.WORKING), 0.0)
    stall = detector.observed(_look(read=50, head=50, activity=Activity.WORKING), 12.0)

    assert stall == Stall(seconds=12.0, bytes_behind=50, in_transaction=True)


def test_transaction_that_waits_for_time_is_no_stall() -> None:
    """It takes no input before its time, so that what waits in the journal is no reason for alarm."""
    detector = StallDetector(stall_seconds=10)
    look = _look(read=50, head=90, activity=Activity.WAITING)

    assert not any(detector.observed(look, float(now)) for now in range(100))


def test_slow_progress_is_progress() -> None:
    """A shard that is behind but moves, by reading, consuming or committing, is only slow."""
    detector = StallDetector(stall_seconds=10)

    looks = (
        _look(head=1000),
        _look(head=1000, read=10),
        _look(head=1000, read=10, deliveries=1, activity=Activity.WORKING),
        _look(head=1000, read=10, deliveries=1, committed=10),
    )
    stalls = [detector.observed(look, 9.0 * index) for index, look in enumerate(looks)]

    assert not any(stalls)


def test_stall_that_ends_is_over() -> None:
    """Progress starts the patience again."""
    detector = StallDetector(stall_seconds=10)
    detector.observed(_look(head=100), 0.0)
    assert detector.observed(_look(head=100), 10.0) is not None

    assert detector.observed(_look(head=100, read=50), 11.0) is None
    assert detector.observed(_look(head=100, read=50), 20.0) is None
    assert detector.observed(_look(head=100, read=50), 21.0) is not None
