"""The sequencer, situation by situation.

Source: gazette/core message/sequencer_test.go (the situations).
"""

from __future__ import annotations

import pytest

from consumer.errors import ReplayError
from consumer.message.clock import CLOCK_UNITS_PER_SECOND
from consumer.message.emission import ReplayRange
from consumer.message.outcome import Outcome
from consumer.message.ring import Ring, Span
from consumer.message.sequencer import Queued, Sequencer
from consumer.message.uuid import Flags
from tests.support.sequencing import Log, deliver_all, plain, replay

OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
A, B = 0x0100000000AA, 0x0100000000BB


def log_of(*messages: tuple[int, int, int]) -> Log:
    """Return a journal of (producer, clock, flags); each message is 10 bytes long."""
    log = Log()
    for producer, clock, flags in messages:
        log.append(producer, clock, flags)
    return log


def clocks(log: Log, sequencer: Sequencer | None = None) -> list[int]:
    """Return the clocks of what is delivered from a whole journal."""
    return [message.clock for message in deliver_all(sequencer or Sequencer({}), log)]


def queue_all(sequencer: Sequencer, log: Log) -> Queued:
    """Sequence a journal that emits nothing before its last message."""
    queued = sequencer.queue(log.batch())
    assert queued.next_index == len(log.messages)
    return queued


def test_sequencer_interleaved_producers_do_not_hold_up_each_other() -> None:
    """Plan: B commits within A's open transaction. Why: no head-of-line blocking."""
    log = log_of((A, 1, CONTINUE), (B, 5, CONTINUE), (A, 2, CONTINUE), (B, 6, ACK), (A, 3, ACK))

    delivered = deliver_all(Sequencer({}), log)

    assert [(m.producer, m.clock) for m in delivered] == [(B, 5), (B, 6), (A, 1), (A, 2), (A, 3)]


def test_sequencer_duplicates_in_ring_are_dropped() -> None:
    """Plan: messages and acknowledgement twice. Why: an append whose answer was lost is repeated."""
    log = log_of(
        (A, 1, CONTINUE), (A, 2, CONTINUE), (A, 1, CONTINUE), (A, 2, CONTINUE), (A, 3, ACK),
        (A, 2, CONTINUE), (A, 3, ACK), (A, 4, CONTINUE), (A, 5, ACK),
    )  # fmt: skip

    assert clocks(log) == [1, 2, 3, 4, 5]


def test_sequencer_bare_acknowledgement_is_delivered() -> None:
    """Plan: an acknowledgement that commits nothing. Why: its clock must be remembered."""
    log = log_of((A, 1, ACK), (A, 1, CONTINUE), (A, 2, ACK))
    sequencer = Sequencer({})

    assert clocks(log, sequencer) == [1, 2]
    assert sequencer.offsets == {"a/journal": 30}


def test_sequencer_early_acknowledgement_rolls_back_what_is_later() -> None:
    """Plan: acknowledge 2 after having written 3. Why: a recovered producer commits what it knew of."""
    log = log_of(
        (A, 1, CONTINUE), (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 2, ACK),
        (A, 3, CONTINUE), (A, 4, ACK),
    )  # fmt: skip

    assert clocks(log) == [1, 2, 3, 4]
    assert [m.begin for m in deliver_all(Sequencer({}), log)] == [0, 10, 40, 50]


def test_sequencer_repeated_acknowledgement_rolls_back_the_open_span() -> None:
    """Plan: write, crash, acknowledge the last transaction again. Why: an aborted transaction must vanish."""
    log = log_of((A, 1, CONTINUE), (A, 2, ACK), (A, 3, CONTINUE), (A, 4, CONTINUE), (A, 2, ACK))
    sequencer = Sequencer({})

    assert clocks(log, sequencer) == [1, 2]
    assert not sequencer.has_pending()
    assert sequencer.offsets == {"a/journal": 50}
    assert plain(sequencer.take_checkpoint()) == {"a/journal": (50, {A: (2, -1)})}


def test_sequencer_acknowledgement_before_last_one_counts_as_lost_progress() -> None:
    """Plan: acknowledge an older clock, then write on from there. Why: an operator must hear of lost state."""
    log = log_of((A, 7, ACK), (A, 5, ACK), (A, 6, CONTINUE), (A, 7, ACK))
    sequencer = Sequencer({})
    deliver_all(sequencer, log, log.batch(0, 1))

    queued = sequencer.queue(log.batch(1, 2))

    assert queued == Queued(1, False, {Outcome.ACK_ROLLBACK_LOST_PROGRESS: 1}, 20)
    assert [m.clock for m in deliver_all(sequencer, log, log.batch(2))] == [6, 7]


