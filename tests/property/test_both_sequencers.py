"""A shard and Spark's journal source on the same journals: the same messages, in the same order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from broadsheet.journals.message.uuid import Flags
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

        assert shown_by_shard(log, cuts, ring_messages=10).begins == shown
        assert shown_by_spark(log, cuts, pending_bytes=1000).begins == shown


@st.composite
def arbitrary_logs(draw: st.DrawFn) -> Log:
    """Journals of any flags and clocks at all."""
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


@dataclass
class Writer:
    """A producer that mixes both ways of publishing, with clocks that grow."""

    log: Log
    producer: int
    clock: int = 0
    acknowledged: int = 0
    """Clock of its last acknowledgement."""
    sent: list[tuple[int, int]] = field(default_factory=list)
    """Clock and flags of its messages."""

    def publish(self, flags: int, count: int = 1) -> None:
        """Append new messages."""
        for _ in range(count):
            self.clock += 16
            if flags == ACK:
                self.acknowledged = self.clock
            self.sent.append((self.clock, flags))
            self.log.append(self.producer, self.clock, flags)

    def roll_back(self, to: int) -> None:
        """Append an acknowledgement of an earlier clock: those after it are taken back, and their clocks used again."""
        self.clock = self.acknowledged = to
        self.log.append(self.producer, to, ACK)

    def repeat(self, count: int) -> None:
        """Append the last messages once more."""
        for clock, flags in self.sent[-count:]:
            self.log.append(self.producer, clock, flags)


STEPS = ["pending"] * 4 + ["alone"] * 2 + ["commit"] * 3
STEPS += ["repeat", "resend", "take back", "lose", "opt out", "unknown"]


@st.composite
def published_logs(draw: st.DrawFn) -> Log:
    """Journals as producers write them that mix both ways of publishing, crash, lose state, repeat, and opt out."""
    choices = random.Random(draw(st.integers(0, 2**32)))
    log = Log()
    writers = [Writer(log, producer) for producer in range(1, draw(st.integers(1, 4)) + 1)]
    for _ in range(draw(st.integers(1, 40))):
        writer = choices.choice(writers)
        match choices.choice(STEPS):
            case "pending":
                writer.publish(CONTINUE, choices.randint(1, 4))
            case "alone":
                writer.publish(OUTSIDE, choices.randint(1, 3))
            case "commit":
                writer.publish(ACK)
            case "repeat":
                writer.repeat(choices.randint(1, 5))
            case "resend":
                writer.roll_back(writer.acknowledged)
            case "take back":
                writer.roll_back(max(writer.acknowledged, writer.clock - 16))
            case "lose":
                writer.roll_back(max(0, writer.acknowledged - 32) or 16)
            case "opt out":
                log.append(writer.producer, 0, choices.choice([ACK, ACK, CONTINUE, OUTSIDE]))
            case _:
                writer.publish(UNKNOWN)
    writers[0].publish(OUTSIDE)
    return log


@given(st.one_of(arbitrary_logs(), published_logs()), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_shard_and_spark_show_the_same(log: Log, seed: int) -> None:
    """Both ways of publishing in one journal, rollbacks, repeats, messages without a clock, however they arrive, with
    memory for one or for all that is pending: what a shard's application sees is what a query shows, in the same order,
    and both know the same of every producer afterwards.
    """
    cuts = random.Random(seed)

    shard = shown_by_shard(log, cuts, ring_messages=cuts.choice([1, 3, 100]))
    spark = shown_by_spark(log, cuts, pending_bytes=cuts.choice([1, 500, 100_000]))

    assert spark == shard
