"""The sequencer's checkpoints and its memory, situation by situation: what is resumed, replayed, pruned, evicted.

Source: gazette/core message/sequencer_test.go (the situations).
"""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from broadsheet.journals.errors import ReplayError
from broadsheet.journals.message.sequence import PendingSpan, Ring, memory_bytes
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import CLOCK_UNITS_PER_SECOND
from tests.support.sequencer_logs import ACK, CONTINUE, OUTSIDE, A, B, C, log_of, queue_all
from tests.support.sequencing import Log, deliver_all, plain


def test_has_pending_is_of_spans_begun_since_the_last_checkpoint() -> None:
    """Plan: begin, checkpoint, extend, begin another. Why: a stuck producer delays one transaction, not all."""
    log = log_of((A, 1, CONTINUE), (A, 2, CONTINUE), (B, 1, CONTINUE), (B, 2, ACK))
    sequencer = Sequencer({})

    sequencer.queue(log.batch(0, 1))
    assert sequencer.has_pending()
    sequencer.take_checkpoint()
    assert not sequencer.has_pending()
    sequencer.queue(log.batch(1, 2))
    assert not sequencer.has_pending()
    sequencer.queue(log.batch(2, 3))
    assert sequencer.has_pending()
    deliver_all(sequencer, log, log.batch(3))
    assert not sequencer.has_pending()


def test_sequencer_restored_within_a_sequence_resumes_at_the_next_message() -> None:
    """Plan: checkpoint after 0, 1, 2 of 3 consumed, then restore. Why: a transaction may close mid-way."""
    log = log_of((A, 1, CONTINUE), (A, 2, CONTINUE), (A, 3, ACK))
    for consumed in (0, 1, 2):
        sequencer = Sequencer({})
        queue_all(sequencer, log)
        if consumed:
            sequencer.consume(consumed)

        sources = sequencer.take_checkpoint()

        assert plain(sources) == {"a/journal": (20, {A: (consumed, 10 * consumed)})}
        delivered = deliver_all(Sequencer(sources), log, log.batch(2))
        assert [m.clock for m in delivered] == [1, 2, 3][consumed:]


def test_sequencer_restored_at_the_acknowledgement_needs_no_replay() -> None:
    """Plan: only the acknowledgement is left to consume. Why: an empty range is nothing to read."""
    log = log_of((A, 1, CONTINUE), (A, 2, ACK))
    sequencer = Sequencer({})
    queue_all(sequencer, log)
    sequencer.consume(1)
    restored = Sequencer(sequencer.take_checkpoint())

    queued = restored.queue(log.batch(1))

    assert queued.outcomes == {SequenceOutcome.ACK_COMMIT_RING: 1}
    assert restored.replay_range() is None


def test_sequencer_restored_straddling_duplicates_are_dropped() -> None:
    """Plan: originals before the checkpoint, duplicates after. Why: de-duplication must survive a restart."""
    log = log_of(
        (A, 1, OUTSIDE),
        (B, 1, CONTINUE),
        (B, 2, ACK),
        (A, 1, OUTSIDE),
        (B, 1, CONTINUE),
        (B, 2, ACK),
    )
    before = Sequencer({})
    deliver_all(before, log, log.batch(0, 3))

    assert deliver_all(Sequencer(before.take_checkpoint()), log, log.batch(3)) == []


def test_producer_ahead_of_time_makes_no_other_forgotten() -> None:
    """One producer's wall clock is two days ahead, and checkpoints are taken. A repeated append of another producer is
    still told apart, and the transaction of a third that was pending then is acknowledged whole.
    """
    ahead = 2 * 24 * 3600 * CLOCK_UNITS_PER_SECOND
    log = log_of(
        (A, 1, OUTSIDE), (B, 1, CONTINUE), (C, ahead, OUTSIDE),
        (A, 1, OUTSIDE), (B, 2, CONTINUE), (B, 3, ACK),
    )  # fmt: skip
    sequencer = Sequencer({})
    delivered = deliver_all(sequencer, log, log.batch(0, 3))
    restored = Sequencer(sequencer.take_checkpoint())

    delivered += deliver_all(restored, log, log.batch(3))

    assert [(m.producer, m.clock) for m in delivered] == [
        (A, 1), (C, ahead), (B, 1), (B, 2), (B, 3)
    ]  # fmt: skip


def test_take_checkpoint_keeps_the_producer_that_is_emitted() -> None:
    """Plan: a very late acknowledgement, half consumed. Why: forgotten, the other half would be lost in a crash."""
    late = CLOCK_UNITS_PER_SECOND
    log = log_of(
        (A, 1, CONTINUE), (A, 2, CONTINUE), (B, late, OUTSIDE), (C, late, OUTSIDE), (A, 3, ACK)
    )
    sequencer = Sequencer({})
    deliver_all(sequencer, log, log.batch(0, 4))
    sequencer.queue(log.batch(4))
    sequencer.consume(1)

    sources = sequencer.take_checkpoint(0.5)

    assert plain(sources)["a/journal"][1][A] == (1, 10)
    assert [m.clock for m in deliver_all(Sequencer(sources), log, log.batch(4))] == [2, 3]