def test_sequencer_small_ring_replays_and_skips_other_producers() -> None:
    """Plan: a ring of one, two producers. Why: what memory lost is read again, and only what is asked for."""
    log = log_of(
        (A, 1, CONTINUE), (B, 9, CONTINUE), (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 4, ACK)
    )
    sequencer = Sequencer({}, ring_messages=1)

    queued = queue_all(sequencer, log)

    assert queued.outcomes == {
        Outcome.CONTINUE_BEGIN_SPAN: 2,
        Outcome.CONTINUE_EXTEND_SPAN: 2,
        Outcome.ACK_COMMIT_REPLAY: 1,
    }
    assert sequencer.replay_range() == ReplayRange("a/journal", 0, 30)
    assert sequencer.peek(10) is None
    replay(sequencer, log)
    run = sequencer.peek(10)
    assert run is not None
    assert list(run.clocks) == [1, 2, 3, 4]


def test_sequencer_ring_bound_by_bytes_forces_replay() -> None:
    """Plan: room for two messages of 10 bytes. Why: large messages must not fill memory."""
    log = log_of((A, 1, CONTINUE), (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 4, ACK))
    sequencer = Sequencer({}, ring_bytes=25)

    queue_all(sequencer, log)

    assert sequencer.replay_range() == ReplayRange("a/journal", 0, 10)


def test_sequencer_duplicates_within_replay_and_across_ring_are_dropped() -> None:
    """Plan: restore, so that only `begin` is known; duplicates before and after. Why: the ring took them as new."""
    log = log_of(
        (A, 1, CONTINUE), (A, 2, CONTINUE), (A, 1, CONTINUE), (A, 3, CONTINUE),
        (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 4, CONTINUE), (A, 5, ACK),
    )  # fmt: skip
    before = Sequencer({})
    before.queue(log.batch(0, 4))
    restored = Sequencer(before.take_checkpoint())

    delivered = deliver_all(restored, log, log.batch(4))

    assert [m.begin for m in delivered] == [0, 10, 30, 60, 70]


def test_sequencer_all_entries_in_ring_rolled_back_delivers_replay_and_acknowledgement() -> None:
    """Plan: the acknowledged part was evicted, the rest is rolled back. Why: the ring may hold nothing of use."""
    log = log_of((A, 1, CONTINUE), (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 1, ACK), (A, 4, ACK))
    sequencer = Sequencer({}, ring_messages=1)

    # An acknowledgement of clock 1 delivers message 1, and is itself dropped as having the same clock.
    assert clocks(log, sequencer) == [1, 4]
    assert sequencer.offsets == {"a/journal": 50}


def test_sequencer_clock_reset_and_reuse_starts_over() -> None:
    """Plan: a rollback to an old clock, then clocks used before. Why: a producer restored from a backup must go on."""
    log = log_of((A, 10, CONTINUE), (A, 11, ACK), (A, 1, ACK), (A, 10, CONTINUE), (A, 11, ACK))

    assert [m.begin for m in deliver_all(Sequencer({}), log)] == [0, 10, 30, 40]


def test_sequencer_outside_messages_form_one_run_with_duplicates_dropped() -> None:
    """Plan: two producers, duplicates in the middle and at both ends. Why: a run must equal its messages one by one."""
    log = log_of(
        (A, 1, OUTSIDE), (A, 1, OUTSIDE), (B, 1, OUTSIDE), (A, 2, OUTSIDE), (A, 2, OUTSIDE),
        (A, 3, CONTINUE),
    )  # fmt: skip
    sequencer = Sequencer({})

    queued = sequencer.queue(log.batch())

    assert queued == Queued(
        5, True, {Outcome.OUTSIDE_COMMIT: 3, Outcome.OUTSIDE_ALREADY_ACKED: 2}, None
    )
    run = sequencer.peek(10)
    assert run is not None
    assert list(run.begins) == [0, 20, 30]
    sequencer.consume(1)
    assert plain(sequencer.take_checkpoint()) == {"a/journal": (20, {A: (1, -1)})}
    sequencer.consume(2)
    assert not sequencer.emitting
    assert plain(sequencer.take_checkpoint()) == {"a/journal": (50, {A: (2, -1), B: (1, -1)})}


def test_sequencer_outside_message_discards_the_pending_span() -> None:
    """Plan: both ways of publishing mixed. Why: it is a producer's mistake that loses data; it must be counted."""
    log = log_of((A, 1, CONTINUE), (A, 2, OUTSIDE), (A, 3, OUTSIDE), (A, 4, ACK))
    sequencer = Sequencer({})

    queued = sequencer.queue(log.batch())

    assert queued.outcomes == {
        Outcome.CONTINUE_BEGIN_SPAN: 1,
        Outcome.OUTSIDE_COMMIT: 2,
        Outcome.SPAN_DISCARDED: 1,
    }
    assert sequencer.has_pending()
    sequencer.consume(2)
    assert not sequencer.has_pending()
    assert [m.clock for m in deliver_all(sequencer, log, log.batch(3))] == [4]


