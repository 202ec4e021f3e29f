"""What pending messages take of memory, for real, and for how long."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.framing import Payloads
from broadsheet.journals.message.sequence import PendingSpan
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.sequencer import SPAN_SECONDS_MAX, Sequencer
from broadsheet.journals.message.uuid import Flags, clock_at
from tests.support.sequencer_logs import ACK, CONTINUE, OUTSIDE, A, B, log_of
from tests.support.sequencing import JSON_TYPE, deliver_all

RING_BYTES = 1 << 18
NOW = clock_at(1_800_000_000 * 10**9)


def abandoned(number: int, *, messages: int, payload_bytes: int) -> MessageBatch:
    """Return what a producer left in a journal that died before its acknowledgement, as it is read."""
    begins = [(1 << 40) + number * 1_000_000 + index * 2000 for index in range(messages)]
    return MessageBatch(
        "a/journal",
        begins,
        [begin + payload_bytes for begin in begins],
        [(1 << 40) + number] * messages,
        [NOW + 16 * index for index in range(messages)],
        [Flags.CONTINUE_TXN] * messages,
        [bytes(payload_bytes) for _ in range(messages)],
        JSON_TYPE,
    )


@pytest.mark.parametrize(
    ("producers", "messages", "payload_bytes"),
    [(800, 1, 60), (400, 4, 60), (20, 200, 100), (30, 20, 1500)],
)
def test_abandoned_spans_take_no_more_memory_than_is_said(
    producers: int, messages: int, payload_bytes: int
) -> None:
    """Producers leave spans for ever, short ones or long: what Python allocates for them stays within the bound, beside
    what is known of each producer. Framed bytes would have let in many times as much.
    """
    kept, empty = (
        _allocated(producers, messages, payload_bytes, ring_bytes) for ring_bytes in (RING_BYTES, 1)
    )

    assert kept - empty < 1.1 * RING_BYTES
    assert kept - empty > 0.4 * RING_BYTES, "no less than that is what the bound is for"


def _allocated(producers: int, messages: int, payload_bytes: int, ring_bytes: int) -> int:
    sequencer = Sequencer({}, ring_bytes=ring_bytes)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(producers):
            sequencer.queue(abandoned(number, messages=messages, payload_bytes=payload_bytes))
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_abandoned_span_leaves_memory_after_its_time() -> None:
    """A producer dies within its transaction, another one goes on; or nothing comes any more at all. Should the
    acknowledgement come after all, the messages are read again.
    """
    log = log_of((A, 1, CONTINUE), (B, 1, OUTSIDE), (A, 2, ACK))
    sequencer = Sequencer({})
    sequencer.queue(log.batch(0, 1), now_seconds=1000.0)
    sequencer.pass_time(1000.0 + SPAN_SECONDS_MAX - 1)
    assert sequencer.pending_messages == 1

    sequencer.pass_time(1000.0 + SPAN_SECONDS_MAX + 1)

    assert (sequencer.pending_messages, sequencer.pending_bytes) == (0, 0)
    assert [m.clock for m in deliver_all(sequencer, log, log.batch(1, 2))] == [1]
    queued = sequencer.queue(log.batch(2))
    assert queued.outcomes == {SequenceOutcome.ACK_COMMIT_REPLAY: 1}
    replayed = sequencer.replay_range()
    assert replayed is not None
    assert (replayed.begin, replayed.end) == (0, 20)


def test_abandoned_message_does_not_keep_all_that_was_read_with_it() -> None:
    """Producers die one after the other, each with one message pending among many that were committed. A view of what
    was read would keep every chunk in memory.
    """
    sequencer = Sequencer({}, ring_bytes=RING_BYTES)
    chunks, messages, payload_bytes = 20, 500, 1000

    gc.collect()
    tracemalloc.start()
    try:
        for number in range(chunks):
            batch = _one_abandoned(number, messages=messages, payload_bytes=payload_bytes)
            index = 0
            while index < len(batch):
                index = sequencer.queue(batch, index).next_index
                while sequencer.emitting and (run := sequencer.peek(messages)) is not None:
                    sequencer.consume(len(run))
            del batch, run
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sequencer.pending_messages == chunks
    # The last chunk is copied when the next one comes.
    assert kept < 2 * messages * payload_bytes


def _one_abandoned(number: int, *, messages: int, payload_bytes: int) -> MessageBatch:
    """Return messages that commit themselves, and one that awaits an acknowledgement, as they are read."""
    begins = [number * 10_000_000 + index * payload_bytes for index in range(messages)]
    return MessageBatch(
        "a/journal",
        begins,
        [begin + payload_bytes for begin in begins],
        [1] * (messages - 1) + [(1 << 40) + number],
        [NOW + 16 * (number * messages + index) for index in range(messages)],
        [Flags.OUTSIDE_TXN] * (messages - 1) + [Flags.CONTINUE_TXN],
        Payloads.of([bytes(payload_bytes)] * messages),
        JSON_TYPE,
    )


def test_committed_messages_leave_memory_at_once() -> None:
    """One producer abandons a transaction, another one commits many, each alone between two checkpoints. What is
    committed is counted by no bound any more, so it must be gone, though the abandoned span is older and stays.
    """
    abandoned_log = log_of((A, 1, CONTINUE))
    log = log_of(*((B, clock, CONTINUE if clock % 2 else ACK) for clock in range(1, 801)))
    sequencer = Sequencer({})
    sequencer.queue(abandoned_log.batch(), now_seconds=1000.0)
    before = _count_in_memory()

    for begin in range(0, 800, 2):
        assert len(deliver_all(sequencer, log, log.batch(begin, begin + 2))) == 2

    kept_batches, kept_spans = (
        now - then for now, then in zip(_count_in_memory(), before, strict=True)
    )
    assert kept_batches < 10
    assert kept_spans < 100
    assert sequencer.pending_messages == 1, "the abandoned one"


def _count_in_memory() -> tuple[int, int]:
    """Return how many batches and spans there are in this process."""
    gc.collect()
    kept = [type(each) for each in gc.get_objects()]
    return kept.count(MessageBatch), kept.count(PendingSpan)