def test_take_checkpoint_during_replay_is_safe() -> None:
    """Plan: a checkpoint when the next message is not yet read again. Why: transactions may close there, too."""
    log = log_of((A, 1, CONTINUE), (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 4, ACK))
    sequencer = Sequencer({}, ring_messages=1)
    queue_all(sequencer, log)
    sequencer.feed_replay(log.batch(0, 1))
    sequencer.consume(1)
    assert sequencer.peek(1) is None

    sources = sequencer.take_checkpoint()

    assert [m.clock for m in deliver_all(Sequencer(sources), log, log.batch(3))] == [2, 3, 4]


@pytest.mark.parametrize("ring_messages", [1, 2, 100])
def test_message_is_judged_the_same_when_it_is_read_again(ring_messages: int) -> None:
    """Clocks 2, 9, 3, an acknowledgement of 4: the 3 comes behind a later clock, so it is a late copy. It must not be a
    message where it is read again, or one reader sees what another does not.
    """
    log = log_of(
        (A, 2, CONTINUE), (A, 9, CONTINUE), (B, 1, CONTINUE), (A, 3, CONTINUE), (B, 2, CONTINUE),
        (A, 4, ACK),
    )  # fmt: skip
    sequencer = Sequencer({}, ring_messages=ring_messages)
    early = deliver_all(sequencer, log, log.batch(0, 4))
    restored = Sequencer(sequencer.take_checkpoint(), ring_messages=ring_messages)

    assert not early
    assert [m.clock for m in deliver_all(sequencer, log, log.batch(4))] == [2, 4]
    assert [m.clock for m in deliver_all(restored, log, log.batch(4))] == [2, 4]


def test_feed_replay_of_other_messages_is_refused() -> None:
    """Plan: another journal; before, beyond and back within the range. Why: silently, these would lose or repeat."""
    log = log_of((A, 1, CONTINUE), (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 4, ACK))
    other = Log("an/other", log.messages)
    late = log_of((B, 1, OUTSIDE), *[(m.producer, m.clock, m.flags) for m in log.messages])
    for culprit, problem in (
        (other.batch(0, 1), "messages of an/other"),
        (late.batch(0, 2), r"got messages \[0, 20\), expected ones within \[10, 30\)"),
        (late.batch(2, 4), r"got messages \[20, 40\), expected ones within \[10, 30\)"),
    ):
        sequencer = Sequencer({}, ring_messages=1)
        deliver_all(sequencer, late, late.batch(0, 1))
        sequencer.queue(late.batch(1))
        with pytest.raises(ReplayError, match=problem):
            sequencer.feed_replay(culprit)

    sequencer = Sequencer({}, ring_messages=1)
    queue_all(sequencer, log)
    sequencer.feed_replay(log.batch(0, 1))
    with pytest.raises(ReplayError, match=r"\[0, 10\), expected ones within \[10, 20\)"):
        sequencer.feed_replay(log.batch(0, 1))


def test_ring_evicts_the_oldest_message_of_any_span() -> None:
    """Plan: fill, overflow, release. Why: its two bounds are the shard's memory."""
    log = log_of((A, 1, CONTINUE), (B, 1, CONTINUE), (A, 2, CONTINUE), (B, 2, CONTINUE))
    ring, first, second = Ring(messages_max=3, bytes_max=1 << 20), PendingSpan(), PendingSpan()

    for index, span in enumerate((first, second, first, second)):
        ring.add(span, log.batch(index, index + 1))

    assert [list(part.begins) for part in first.parts] == [[20]]
    assert [list(part.begins) for part in second.parts] == [[10], [30]]
    assert (ring.messages, ring.size_bytes) == (3, 3 * memory_bytes(log.batch(1, 2)))
    ring.release(first)
    assert (ring.messages, ring.size_bytes) == (2, 2 * memory_bytes(log.batch(1, 2)))


def test_ring_released_spans_leave_no_memory_behind() -> None:
    """Plan: one message stays, thousands come and go. Why: slots of released spans must be swept."""
    log = log_of((A, 1, CONTINUE))
    message = log.batch()
    ring, stuck = Ring(messages_max=4, bytes_max=1 << 20), PendingSpan()
    ring.add(stuck, message)

    tracemalloc.start()
    try:
        for _ in range(5000):
            passing = PendingSpan()
            ring.add(passing, message)
            ring.release(passing)
            ring.end_batch()
        del passing
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # Each slot that stayed would take 100 bytes or more.
    assert kept_bytes < 100_000
    assert (ring.messages, ring.size_bytes) == (1, memory_bytes(message))