def test_sequencer_unknown_flags_count_as_outside_and_are_reported() -> None:
    """Plan: flags of a later version. Why: delivering is safer than waiting for what never comes."""
    log = log_of((A, 1, 0x100), (A, 1, 0x100))
    sequencer = Sequencer({})

    queued = sequencer.queue(log.batch())

    assert queued.outcomes == {
        Outcome.OUTSIDE_COMMIT: 1,
        Outcome.OUTSIDE_ALREADY_ACKED: 1,
        Outcome.UNKNOWN_FLAGS: 2,
    }


def test_sequencer_zero_clock_is_always_delivered_and_tracks_nobody() -> None:
    """Plan: the nil UUID, any flags, twice. Why: messages without UUID opt out of sequencing."""
    log = log_of((0, 0, OUTSIDE), (A, 0, CONTINUE), (A, 0, ACK), (0, 0, OUTSIDE))
    sequencer = Sequencer({})

    assert [m.begin for m in deliver_all(sequencer, log)] == [0, 10, 20, 30]
    assert plain(sequencer.take_checkpoint()) == {"a/journal": (40, {})}


def test_queue_trailing_duplicates_are_visible_only_without_emission() -> None:
    """Plan: duplicates alone; then before a commit. Why: a read-through would wait for ever for what yields nothing."""
    log = log_of((A, 1, OUTSIDE), (A, 1, OUTSIDE), (A, 2, CONTINUE), (A, 1, CONTINUE), (A, 3, ACK))
    sequencer = Sequencer({})
    deliver_all(sequencer, log, log.batch(0, 1))

    assert sequencer.queue(log.batch(1, 2)).visible_through == 20
    assert sequencer.queue(log.batch(2, 3)).visible_through is None
    assert sequencer.queue(log.batch(3, 4)).visible_through == 40
    assert sequencer.queue(log.batch(4, 5)).visible_through is None


def test_queue_while_emitting_is_a_programming_error() -> None:
    """Plan: queue twice. Why: an application that skipped messages would lose them."""
    log = log_of((A, 1, OUTSIDE))
    sequencer = Sequencer({})
    sequencer.queue(log.batch())

    with pytest.raises(AssertionError, match="while others are emitted"):
        sequencer.queue(log.batch())


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

    assert queued.outcomes == {Outcome.ACK_COMMIT_RING: 1}
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


def test_take_checkpoint_prunes_at_the_horizon() -> None:
    """Plan: producers at, and one unit before, the cut. Why: forgetting too early breaks exactly-once."""
    newest = 2 * CLOCK_UNITS_PER_SECOND
    log = log_of((1, newest // 2, OUTSIDE), (2, newest // 2 - 1, OUTSIDE), (3, newest, OUTSIDE))
    sequencer = Sequencer({})
    deliver_all(sequencer, log)

    assert set(plain(sequencer.take_checkpoint(0))["a/journal"][1]) == {1, 2, 3}
    assert set(plain(sequencer.take_checkpoint(3.0))["a/journal"][1]) == {1, 2, 3}
    assert set(plain(sequencer.take_checkpoint(1.0))["a/journal"][1]) == {1, 3}


def test_take_checkpoint_keeps_the_producer_that_is_emitted() -> None:
    """Plan: a very late acknowledgement, half consumed. Why: forgotten, the other half would be lost in a crash."""
    log = log_of(
        (A, 1, CONTINUE), (A, 2, CONTINUE), (B, CLOCK_UNITS_PER_SECOND, OUTSIDE), (A, 3, ACK)
    )
    sequencer = Sequencer({})
    deliver_all(sequencer, log, log.batch(0, 3))
    sequencer.queue(log.batch(3))
    sequencer.consume(1)

    sources = sequencer.take_checkpoint(0.5)

    assert plain(sources)["a/journal"][1][A] == (1, 10)
    assert [m.clock for m in deliver_all(Sequencer(sources), log, log.batch(3))] == [2, 3]


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
    ring, first, second = Ring(messages_max=3, bytes_max=1000), Span(), Span()

    for span, row in zip((first, second, first, second), log.messages, strict=True):
        ring.add(span, row)

    assert [row[0] for row in first.rows] == [20]
    assert [row[0] for row in second.rows] == [10, 30]
    assert (ring.messages, ring.size_bytes) == (3, 30)
    ring.release(first)
    assert (ring.messages, ring.size_bytes) == (2, 20)


def test_ring_released_spans_leave_no_memory_behind() -> None:
    """Plan: one message stays, thousands come and go. Why: slots of released spans must be swept."""
    log = log_of((A, 1, CONTINUE))
    row = log.messages[0]
    ring, stuck = Ring(messages_max=4, bytes_max=1000), Span()
    ring.add(stuck, row)

    for _ in range(5000):
        passing = Span()
        ring.add(passing, row)
        ring.release(passing)

    assert len(ring._slots) < 100
    assert (ring.messages, ring.size_bytes) == (1, 10)
