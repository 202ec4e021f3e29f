"""Which silent producers a micro-batch's state still knows."""

from __future__ import annotations

import json

import pytest

from broadsheet.journals.message.uuid import CLOCK_UNITS_PER_SECOND, Flags, clock_at
from broadsheet.spark_bridge.journal_source.commit_scan import CommitScan, ScannedBatch
from broadsheet.spark_bridge.journal_source.journal_state import (
    AT_THE_BEGINNING,
    JournalState,
    ProducerState,
)
from tests.support.commit_scans import scan_on
from tests.support.sequencing import Log

OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
NOW = clock_at(1_800_000_000 * 10**9)
DAY = 24 * 3600 * CLOCK_UNITS_PER_SECOND
USUAL, AHEAD, THIRD, SILENT = 1, 2, 3, 4


def read_on(log: Log, state: JournalState) -> ScannedBatch:
    """Return the micro-batch from a state to the journal's end, as planned by a driver that has just started."""
    return scan_on(CommitScan(state, stretch_bytes=1), log, head=log.messages[-1].end)


def through_json(state: JournalState) -> JournalState:
    """Return a state as Spark keeps it."""
    return JournalState.from_json(json.loads(json.dumps(state.to_json())))


def test_producer_ahead_of_time_makes_no_other_forgotten() -> None:
    """A producer two days ahead, then the end of a micro-batch. The next one has neither the repeat of another
    producer's append nor less than the whole transaction that was pending.
    """
    log = Log()
    log.append(USUAL, NOW, OUTSIDE)
    log.append(THIRD, NOW, CONTINUE)
    log.append(AHEAD, NOW + 2 * DAY, OUTSIDE)
    first = read_on(log, AT_THE_BEGINNING)
    log.append(USUAL, NOW, OUTSIDE)
    log.append(THIRD, NOW + 16, CONTINUE)
    log.append(THIRD, NOW + 32, ACK)

    second = read_on(log, through_json(first.end))

    assert first.begins.tolist() == [0, 20]
    assert second.begins.tolist() == [10, 40]


def test_silent_producer_is_forgotten_after_a_day_of_reading() -> None:
    """Micro-batches a minute apart for 25 hours, through restarts: the state is what remembers how long it was."""
    log = Log()
    log.append(SILENT, NOW, OUTSIDE)
    log.append(THIRD, NOW, CONTINUE)
    state, scan = AT_THE_BEGINNING, CommitScan(AT_THE_BEGINNING)
    known: list[bool] = []
    for minute in range(25 * 60):
        clock = NOW + minute * 60 * CLOCK_UNITS_PER_SECOND
        log.append(USUAL, clock + 16, OUTSIDE)
        log.append(AHEAD, clock + 16, OUTSIDE)
        if minute % 300 == 0:
            scan = CommitScan(through_json(state))
        state = scan_on(scan, log, head=log.messages[-1].end, now_seconds=60.0 * minute).end
        known.append(SILENT in state.producers)

    assert known.index(False) // 60 == 24
    assert not any(known[known.index(False) :])
    assert THIRD in state.producers, "it has a transaction pending"


def test_state_does_not_change_while_nothing_is_read() -> None:
    """An idle query asks again and again. A state that aged in between would be an empty micro-batch each time."""
    log = Log()
    log.append(USUAL, NOW, OUTSIDE)
    scan = CommitScan(AT_THE_BEGINNING)
    state = scan_on(scan, log, head=10, now_seconds=10.0).end

    assert scan_on(scan, log, head=10, now_seconds=70.0).end == state


def test_batch_holds_the_same_rows_however_long_it_took() -> None:
    """The same micro-batch at another time, with another state at its end: its rows are those of its two offsets."""
    log = Log()
    log.append(SILENT, NOW, OUTSIDE)
    for minute in range(3):
        log.append(USUAL, NOW + DAY + minute * 16, OUTSIDE)
    log.append(SILENT, NOW, OUTSIDE)
    start = scan_on(CommitScan(AT_THE_BEGINNING), log, head=10).end
    end = log.messages[-1].end

    early, late = (scan_on(CommitScan(start), log, head=end, now_seconds=now) for now in (0.0, 1e9))

    assert early.begins.tolist() == late.begins.tolist()
    assert early.rows == 3


def test_state_of_earlier_versions_is_read() -> None:
    """A checkpoint without reading time: its producers count as heard just now, and none is forgotten at once."""
    kept = {"offset": 90, "producers": {"000000000007": [5, 60, 9], "000000000008": [3]}}

    state = JournalState.from_json(kept)

    assert state.offset == 90
    assert state.producers[7][:3] == (5, 60, 9)
    assert state.producers[8][:2] == (3, -1)
    assert through_json(state) == state


@pytest.mark.parametrize(
    "change",
    [{"heard_ms": [1]}, {"heard_ms": 5}, {"read_ms": "x"}, {"producers": {"7": [1], "8": [1, 2]}}],
)
def test_broken_state_is_refused(change: dict[str, object]) -> None:
    """Numbers are missing or none: the error must be the documented one, not a guess at producers."""
    two = {7: ProducerState(5), 8: ProducerState(3)}
    kept = JournalState(90, two, 5).to_json() | change
    with pytest.raises(ValueError, match="is no state of a journal"):
        JournalState.from_json(kept)
