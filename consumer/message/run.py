"""Find stretches of messages that are sequenced together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from consumer.message.batch import UNREADABLE, MessageBatch
from consumer.message.outcome import Outcome
from consumer.message.producers import Producer
from consumer.message.sequence_rules import NOTHING_PENDING, TXN_FLAGS, decide, duplicates_through
from consumer.message.uuid import Flags

_duplicates_through: Final = duplicates_through(Flags.OUTSIDE_TXN)


def end_of_stretch(batch: MessageBatch, start: int) -> int:
    """Return the index after the messages that go on where the one at `start` is: of its producer, with its flags, and
    each with a later clock than the one before.
    """
    producers, clocks, flags = batch.producers, batch.clocks, batch.flags
    producer, clock, flag = producers[start], clocks[start], flags[start]
    count = len(clocks)
    for index in range(start + 1, count):
        if producers[index] != producer or flags[index] != flag or clocks[index] <= clock:
            return index
        clock = clocks[index]
    return count


@dataclass(slots=True)
class Run:
    """A stretch of messages that commit by themselves, and the duplicates among them."""

    next_index: int
    """First message after the stretch."""
    indices: list[int] = field(default_factory=list)
    """Of what is to be emitted, shape (N,)."""
    read_through: list[int] = field(default_factory=list)
    """The journal's offset once each is consumed: its end, or that of the duplicates after it; shape (N,)."""
    leading_duplicates_end: int | None = None
    """End of the duplicates before the first that is emitted."""
    duplicates: int = 0
    unknown_flags: int = 0
    """Messages, duplicates too, whose flags are unknown."""
    producer_ids: set[int] = field(default_factory=set)
    """Of all its messages that did not opt out, duplicates too."""
    flags_void: bool = False
    """Whether a message that opted out of sequencing has flags."""
    spans_discarded: int = 0
    """Producers that had messages pending, which one of the run discards."""


def scan_run(batch: MessageBatch, start: int, *, producers: Mapping[int, Producer]) -> Run:
    """Return the run that begins at index `start`.

    Producers change only as the run is consumed; until then, `floors` knows what each would have committed.

    Requires:
        The message at `start` commits itself.
    """
    run = Run(start)
    floors: dict[int, int] = {}
    index, count = start, len(batch)
    while index < count:
        clock, end, flags = batch.clocks[index], batch.ends[index], batch.flags[index]
        if not clock:
            run.flags_void = run.flags_void or flags not in (Flags.OUTSIDE_TXN, UNREADABLE)
        else:
            producer_id = batch.producers[index]
            if flags in TXN_FLAGS:
                break
            if flags != Flags.OUTSIDE_TXN:
                run.unknown_flags += 1
            floor = floors.get(producer_id)
            if floor is None:
                floor = _floor(run, producers.get(producer_id), clock)
            if clock <= floor:
                run.producer_ids.add(producer_id)
                _note_duplicate(run, end)
                index += 1
                continue
            floors[producer_id] = clock  # where its producer settles once it is consumed
        run.indices.append(index)
        run.read_through.append(end)
        index += 1
    run.next_index = index
    run.producer_ids.update(floors)
    return run


def committed_part(batch: MessageBatch, run: Run) -> MessageBatch:
    """Return what a run emits. Who opted out of sequencing is a message like any other, whatever its flags say: not,
    for example, an acknowledgement, which no application sees.
    """
    part = batch.pick(run.indices)
    if not run.flags_void:
        return part
    flags = [
        flags if clock or flags == UNREADABLE else Flags.OUTSIDE_TXN
        for flags, clock in zip(part.flags, part.clocks, strict=True)
    ]
    return replace(part, flags=flags)


def _floor(run: Run, producer: Producer | None, clock: int) -> int:
    """Return the clock up to which a producer's messages are duplicates, given that of its first message in the run."""
    if producer is None:
        return clock - 1
    if producer.begin != NOTHING_PENDING:
        outcome = decide(Flags.OUTSIDE_TXN, clock, producer)
        run.spans_discarded += outcome is Outcome.SPAN_DISCARDED
    return _duplicates_through(producer)


def _note_duplicate(run: Run, end: int) -> None:
    run.duplicates += 1
    if run.indices:
        run.read_through[-1] = end
    else:
        run.leading_duplicates_end = end
