"""Whether a remembered offset still means what was read: by incarnation, by epoch, or by the write head alone."""

from __future__ import annotations

import pytest

from broadsheet.journals.errors import JournalReplacedError
from broadsheet.journals.guard import (
    BROKER_LEASE_SECONDS,
    HEAD_PATIENCE_SECONDS,
    OffsetGuard,
    Present,
    RememberedOffset,
    RememberedRead,
    present_epoch,
    standing,
)
from broadsheet.wire.identity_pb2 import JournalEpoch, JournalIdentity

PATIENCE_SECONDS = 5.0


def identity(incarnation: bytes, *epochs: tuple[int, int, int]) -> JournalIdentity:
    """Return an identity of (number, nonce, begin) epochs."""
    return JournalIdentity(
        incarnation=incarnation,
        epochs=[JournalIdentity.Epoch(number=n, nonce=x, begin=b) for n, x, b in epochs],
    )


OLD = identity(b"old", (1, 11, 0))
REOPENED = identity(b"old", (1, 11, 0), (2, 22, 500))
CUT_TWICE = identity(b"old", (1, 11, 0), (2, 22, 900), (3, 33, 500))
READ_IN_1 = JournalEpoch(incarnation=b"old", number=1, nonce=11)


@pytest.mark.parametrize(
    ("offset", "epoch", "present", "expected"),
    [
        (100, READ_IN_1, Present(100, OLD), RememberedOffset.SAME),
        (0, READ_IN_1, Present(0, identity(b"new", (1, 77, 0))), RememberedOffset.SAME),
        (100, READ_IN_1, Present(999, identity(b"new", (1, 77, 0))), RememberedOffset.REPLACED),
        (500, READ_IN_1, Present(999, REOPENED), RememberedOffset.SAME),
        (501, READ_IN_1, Present(999, REOPENED), RememberedOffset.REPLACED),
        (501, READ_IN_1, Present(999, CUT_TWICE), RememberedOffset.REPLACED),
        (999, present_epoch(REOPENED), Present(999, REOPENED), RememberedOffset.SAME),
        (100, present_epoch(REOPENED), Present(999, OLD), RememberedOffset.REPLACED),
        (
            100,
            JournalEpoch(incarnation=b"old", number=2, nonce=99),
            Present(999, REOPENED),
            RememberedOffset.REPLACED,
        ),
        (100, None, Present(100, OLD), RememberedOffset.SAME),
        (101, None, Present(100, OLD), RememberedOffset.BEHIND),
        (101, READ_IN_1, Present(100, None), RememberedOffset.BEHIND),
        (100, READ_IN_1, Present(100, None), RememberedOffset.SAME),
        (100, READ_IN_1, Present(100, JournalIdentity()), RememberedOffset.SAME),
    ],
    ids=[
        "nothing happened",
        "nothing was read of it",
        "deleted and made again, and longer by now",
        "reopened where it was",
        "reopened without its last byte, and longer by now",
        "the deepest cut counts",
        "the present epoch is whole",
        "an older copy of its directory",
        "a copy that went its own way",
        "old checkpoint, head is there",
        "old checkpoint, head is not",
        "Gazette's broker, head is not there",
        "Gazette's broker, head is there",
        "an identity without epochs says nothing",
    ],
)
def test_offset_stands_or_not(
    offset: int, epoch: JournalEpoch | None, present: Present, expected: RememberedOffset
) -> None:
    """Skipping messages in silence, and refusing to read a journal that is fine, are both wrong."""
    assert standing(offset, epoch, present) is expected


def test_epochs_that_were_left_out_are_judged_by_those_that_remain() -> None:
    """An idle shard's checkpoint may be older than the epochs kept: many clean restarts must not fail it."""
    later = identity(b"old", *((number, number, 300) for number in range(70, 134)))

    assert standing(300, READ_IN_1, Present(300, later)) is RememberedOffset.SAME
    assert standing(301, READ_IN_1, Present(400, later)) is RememberedOffset.REPLACED


def test_head_below_the_offset_is_waited_for_but_not_for_ever() -> None:
    """A replica of Gazette's may lag for a moment; a journal that lost its end never comes back."""
    guard = OffsetGuard(
        RememberedRead("a/journal", None, read_through=100, starts_at=100),
        patience_seconds=PATIENCE_SECONDS,
    )

    assert not guard.look(Present(90, None), 0.0)
    assert guard.look(Present(100, None), 4.0)
    assert not guard.look(Present(90, None), 10.0), "patience begins again"
    assert not guard.look(Present(90, None), 14.9)
    with pytest.raises(JournalReplacedError, match=r"a/journal.* offset 100 .*write head is 90"):
        guard.look(Present(90, None), 15.0)


def test_head_below_the_offset_is_waited_for_longer_than_a_crashed_broker_keeps_its_replicas() -> (
    None
):
    """A journal lacks brokers until the lease of a crashed one ends, and so long a new replica shows an old head."""
    guard = OffsetGuard(RememberedRead("a/journal", None, read_through=100, starts_at=100))

    assert not guard.look(Present(90, None), 0.0)
    assert not guard.look(Present(90, None), 1.5 * BROKER_LEASE_SECONDS)
    with pytest.raises(JournalReplacedError):
        guard.look(Present(90, None), HEAD_PATIENCE_SECONDS)


def test_lower_bound_beyond_the_head_was_never_read() -> None:
    """A spec may say to read from an offset that is not written yet, which is no loss; what was read before counts."""
    guard = OffsetGuard(RememberedRead("a/journal", READ_IN_1, read_through=50, starts_at=1_000))

    assert guard.look(Present(60, OLD), 0.0)
    with pytest.raises(JournalReplacedError):
        guard.look(Present(60, identity(b"new", (1, 5, 0))), 0.0)


def test_epoch_is_told_once_it_changes() -> None:
    """Checkpoints must name the epoch that their offset is of, also after a restart of the broker in between."""
    told: list[int] = []
    guard = OffsetGuard(
        RememberedRead("a/journal", None), on_epoch=lambda epoch: told.append(epoch.number)
    )

    guard.look(Present(500, OLD), 0.0, offset=10)
    guard.on_answer(10, OLD, 500)
    guard.on_answer(500, REOPENED, 500)

    assert told == [1, 2]


def test_journal_replaced_between_look_and_read_is_noticed() -> None:
    """What the look found may be gone when the read begins; no byte of the other journal may be delivered."""
    guard = OffsetGuard(RememberedRead("a/journal", READ_IN_1))
    guard.look(Present(500, OLD), 0.0, offset=10)

    with pytest.raises(JournalReplacedError):
        guard.on_answer(10, identity(b"new", (1, 5, 0)), 500)
