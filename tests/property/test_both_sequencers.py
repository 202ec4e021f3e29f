"""A shard and Spark's journal source on the same journals: the same messages, in the same order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.message.uuid import Flags
from tests.support.both_sequencers import shown_by_shard, shown_by_spark
from tests.support.sequencing import Log

OUTSIDE, CONTINUE, ACK, UNKNOWN = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN, 0x200
A, B = 1, 2


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        pytest.param([(A, 0, ACK)], [0], id="alone"),
        pytest.param([(A, 0, ACK), (A, 16, OUTSIDE)], [0, 10], id="at the head"),
        pytest.param([(A, 16, OUTSIDE), (A, 0, ACK)], [0, 10], id="at the end"),
        pytest.param([(B, 16, OUTSIDE), (A, 0, ACK), (B, 32, OUTSIDE)], [0, 10, 20], id="between"),
        pytest.param([(A, 0, ACK), (A, 0, ACK)], [0, 10], id="twice"),
        pytest.param(
            [(A, 16, CONTINUE), (A, 0, ACK), (A, 32, ACK)], [10, 0], id="within a transaction"
        ),
        pytest.param([(A, 16, CONTINUE), (A, 0, CONTINUE)], [10], id="pending without a clock"),
        pytest.param([(A, 0, UNKNOWN)], [0], id="unknown flags"),
        pytest.param([(A, 16, ACK), (B, 0, ACK), (A, 32, ACK)], [10], id="between others"),
    ],
)
def test_message_without_a_clock_is_shown_whatever_its_flags(
    messages: list[tuple[int, int, int]], shown: list[int]
) -> None:
    """A zero clock opts a message out of sequencing: it is always delivered, it commits nothing, and nobody is tracked
    for it. Both readers must see it wherever it stands, or the same query gives two answers.
    """
    log = Log()
    for producer, clock, flags in messages:
        log.append(producer, clock, flags)
    for seed in range(8):
        cuts = random.Random(seed)

        assert shown_by_shard(log, cuts, ring_messages=10) == shown
        assert shown_by_spark(log, cuts, pending_bytes=1000) == shown


@st.composite
def mixed_logs(draw: st.DrawFn) -> Log:
    """Journals of producers who mix both ways of publishing, roll back, repeat, opt out, in any order."""
    choices = random.Random(draw(st.integers(0, 2**32)))
    log = Log()
    for _ in range(draw(st.integers(1, 40))):
        if log.messages and choices.random() < 0.2:
            again = choices.choice(log.messages[-6:])
            producer, clock, flags = again.producer, again.clock, again.flags
        else:
            producer, clock = choices.randint(1, 3), 16 * choices.randint(0, 12)
            flags = choices.choice([OUTSIDE, CONTINUE, CONTINUE, CONTINUE, ACK, ACK, UNKNOWN])
        log.append(producer, clock, flags, size=choices.choice([5, 10, 40]))
    return log


@given(mixed_logs(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_shard_and_spark_show_the_same(log: Log, seed: int) -> None:
    """Any messages at all, however they arrive, with memory for one or for all that is pending: what a shard's
    application sees is what a query shows, in the same order.
    """
    cuts = random.Random(seed)

    shard = shown_by_shard(log, cuts, ring_messages=cuts.choice([1, 3, 100]))
    spark = shown_by_spark(log, cuts, pending_bytes=cuts.choice([1, 500, 100_000]))

    assert spark == shard
