"""The exactly-once rule: the outcome of a message, by its flags, its clock and its producer's history.

The rule is stated only here. A shard's sequencer (`broadsheet.journals.message.sequencer`) and Spark's journal source
(`broadsheet.spark_bridge.journal_source.commit_scan`) both ask `decide` for one message, `classify` for a column of
clocks, and `CommitSelection` for what an acknowledgement commits; they differ only in how they act on the answer.
The decisions form one table, `DECISIONS`:

    flags      clock < min      clock = min      min < clock <= max   clock > max
    OUTSIDE    already acked    already acked    commit *             commit *
    CONTINUE   already acked    already acked    duplicate            begin span, or extend it
    ACK        lost progress    rollback         commit **            commit **

    any        a zero clock opts the message out of sequencing: it is committed by itself, and no producer is tracked

    *  if something is pending, it is discarded
    ** of what is pending: from memory, by a replay, or (nothing is pending) of the acknowledgement alone

`min` is the clock up to which the producer has committed or rolled back, `max` the greatest clock that it has pending;
they are equal if it has nothing pending. For a producer that was not seen before, both are just below the clock of its
first message.

A *stretch* is a column of messages that one producer wrote with the same flags and growing clocks. Both readers cut
what they read into stretches, because a stretch is classified in one step: duplicates can only be at its head.

Source: gazette/core message/sequencer.go (QueueUncommitted: the classification; Step: what a commit passes over).

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from broadsheet.journals.message.uuid import Flags

NOTHING_PENDING: Final = -1
"""In place of the offset where pending messages begin."""
NO_CLOCK: Final = -1
"""Before every clock."""
Clocks: TypeAlias = Sequence[int] | NDArray[np.uint64]


class SequenceOutcome(IntEnum):
    """The outcome of sequencing a message: exactly one of the first eleven; the last two may come in addition.

    Source: gazette/core message/sequencer.go (QueueOutcome).
    """

    OUTSIDE_COMMIT = 0
    """Committed by itself."""
    OUTSIDE_ALREADY_ACKED = 1
    """A duplicate."""
    CONTINUE_BEGIN_SPAN = 2
    """First pending message of its producer."""
    CONTINUE_EXTEND_SPAN = 3
    """Another pending message."""
    CONTINUE_DUPLICATE = 4
    """A duplicate of a pending message."""
    CONTINUE_ALREADY_ACKED = 5
    """A duplicate of a committed message."""
    ACK_COMMIT_RING = 6
    """Commits pending messages, all of them in memory."""
    ACK_COMMIT_REPLAY = 7
    """Commits pending messages, some of which must be read again."""
    ACK_EMPTY = 8
    """Commits nothing but itself."""
    ACK_ROLLBACK = 9
    """Discards its producer's pending messages."""
    ACK_ROLLBACK_LOST_PROGRESS = 10
    """A rollback to before what was already committed: the producer lost state, its messages are at-least-once until
    it catches up. An operator should know."""
    UNKNOWN_FLAGS = 11
    """Its flags are of a later version; it was handled as committed by itself. An operator should know."""
    SPAN_DISCARDED = 12
    """It is committed by itself while its producer has messages pending, which are lost: the producer mixes both ways
    of publishing in one journal. An operator should know."""


class ProducerClocks:
    """The rule's state of one producer in one journal."""

    __slots__ = ("begin", "max_clock", "min_clock")

    def __init__(self, min_clock: int, max_clock: int = 0, begin: int = NOTHING_PENDING) -> None:
        self.min_clock = min_clock
        """Clock of the last message committed or rolled back; earlier ones are duplicates."""
        self.max_clock = max(min_clock, max_clock)
        """Greatest clock of the pending messages; `min_clock` if none is pending."""
        self.begin = begin
        """Offset of the first pending message, bytes; -1 if none is pending."""

    def hold(self, begin: int, through_clock: int) -> None:
        """Add pending messages up to a clock; `begin` is the offset of the first if none was pending."""
        if self.begin == NOTHING_PENDING:
            self.begin = begin
        self.max_clock = through_clock

    def settle(self, clock: int) -> None:
        """Clear what is pending, and commit or roll back to `clock`."""
        self.min_clock = self.max_clock = clock
        self.begin = NOTHING_PENDING


