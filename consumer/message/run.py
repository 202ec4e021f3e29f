"""Find stretches of messages that commit by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumer.message.producers import NOTHING_PENDING, Producer
from consumer.message.ring import Row
from consumer.message.uuid import Flags

_UNCOMMITTED_FLAGS: Final = (Flags.CONTINUE_TXN, Flags.ACK_TXN)


def commits_itself(row: Row) -> bool:
    """Return whether a message belongs to no transaction: by its flags, or because it opted out of sequencing."""
    return row[4] not in _UNCOMMITTED_FLAGS or row[3] == 0


@dataclass(slots=True)
class Run:
    """A stretch of messages that commit by themselves, and the duplicates among them."""

    next_index: int
    """First message after the stretch."""
    rows: list[Row] = field(default_factory=list)
    """What is to be emitted, shape (N,)."""
    read_through: list[int] = field(default_factory=list)
    """The journal's offset once each row is consumed: its end, or that of the duplicates after it; shape (N,)."""
    leading_duplicates_end: int | None = None
    """End of the duplicates before the first row."""
    duplicates: int = 0
    unknown_flags: int = 0
    """Rows and duplicates whose flags are unknown."""
    spans_discarded: int = 0
    """Producers that had messages pending, which a row of theirs discards."""


def scan_run(rows: Sequence[Row], start: int, *, producers: Mapping[int, Producer]) -> Run:
    """Return the run that begins at index `start`.

    Producers change only as the run is consumed; until then, `floors` knows what each would have committed.

    Requires:
        `rows[start]` commits itself.
    """
    run = Run(start)
    floors: dict[int, int] = {}
    index = start
    while index < len(rows):
        row = rows[index]
        _, end, producer_id, clock, flags, _ = row
        if clock:
            if flags in _UNCOMMITTED_FLAGS:
                break
            if flags != Flags.OUTSIDE_TXN:
                run.unknown_flags += 1
            floor = floors.get(producer_id)
            if floor is None:
                floor = _floor(run, producers.get(producer_id), clock)
            if clock <= floor:
                _note_duplicate(run, end)
                index += 1
                continue
            floors[producer_id] = clock
        run.rows.append(row)
        run.read_through.append(end)
        index += 1
    run.next_index = index
    return run


def _floor(run: Run, producer: Producer | None, clock: int) -> int:
    """Return the clock up to which a producer's messages are duplicates, given that of its first message in the run."""
    if producer is None:
        return clock - 1
    if clock > producer.min_clock and producer.begin != NOTHING_PENDING:
        run.spans_discarded += 1
    return producer.min_clock


def _note_duplicate(run: Run, end: int) -> None:
    run.duplicates += 1
    if run.rows:
        run.read_through[-1] = end
    else:
        run.leading_duplicates_end = end
