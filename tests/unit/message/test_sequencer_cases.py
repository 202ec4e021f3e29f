"""The sequencer, situation by situation.

Source: gazette/core message/sequencer_test.go (the situations).
"""

from __future__ import annotations

import pytest

from broadsheet.journals.message.sequence import ReplayRange, memory_bytes
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.sequencer import Queued, Sequencer
from tests.support.sequencer_logs import ACK, CONTINUE, OUTSIDE, A, B, clocks, log_of, queue_all
from tests.support.sequencing import deliver_all, plain, replay


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

    assert queued == Queued(1, False, {SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS: 1}, 20)
    assert [m.clock for m in deliver_all(sequencer, log, log.batch(2))] == [6, 7]


def test_sequencer_small_ring_replays_and_skips_other_producers() -> None:
    """Plan: a ring of one, two producers. Why: what memory lost is read again, and only what is asked for."""
    log = log_of(
        (A, 1, CONTINUE), (B, 9, CONTINUE), (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 4, ACK)
    )
    sequencer = Sequencer({}, ring_messages=1)

    queued = queue_all(sequencer, log)

    assert queued.outcomes == {
        SequenceOutcome.CONTINUE_BEGIN_SPAN: 2,
        SequenceOutcome.CONTINUE_EXTEND_SPAN: 2,
        SequenceOutcome.ACK_COMMIT_REPLAY: 1,
    }
    assert sequencer.replay_range() == ReplayRange("a/journal", 0, 30)
    assert sequencer.peek(10) is None
    replay(sequencer, log)
    run = sequencer.peek(10)
    assert run is not None
    assert list(run.clocks) == [1, 2, 3, 4]


def test_sequencer_ring_bound_by_bytes_forces_replay() -> None:
    """Plan: room for two messages, as long as they are short. Why: large messages must not fill memory."""
    log = log_of((A, 1, CONTINUE), (A, 2, CONTINUE), (A, 3, CONTINUE), (A, 4, ACK))
    sequencer = Sequencer({}, ring_bytes=memory_bytes(log.batch(0, 2)) + 10)

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
        5, True, {SequenceOutcome.OUTSIDE_COMMIT: 3, SequenceOutcome.OUTSIDE_ALREADY_ACKED: 2}, None
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
        SequenceOutcome.CONTINUE_BEGIN_SPAN: 1,
        SequenceOutcome.OUTSIDE_COMMIT: 2,
        SequenceOutcome.SPAN_DISCARDED: 1,
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
        SequenceOutcome.OUTSIDE_COMMIT: 1,
        SequenceOutcome.OUTSIDE_ALREADY_ACKED: 1,
        SequenceOutcome.UNKNOWN_FLAGS: 2,
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