class ClockStanding(IntEnum):
    """The position of a clock among those of its producer: the columns of the table."""

    BEFORE = 0
    LAST = 1
    SEEN = 2
    NEW = 3


class SpanState(IntEnum):
    """The location of a producer's pending messages."""

    NOTHING = 0
    IN_MEMORY = 1
    TO_READ_AGAIN = 2
    """Memory no longer holds all of them."""


class Effect(Enum):
    """The effect of an outcome on the producer."""

    SKIP = "skip"
    """Nothing: the message is passed over."""
    HOLD = "hold"
    """The message awaits an acknowledgement (`ProducerClocks.hold`)."""
    COMMIT = "commit"
    """The messages that it commits are shown, then the producer settles at its clock (`ProducerClocks.settle`)."""
    ROLL_BACK = "roll back"
    """The producer settles at the message's clock, and nothing is shown."""


EFFECTS: Final[Mapping[SequenceOutcome, Effect]] = {
    SequenceOutcome.OUTSIDE_COMMIT: Effect.COMMIT,
    SequenceOutcome.SPAN_DISCARDED: Effect.COMMIT,
    SequenceOutcome.OUTSIDE_ALREADY_ACKED: Effect.SKIP,
    SequenceOutcome.CONTINUE_BEGIN_SPAN: Effect.HOLD,
    SequenceOutcome.CONTINUE_EXTEND_SPAN: Effect.HOLD,
    SequenceOutcome.CONTINUE_DUPLICATE: Effect.SKIP,
    SequenceOutcome.CONTINUE_ALREADY_ACKED: Effect.SKIP,
    SequenceOutcome.ACK_COMMIT_RING: Effect.COMMIT,
    SequenceOutcome.ACK_COMMIT_REPLAY: Effect.COMMIT,
    SequenceOutcome.ACK_EMPTY: Effect.COMMIT,
    SequenceOutcome.ACK_ROLLBACK: Effect.ROLL_BACK,
    SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS: Effect.ROLL_BACK,
}

# Looking up an enum's member takes longer than the decision in `classify`.
_NOTHING: Final = SpanState.NOTHING
_IN_MEMORY: Final = SpanState.IN_MEMORY
_SKIP: Final = Effect.SKIP
_Cell: TypeAlias = tuple[SequenceOutcome, SequenceOutcome, SequenceOutcome]
"""By `SpanState`."""
_Row: TypeAlias = tuple[_Cell, _Cell, _Cell, _Cell]
"""By `ClockStanding`."""


def _whatever_is_pending(outcome: SequenceOutcome) -> _Cell:
    return (outcome, outcome, outcome)


