"""Which silent producers are forgotten, and when."""

from __future__ import annotations

import pytest

from broadsheet.journals.message.producers import PAUSE_SECONDS_MAX, PRUNE_HORIZON_SECONDS
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import CLOCK_UNITS_PER_SECOND, Flags, clock_at
from broadsheet.wire import shard_pb2
from tests.support.sequencing import Log, plain, replay

OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
NOW = clock_at(1_800_000_000 * 10**9)
DAY = int(PRUNE_HORIZON_SECONDS) * CLOCK_UNITS_PER_SECOND
USUAL, AHEAD, THIRD, SILENT = 1, 2, 3, 4


class Reading:
    """A sequencer that reads one journal as it grows, on a clock of the test's own."""

    def __init__(self, sources: dict[str, shard_pb2.Checkpoint.Source] | None = None) -> None:
        self.log = Log()
        self.sequencer = Sequencer(sources or {})
        self.now_seconds = 1000.0
        self.clocks: list[int] = []

    def write(self, producer: int, clock: int, flags: int) -> None:
        """Have a message appended, read and delivered."""
        self.log.append(producer, clock, flags)
        batch = self.log.batch(len(self.log.messages) - 1)
        self.sequencer.queue(batch, now_seconds=self.now_seconds)
        while self.sequencer.emitting:
            run = self.sequencer.peek(10)
            if run is None:
                replay(self.sequencer, self.log)
                continue
            self.clocks += run.clocks.tolist()
            self.sequencer.consume(len(run))

    def pass_hours(self, hours: float, *producers: int) -> None:
        """Let time pass while some producers write all the time."""
        steps = int(hours * 3600 / PAUSE_SECONDS_MAX) + 1
        for _ in range(steps):
            self.now_seconds += PAUSE_SECONDS_MAX
            for producer in producers:
                self.write(producer, self.wall_clock(), OUTSIDE)

    def wall_clock(self) -> int:
        """Return the clock of a machine that keeps time."""
        return NOW + int((self.now_seconds - 1000.0) * CLOCK_UNITS_PER_SECOND)

    def known(self) -> set[int]:
        """Take a checkpoint; return the producers in it."""
        return set(plain(self.sequencer.take_checkpoint())[self.log.journal][1])


def test_producers_ahead_of_time_make_no_other_forgotten_within_a_day() -> None:
    """A machine whose clock is ahead starts one producer after another, so clocks agree that all others are old. What
    was heard within the last day of reading is kept all the same.
    """
    reading = Reading()
    reading.write(USUAL, NOW, OUTSIDE)
    for producer in range(10, 20):
        reading.write(producer, NOW + 2 * DAY, OUTSIDE)
    reading.pass_hours(23, AHEAD)

    assert USUAL in reading.known()


def test_silent_producer_is_forgotten_after_a_day() -> None:
    """Two producers write on for a day and one is silent: it leaves the checkpoint, which would else grow for ever."""
    reading = Reading()
    reading.write(SILENT, NOW, OUTSIDE)
    reading.pass_hours(23, USUAL, THIRD)
    assert reading.known() == {SILENT, USUAL, THIRD}

    reading.pass_hours(1.1, USUAL, THIRD)

    assert reading.known() == {USUAL, THIRD}


def test_silent_producer_with_a_pending_span_is_never_forgotten() -> None:
    """The acknowledgement comes after three days. Gazette would have forgotten the span, and lost its messages."""
    reading = Reading()
    reading.write(SILENT, NOW, CONTINUE)
    reading.pass_hours(72, USUAL, THIRD)
    assert SILENT in reading.known()

    reading.write(SILENT, NOW + 16, ACK)

    assert reading.clocks[-2:] == [NOW, NOW + 16]


def test_reader_that_stood_still_for_days_forgets_nobody() -> None:
    """The application hangs for three days. What it reads then goes on where it stopped: a repeat may come next."""
    reading = Reading()
    for producer in (USUAL, THIRD, SILENT):
        reading.write(producer, NOW, OUTSIDE)
    reading.now_seconds += 3 * PRUNE_HORIZON_SECONDS
    reading.write(USUAL, NOW + 3 * DAY, OUTSIDE)
    reading.write(THIRD, NOW + 3 * DAY, OUTSIDE)

    assert SILENT in reading.known()


def test_reader_that_lags_forgets_nobody() -> None:
    """A reader takes two days for one hour of the journal: its own clock alone would forget who wrote an hour ago."""
    reading = Reading()
    reading.write(SILENT, NOW, OUTSIDE)
    for step in range(2 * 24 * 60):
        reading.now_seconds += PAUSE_SECONDS_MAX
        for producer in (USUAL, THIRD):
            reading.write(producer, NOW + step * CLOCK_UNITS_PER_SECOND, OUTSIDE)

    assert SILENT in reading.known()


def test_restored_producer_counts_as_heard_then() -> None:
    """A checkpoint says no times, so age begins with the restore; a clock that steps back changes nothing."""
    first = Reading()
    for producer in (USUAL, THIRD, SILENT):
        first.write(producer, NOW, OUTSIDE)
    reading = Reading(first.sequencer.take_checkpoint())
    reading.pass_hours(23, USUAL, THIRD)
    reading.now_seconds -= 5 * PRUNE_HORIZON_SECONDS
    reading.write(USUAL, NOW + 2 * DAY, OUTSIDE)

    assert SILENT in reading.known()


@pytest.mark.parametrize("flags", [OUTSIDE, CONTINUE, ACK])
def test_repeats_count_as_heard(flags: int) -> None:
    """Nothing new comes of a producer but repeats, for more than a day: each is still told apart."""
    reading = Reading()
    reading.write(SILENT, NOW, OUTSIDE)
    for _ in range(5):
        reading.pass_hours(10, USUAL, THIRD)
        reading.write(SILENT, NOW, flags)
        assert SILENT in reading.known()
    assert reading.clocks.count(NOW) == 1
