"""The exactly-once rule: its table cell by cell, and its ways for columns against its way for one message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from broadsheet.journals.message.sequence_rules import (
    DECISIONS,
    EFFECTS,
    NOTHING_PENDING,
    CommitSelection,
    Effect,
    ProducerClocks,
    SequenceOutcome,
    classify,
    decide,
    duplicates_through,
)
from broadsheet.journals.message.uuid import Flags

OUTSIDE, CONTINUE, ACK, UNKNOWN = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN, 0x200
FLAGS = (OUTSIDE, CONTINUE, ACK, UNKNOWN)
CLOCKS = st.one_of(st.integers(1, 12), st.integers((1 << 64) - 12, (1 << 64) - 1))
"""Few, so that they meet; also the greatest, which no float and no signed integer holds."""


@st.composite
def producers(draw: st.DrawFn) -> ProducerClocks:
    """Producers with messages pending, or without."""
    clock = draw(CLOCKS) - 1
    if draw(st.booleans()):
        return ProducerClocks(clock)
    return ProducerClocks(clock, draw(CLOCKS), begin=100)


def copy_of(producer: ProducerClocks) -> ProducerClocks:
    """Return one that knows the same."""
    return ProducerClocks(producer.min_clock, producer.max_clock, producer.begin)


def obey(producer: ProducerClocks, clock: int, outcome: SequenceOutcome) -> None:
    """Do to a producer what an outcome says."""
    match EFFECTS[outcome]:
        case Effect.HOLD:
            producer.hold(7, clock)
        case Effect.COMMIT | Effect.ROLL_BACK:
            producer.settle(clock)
        case Effect.SKIP:
            pass


@pytest.mark.parametrize(
    ("flags", "begin", "outcomes"),
    [
        (OUTSIDE, 5, "ALREADY_ACKED ALREADY_ACKED DISCARDED DISCARDED"),
        (OUTSIDE, NOTHING_PENDING, "ALREADY_ACKED ALREADY_ACKED COMMIT COMMIT"),
        (UNKNOWN, 5, "ALREADY_ACKED ALREADY_ACKED DISCARDED DISCARDED"),
        (UNKNOWN, NOTHING_PENDING, "ALREADY_ACKED ALREADY_ACKED COMMIT COMMIT"),
        (CONTINUE, 5, "ALREADY_ACKED ALREADY_ACKED DUPLICATE EXTEND_SPAN"),
        (CONTINUE, NOTHING_PENDING, "ALREADY_ACKED ALREADY_ACKED DUPLICATE BEGIN_SPAN"),
        (ACK, 5, "LOST_PROGRESS ROLLBACK COMMIT_RING COMMIT_RING"),
        (ACK, NOTHING_PENDING, "LOST_PROGRESS ROLLBACK EMPTY EMPTY"),
    ],
)
def test_table_is_the_specification(flags: int, begin: int, outcomes: str) -> None:
    """Plan: each flag, with and without something pending, for a clock before, at, within and after the producer's.
    Why: every reader rests on these cells, and the ways to ask are compared with one another only.
    """
    producer = ProducerClocks(20, 40, begin)

    decided = [decide(flags, clock, producer) for clock in (10, 20, 30, 50)]

    expected = outcomes.split()
    assert all(o.name.endswith(e) for o, e in zip(decided, expected, strict=True)), decided


def test_acknowledgement_of_what_memory_lost_asks_for_a_replay() -> None:
    """Plan: an acknowledgement of messages that are not in memory. Why: they would be lost without being read again;
    a duplicate of it must not read anything.
    """
    producer = ProducerClocks(20, 40, 5)

    assert decide(ACK, 50, producer, in_memory=False) is SequenceOutcome.ACK_COMMIT_REPLAY
    assert decide(ACK, 20, producer, in_memory=False) is SequenceOutcome.ACK_ROLLBACK
    assert decide(ACK, 50, ProducerClocks(20), in_memory=False) is SequenceOutcome.ACK_EMPTY


@given(st.sampled_from(FLAGS), producers())
def test_message_without_a_clock_is_shown(flags: int, producer: ProducerClocks) -> None:
    """Plan: any flags, any producer. Why: it opted out of sequencing, so nothing known of anyone may hide it."""
    assert decide(flags, 0, producer) is SequenceOutcome.OUTSIDE_COMMIT


def test_every_decision_has_an_effect() -> None:
    """Plan: each cell of the table. Why: what has no effect would be passed over silently."""
    cells = {outcome for row in DECISIONS.values() for cell in row for outcome in cell}

    assert cells == set(EFFECTS)


@given(st.sampled_from(FLAGS), producers(), st.sets(CLOCKS, min_size=1, max_size=12))
def test_stretch_is_classified_as_its_messages_are_one_by_one(
    flags: int, producer: ProducerClocks, clocks: set[int]
) -> None:
    """Plan: any growing clocks, as a list and as an array, against one message after the other, each obeyed before the
    next. Why: readers ask for whole stretches, and must find what the table says of each message.
    """
    stretch, follower = sorted(clocks), copy_of(producer)
    one_by_one = []
    for clock in stretch:
        one_by_one.append(decide(flags, clock, follower))
        obey(follower, clock, one_by_one[-1])

    for column in (stretch, np.array(stretch, dtype=np.uint64)):
        duplicates, outcomes = classify(flags, column, copy_of(producer))

        assert [outcome for outcome, count in outcomes for _ in range(count)] == one_by_one
        effects = [EFFECTS[outcome] for outcome in one_by_one]
        assert effects[:duplicates] == [Effect.SKIP] * duplicates
        assert Effect.SKIP not in effects[duplicates:]


@given(st.sampled_from(FLAGS), producers(), CLOCKS)
def test_duplicates_end_where_the_table_says(
    flags: int, producer: ProducerClocks, clock: int
) -> None:
    """Plan: any message. Why: runs of single messages compare clocks with one bound instead of asking for each."""
    is_duplicate = EFFECTS[decide(flags, clock, producer)] is Effect.SKIP

    assert is_duplicate == (clock <= duplicates_through(flags)(producer))


@given(st.lists(CLOCKS, max_size=12), CLOCKS, CLOCKS, st.integers(0, 12))
def test_commit_selects_from_columns_as_from_single_messages(
    clocks: list[int], after: int, through: int, cut: int
) -> None:
    """Plan: any clocks in any order, told in two parts, against one after the other. Why: a shard judges what it reads
    again one by one, Spark in columns: the same messages must be committed.
    """
    single = CommitSelection(after=after, through=through)
    expected = [single.admits(clock) for clock in clocks]

    columns = CommitSelection(after=after, through=through)
    parts = [np.array(part, dtype=np.uint64) for part in (clocks[:cut], clocks[cut:])]
    found = [bool(each) for part in parts for each in columns.admitted_of(part)]

    assert found == expected
    assert columns.greatest == single.greatest


@given(st.lists(CLOCKS, max_size=6), st.sets(CLOCKS, max_size=6), CLOCKS, CLOCKS)
def test_commit_selects_from_growing_clocks_as_from_single_messages(
    replayed: list[int], in_memory: set[int], after: int, through: int
) -> None:
    """Plan: any clocks that were read again, then growing ones in memory. Why: what is in memory is cut, not looked
    through, and a copy of what was rolled back must not hide or show any of it.
    """
    single, cutting = (CommitSelection(after=after, through=through) for _ in range(2))
    for clock in replayed:
        assert single.admits(clock) == cutting.admits(clock)
    growing = sorted(in_memory)
    expected = [clock for clock in growing if single.admits(clock)]

    begin, end = cutting.admitted_range(growing)

    assert growing[begin:end] == expected
    assert cutting.greatest == single.greatest