_OUTSIDE_COMMIT: Final = (
    SequenceOutcome.OUTSIDE_COMMIT,
    # The producer mixes both ways of publishing. Holding this message until an acknowledgement could delay it forever,
    # and showing what is pending would commit what may still be rolled back. So what is pending is lost.
    SequenceOutcome.SPAN_DISCARDED,
    SequenceOutcome.SPAN_DISCARDED,
)
_OUTSIDE: Final[_Row] = (
    # An append whose answer was lost is retried: its messages arrive a second time.
    _whatever_is_pending(SequenceOutcome.OUTSIDE_ALREADY_ACKED),
    _whatever_is_pending(SequenceOutcome.OUTSIDE_ALREADY_ACKED),
    # Not a duplicate, although so great a clock was seen: that message was pending, and was not shown.
    _OUTSIDE_COMMIT,
    _OUTSIDE_COMMIT,
)
_CONTINUE: Final[_Row] = (
    # A copy of what was committed or rolled back: either way its outcome is final.
    _whatever_is_pending(SequenceOutcome.CONTINUE_ALREADY_ACKED),
    _whatever_is_pending(SequenceOutcome.CONTINUE_ALREADY_ACKED),
    # A copy of a pending message. A message that is not a copy looks the same if the late copy of a rolled back message
    # with a greater clock came before it.
    _whatever_is_pending(SequenceOutcome.CONTINUE_DUPLICATE),
    (
        SequenceOutcome.CONTINUE_BEGIN_SPAN,
        SequenceOutcome.CONTINUE_EXTEND_SPAN,
        SequenceOutcome.CONTINUE_EXTEND_SPAN,
    ),
)
_ACK_COMMIT: Final = (
    # Its messages lie before the offset at which the reader began, or there are none: it is delivered alone.
    SequenceOutcome.ACK_EMPTY,
    SequenceOutcome.ACK_COMMIT_RING,
    SequenceOutcome.ACK_COMMIT_REPLAY,
)
_ACK: Final[_Row] = (
    # The producer lost what it had committed, and resumed from an earlier state. Keeping the greater clock would drop
    # everything that it writes until it has caught up, so the clock goes back, and some messages may be shown twice.
    _whatever_is_pending(SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS),
    # A successor re-sends the last acknowledgement of a dead producer, which rolls back the messages after it.
    _whatever_is_pending(SequenceOutcome.ACK_ROLLBACK),
    # Its clock is before that of the last pending message: the later messages are rolled back (`CommitSelection`).
    _ACK_COMMIT,
    _ACK_COMMIT,
)
DECISIONS: Final[Mapping[int, _Row]] = {
    Flags.OUTSIDE_TXN: _OUTSIDE,
    Flags.CONTINUE_TXN: _CONTINUE,
    Flags.ACK_TXN: _ACK,
}
"""By flags; those of a later version are handled as OUTSIDE, because a message is better shown than lost."""
TXN_FLAGS: Final = frozenset(DECISIONS) - {Flags.OUTSIDE_TXN}
"""Flags of messages that belong to a transaction. All other messages, and those without a clock, commit themselves."""


def decide(
    flags: int, clock: int, producer: ProducerClocks, *, in_memory: bool = True
) -> SequenceOutcome:
    """Return the outcome of one message.

    Args:
        flags: Of the message.
        clock: Of the message. Zero opts it out of sequencing: it is shown whatever its flags, and not tracked.
        producer: State of its producer before it.
        in_memory: Whether all of the producer's pending messages are in memory.
    """
    if not clock:
        return SequenceOutcome.OUTSIDE_COMMIT
    cell = DECISIONS.get(flags, _OUTSIDE)[standing_of(clock, producer)]
    if producer.begin == NOTHING_PENDING:
        return cell[SpanState.NOTHING]
    return cell[SpanState.IN_MEMORY if in_memory else SpanState.TO_READ_AGAIN]


def classify(
    flags: int, clocks: Clocks, producer: ProducerClocks
) -> tuple[int, Sequence[tuple[SequenceOutcome, int]]]:
    """Return the outcomes of a stretch: the same as if `decide` were asked, and obeyed, one message at a time.

    Args:
        flags: Of its messages. The first of several acknowledgements is assumed to commit from memory.
        clocks: Of its messages, ascending; shape (N,), N > 0. None is zero.
        producer: State of their producer before them.

    Returns:
        The number of duplicates at its head, which are skipped, and the outcomes in order, each with the number of
        messages that have it.
    """
    row = DECISIONS.get(flags, _OUTSIDE)
    span = _NOTHING if producer.begin == NOTHING_PENDING else _IN_MEMORY
    count, done = len(clocks), 0
    outcomes: list[tuple[SequenceOutcome, int]] = []
    while done < count:
        standing = standing_of(int(clocks[done]), producer)
        outcome = row[standing][span]
        if EFFECTS[outcome] is not _SKIP:
            if count - done == 1:
                return done, [*outcomes, (outcome, 1)]
            return done, [*outcomes, (outcome, 1), (_FOLLOWING[outcome], count - done - 1)]
        stop = _count_through(clocks, _last_clock(standing, producer))
        outcomes.append((outcome, stop - done))
        done = stop
    return done, outcomes


def duplicates_through(flags: int) -> Callable[[ProducerClocks], int]:
    """Return a function for a producer's last clock whose message with these flags is a duplicate."""
    return _FLOORS.get(flags, _FLOORS[Flags.OUTSIDE_TXN])


def standing_of(clock: int, producer: ProducerClocks) -> int:
    """Return the position of a clock, as the number of a `ClockStanding`."""
    least = producer.min_clock
    return (clock >= least) + (clock > least) + (clock > producer.max_clock)


