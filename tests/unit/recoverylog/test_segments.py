"""Segments and sets of them: every shape of overlap, every contradiction, and slices by offset."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from broadsheet.consumer.errors import HintsError
from broadsheet.consumer.recoverylog.segments import (
    Segment,
    SegmentSet,
    segment_from,
    segment_message,
)
from broadsheet.wire import recorded_op_pb2 as pb

LOG = "logs/a"
BYTES = 10
"""Of each operation, in these tests."""


def run(
    first: int, last: int, *, author: int = 7, log: str = LOG, ends: bool = True, begins: int = -1
) -> Segment:
    """Return operations first to last, each of `BYTES`; with `ends=False` nobody knows where they end."""
    return Segment(
        author=author,
        first_seq=first,
        first_offset=first * BYTES if begins < 0 else begins,
        first_checksum=first * 1000,
        last_seq=last,
        last_offset=(last + 1) * BYTES if ends else 0,
        log=log,
    )


def in_every_order(*segments: Segment) -> list[Segment]:
    """Return what the set of `segments` holds, having added them in every order."""
    held = [list(SegmentSet(order)) for order in permutations(segments)]
    assert all(each == held[0] for each in held)
    return held[0]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("author", {"author": 0}),
        ("first_seq_no", {"first_seq_no": 0}),
        ("first_offset", {"first_offset": -1}),
        ("last_seq_no", {"last_seq_no": 1}),
        ("last_offset", {"last_offset": 100}),
    ],
)
def test_each_field_has_its_rule(field: str, changes: dict[str, int]) -> None:
    """Of stored segments, each of which breaks one rule."""
    stored = pb.Segment(author=1, first_seq_no=2, first_offset=100, last_seq_no=2, last_offset=101)
    assert segment_from(stored, LOG).last_offset == 101
    stored.last_offset = 0
    assert segment_from(stored, LOG).last_offset == 0

    for name, value in changes.items():
        setattr(stored, name, value)
    with pytest.raises(HintsError, match=f"{LOG}: segment {field}: expected"):
        segment_from(stored, LOG)


def test_log_is_named_only_where_it_is_another_one() -> None:
    """Hints name their log once; segments of logs before it name theirs."""
    here, elsewhere = run(1, 2), run(1, 2, log="logs/before")

    assert segment_message(here, LOG).log == ""
    assert segment_message(elsewhere, LOG).log == "logs/before"
    assert segment_from(segment_message(here, LOG), LOG) == here
    assert segment_from(segment_message(elsewhere, LOG), LOG) == elsewhere


@pytest.mark.parametrize(
    ("shape", "a", "b", "expected"),
    [
        ("the same", run(2, 5), run(2, 5), [run(2, 5)]),
        ("one point", run(2, 2), run(2, 2), [run(2, 2)]),
        ("a covers b", run(2, 9), run(4, 5), [run(2, 9)]),
        ("same begin", run(2, 9), run(2, 5), [run(2, 9)]),
        ("same end", run(2, 9), run(5, 9), [run(2, 9)]),
        ("partly", run(2, 6), run(5, 9), [run(2, 9)]),
        ("by one point", run(2, 5), run(5, 9), [run(2, 9)]),
        ("adjacent", run(2, 4), run(5, 9), [run(2, 9)]),
        ("apart", run(2, 4), run(6, 9), [run(2, 4), run(6, 9)]),
        ("adjacent, authors", run(2, 4), run(5, 9, author=8), [run(2, 4), run(5, 9, author=8)]),
        ("adjacent, logs", run(2, 4), run(5, 9, log="b"), [run(2, 4), run(5, 9, log="b")]),
        ("both open", run(2, 6, ends=False), run(5, 9, ends=False), [run(2, 9, ends=False)]),
        ("b open", run(2, 6), run(5, 9, ends=False), [run(2, 9, ends=False)]),
        ("open, same end", run(2, 9, ends=False), run(2, 9), [run(2, 9)]),
        ("b open within", run(2, 9), run(4, 6, ends=False), [run(2, 9)]),
        ("open apart", run(2, 4), run(6, 9, ends=False), [run(2, 4), run(6, 9, ends=False)]),
        ("better bound", run(2, 5, begins=3), run(2, 9, begins=15), [run(2, 9, begins=15)]),
    ],
)
def test_two_segments_join_in_every_shape(
    shape: str, a: Segment, b: Segment, expected: list[Segment]
) -> None:
    """In either order."""
    assert in_every_order(a, b) == expected, shape


@pytest.mark.parametrize(
    ("contradiction", "a", "b"),
    [
        ("first_offset to grow", run(2, 4), run(6, 9, begins=5)),
        ("first_offset to grow", run(2, 6), run(5, 9, begins=5)),
        ("last_offset of", run(2, 4, ends=False), run(6, 9)),
        ("last_offset of", run(2, 6, ends=False), run(5, 9)),
        ("last_offset of", run(2, 4, ends=False), run(6, 9, log="b", ends=False)),
        ("last_offset to grow", run(2, 4), replace(run(6, 9), last_offset=49, first_offset=45)),
        ("last_offset to grow", run(2, 9), replace(run(4, 6), last_offset=101)),
        ("last_offset to grow", run(2, 9), replace(run(4, 9), last_offset=101)),
        ("one first_checksum", run(2, 4), replace(run(2, 9), first_checksum=1)),
        ("one author and log", run(2, 6), run(5, 9, author=8)),
        ("one author and log", run(2, 6), run(5, 9, log="b")),
        ("one author and log", run(2, 6), run(2, 6, author=8)),
    ],
)
def test_two_segments_that_contradict_each_other_are_refused(
    contradiction: str, a: Segment, b: Segment
) -> None:
    """In either order; and the set is as it was."""
    for first, second in ((a, b), (b, a)):
        segments = SegmentSet([first])
        with pytest.raises(HintsError, match=contradiction):
            segments.add(second)
        assert list(segments) == [first]


def test_segments_apart_are_kept_in_order() -> None:
    """Whatever the order in which they come."""
    parts = [run(1, 2), run(4, 4), run(6, 8), run(10, 12)]

    assert in_every_order(*parts) == parts


def test_segment_joins_all_that_it_touches() -> None:
    """It overlaps one, covers two and is adjacent to another; one on either side stays apart."""
    parts = [run(1, 2), run(4, 6), run(8, 8), run(10, 10), run(13, 15), run(17, 18), run(5, 12)]

    assert in_every_order(*parts[:4], parts[6]) == [run(1, 2), run(4, 12)]
    assert list(SegmentSet(parts)) == [run(1, 2), run(4, 15), run(17, 18)]


def test_single_operations_extend_segments_at_either_end() -> None:
    """And close the gap between two."""
    assert in_every_order(run(4, 6), run(3, 3), run(7, 7)) == [run(3, 7)]
    assert in_every_order(run(4, 6), run(8, 9), run(7, 7)) == [run(4, 9)]


def test_segments_by_several_authors_in_several_logs_stay_apart() -> None:
    """A log that changed hands, and then was continued in another."""
    parts = [run(1, 4), run(5, 6, author=8), run(7, 9, author=9, log="b")]

    assert in_every_order(*parts) == parts


def test_only_the_last_segments_may_end_nobody_knows_where() -> None:
    """A recorder's hints know no ends, and nothing stands behind what it records."""
    assert len(SegmentSet([run(1, 4), run(6, 7, ends=False), run(9, 9, ends=False)])) == 3

    with pytest.raises(HintsError, match="last_offset of"):
        SegmentSet([run(1, 2), run(6, 7), run(4, 4, ends=False)])


@pytest.mark.parametrize(
    ("log", "begin", "end", "found"),
    [
        (LOG, 0, 10, []),
        (LOG, 0, 20, []),
        (LOG, 0, 21, [0]),
        (LOG, 49, 50, [0]),
        (LOG, 50, 70, []),
        (LOG, 40, 71, [0, 1]),
        (LOG, 60, 200, [1, 2]),
        (LOG, 10_000, 10_001, [2]),
        (LOG, 0, 0, [0, 1, 2]),
        (LOG, 100, 0, [2]),
        ("b", 0, 200, []),
    ],
)
def test_segments_are_found_by_offsets(log: str, begin: int, end: int, found: list[int]) -> None:
    """Of [20, 50), [70, 100) and [120, nobody knows)."""
    parts = [run(2, 4), run(7, 9), run(12, 13, ends=False)]

    assert SegmentSet(parts).intersect(log, begin, end) == [parts[index] for index in found]
