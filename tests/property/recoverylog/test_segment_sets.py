"""Sets of segments: what a set holds is a matter of what was added, not of when."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from hypothesis import given, strategies as st

from broadsheet.consumer.recoverylog.segments import Segment, SegmentSet


@dataclass(frozen=True)
class History:
    """Operations of a log that changed hands, and was continued in others."""

    begins: tuple[int, ...]
    """Offset of each operation in its log, and of the end: shape (N + 1,)."""
    writers: tuple[tuple[int, str], ...]
    """Author and log of each, shape (N,)."""
    bound_bytes: int
    """Lower bounds are multiples of it."""
    open_writer: tuple[int, str] | None
    """Of the last operations; nobody knows where they end."""

    def segment(self, first: int, last: int) -> Segment:
        """Return what there is to say of the operations [first, last] of one writer, counted from 0."""
        author, log = self.writers[first]
        known = self.open_writer != (author, log)
        return Segment(
            author=author,
            first_seq=first + 1,
            first_offset=self.begins[first] // self.bound_bytes * self.bound_bytes,
            first_checksum=first * 17,
            last_seq=last + 1,
            last_offset=self.begins[last + 1] if known else 0,
            log=log,
        )


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, list[Segment]]:
    """Draw a history and some of its runs."""
    begins, writers = [0], []
    for author, runs in enumerate(draw(st.lists(st.integers(1, 8), min_size=1, max_size=4)), 1):
        log = f"log-{author // 2}"
        for _ in range(runs):
            begins.append(begins[-1] + draw(st.integers(1, 30)))
            writers.append((author, log))
    history = History(
        tuple(begins),
        tuple(writers),
        draw(st.sampled_from((1, 7, 40))),
        writers[-1] if draw(st.booleans()) else None,
    )
    segments = []
    for _ in range(draw(st.integers(1, 8))):
        first = draw(st.integers(0, len(writers) - 1))
        ends = [at for at in range(first, len(writers)) if writers[at] == writers[first]]
        segments.append(history.segment(first, draw(st.sampled_from(ends))))
    return history, segments


@given(drawn=histories(), seed=st.randoms(use_true_random=False))
def test_set_covers_what_was_added_in_any_order(
    drawn: tuple[History, list[Segment]], seed: Random
) -> None:
    """Exactly those operations, by runs as long as can be, with bounds that hold."""
    history, segments = drawn
    shuffled = list(segments)
    seed.shuffle(shuffled)
    held = list(SegmentSet(shuffled))

    assert held == list(SegmentSet(segments))
    covered = [seq for each in held for seq in range(each.first_seq, each.last_seq + 1)]
    wanted = {seq for each in segments for seq in range(each.first_seq, each.last_seq + 1)}
    assert covered == sorted(wanted)
    for each in held:
        assert each == history.segment(each.first_seq - 1, each.last_seq - 1)
    for before, after in pairwise(held):
        apart = after.first_seq > before.last_seq + 1
        assert apart or (before.author, before.log) != (after.author, after.log)