class CommitSelection:
    """The choice of a producer's pending messages that an acknowledgement commits, made in the journal's order.

    It skips copies, which do not have the greatest clock so far, and messages that are rolled back, which have a later
    clock than the acknowledgement. The latter count among the clocks so far, because messages that are read again must
    be judged as they were the first time.
    """

    __slots__ = ("greatest", "through")

    def __init__(self, *, after: int, through: int) -> None:
        """Begin a selection.

        Args:
            after: Clock up to which the producer's messages were committed before.
            through: Clock of the acknowledgement.
        """
        self.greatest = after
        """Greatest clock so far."""
        self.through = through

    def admits(self, clock: int) -> bool:
        """Return whether the next message is committed."""
        if clock <= self.greatest:
            return False
        self.greatest = clock
        return clock <= self.through

    def admitted_of(self, clocks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of the next messages are committed; both have shape (N,)."""
        if not len(clocks):
            return np.zeros(0, dtype=np.bool_)
        greatest = np.maximum(np.maximum.accumulate(clocks), np.uint64(self.greatest))
        before = np.concatenate((np.array([self.greatest], dtype=np.uint64), greatest[:-1]))
        self.greatest = int(greatest[-1])
        committed: NDArray[np.bool_] = (clocks > before) & (clocks <= np.uint64(self.through))
        return committed

    def admitted_range(self, clocks: Clocks) -> tuple[int, int]:
        """Return the indices [begin, end) of the committed ones among the next messages, whose clocks ascend."""
        count = len(clocks)
        if count and clocks[0] > self.greatest and clocks[-1] <= self.through:
            self.greatest = int(clocks[-1])
            return 0, count  # The usual case.
        begin = _count_through(clocks, self.greatest)
        end = _count_through(clocks, self.through)
        if begin < count:
            self.greatest = int(clocks[-1])
        return min(begin, end), end


def _last_clock(standing: int, producer: ProducerClocks) -> int:
    """Return the greatest clock of a standing."""
    assert standing != ClockStanding.NEW, "clocks have no end"
    if standing == ClockStanding.SEEN:
        return producer.max_clock
    return producer.min_clock - (standing == ClockStanding.BEFORE)


def _count_through(clocks: Clocks, clock: int) -> int:
    """Return the number of ascending clocks that are at most `clock`."""
    if isinstance(clocks, np.ndarray):
        return int(clocks.searchsorted(np.uint64(clock), side="right"))
    return bisect_right(clocks, clock)


def _floor_of(row: _Row) -> Callable[[ProducerClocks], int]:
    """Return a function for the clock up to which the messages of a row are skipped.

    Requires:
        The row skips messages up to one clock and none beyond it, whatever is pending, so that duplicates are at the
        head of a stretch.
    """
    skips = [all(EFFECTS[outcome] is Effect.SKIP for outcome in cell) for cell in row]
    match skips:
        case [True, True, False, False]:
            return _min_clock_of
        case [True, True, True, False]:
            return _max_clock_of
        case [False, False, False, False]:
            return _no_clock
        case _:
            raise AssertionError(f"duplicates up to no clock that is known: {row}")


_min_clock_of: Final[Callable[[ProducerClocks], int]] = attrgetter("min_clock")
_max_clock_of: Final[Callable[[ProducerClocks], int]] = attrgetter("max_clock")


def _no_clock(_: ProducerClocks) -> int:
    return NO_CLOCK


_FLOORS: Final = {flags: _floor_of(row) for flags, row in DECISIONS.items()}


def _following(outcome: SequenceOutcome) -> SequenceOutcome:
    """Return the outcome of the next message of a stretch after one with this outcome, which is not a duplicate's."""
    row = next(row for row in DECISIONS.values() if any(outcome in cell for cell in row))
    # Whatever its effect, the clock of the message before is now the producer's greatest, so the next one is new.
    span = SpanState.IN_MEMORY if EFFECTS[outcome] is Effect.HOLD else SpanState.NOTHING
    return row[ClockStanding.NEW][span]


_FOLLOWING: Final = {
    outcome: _following(outcome) for outcome, effect in EFFECTS.items() if effect is not Effect.SKIP
}
