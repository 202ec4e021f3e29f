"""Segments: runs of operations that recovery must read, in order and without overlap.

A segment locates a run of one author's consecutive operations in a log. Recorders know only a lower bound of its begin,
and not its end; players know both.

Source: gazette/core consumer/recoverylog/segment.go (rules of validity and of joining).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from broadsheet.consumer.errors import HintsError
from broadsheet.wire import recorded_op_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of consecutive operations by one author in one log."""

    author: int
    first_seq: int
    first_offset: int
    """Lower bound of the offset at which it begins, bytes."""
    first_checksum: int
    last_seq: int
    last_offset: int = 0
    """Upper bound of the offset at which it ends, bytes; 0: unknown."""
    log: str

    def extended(self, last_seq: int, last_offset: int) -> Segment:
        """Return the segment extended by the operations up to `last_seq`."""
        return replace(self, last_seq=last_seq, last_offset=last_offset)

    def overlaps(self, begin: int, end: int) -> bool:
        """Tell whether a part of it may be in the bytes [begin, end) of its log; an `end` of 0 means no end."""
        return (not end or self.first_offset < end) and (
            not self.last_offset or self.last_offset > begin
        )


def segment_from(message: pb.Segment, log: str) -> Segment:
    """Decode a segment from hints for `log`.

    Raises:
        HintsError: a field contradicts another.
    """
    segment = Segment(
        author=message.author,
        first_seq=message.first_seq_no,
        first_offset=message.first_offset,
        first_checksum=message.first_checksum,
        last_seq=message.last_seq_no,
        last_offset=message.last_offset,
        log=message.log or log,
    )
    _validate(segment)
    return segment


def segment_message(segment: Segment, log: str) -> pb.Segment:
    """Encode a segment for hints of `log`."""
    return pb.Segment(
        author=segment.author,
        first_seq_no=segment.first_seq,
        first_offset=segment.first_offset,
        first_checksum=segment.first_checksum,
        last_seq_no=segment.last_seq,
        last_offset=segment.last_offset,
        log="" if segment.log == log else segment.log,
    )


def _validate(segment: Segment) -> None:
    checks = (
        (segment.author > 0, "author", "expected a number above 0"),
        (segment.first_seq > 0, "first_seq_no", "expected a number above 0"),
        (segment.first_offset >= 0, "first_offset", "expected 0 or more"),
        (segment.last_seq >= segment.first_seq, "last_seq_no", "expected at least first_seq_no"),
        (
            segment.last_offset == 0 or segment.last_offset > segment.first_offset,
            "last_offset",
            "expected 0, or more than first_offset",
        ),
    )
    for valid, name, expected in checks:
        if not valid:
            raise HintsError(segment.log, f"segment {name}: {expected}, got {segment}")


class SegmentSet:
    """Segments by sequence number: strictly increasing, disjoint, at growing offsets of each log."""

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        """Add `segments`.

        Raises:
            HintsError: two contradict each other.
        """
        self._segments: list[Segment] = []
        for segment in segments:
            self.add(segment)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Add a segment, and join those that overlap or touch it.

        Raises:
            HintsError: it contradicts an existing one; the set is unchanged.
        """
        done: list[Segment] = []
        current = segment
        for each in self._segments:
            joined = _join(each, current)
            if joined is not None:
                current = joined
            elif each.first_seq < current.first_seq:
                done.append(each)
            else:
                done.append(current)
                current = each
        done.append(current)
        _check_suffix(done)
        self._segments = done

    def intersect(self, log: str, begin: int, end: int) -> list[Segment]:
        """Return the segments that may have a part in the bytes [begin, end) of `log`."""
        return [each for each in self._segments if each.log == log and each.overlaps(begin, end)]


def _check_suffix(segments: Sequence[Segment]) -> None:
    """Check that, of segments in order, only the last ones have an unknown end."""
    for each, after in pairwise(segments):
        if each.last_offset == 0 and after.last_offset != 0:
            raise HintsError(each.log, f"expected last_offset of {each}, as of {after}")


def _join(a: Segment, b: Segment) -> Segment | None:
    """Return the segment that covers both, or None if they are apart.

    Raises:
        HintsError: they contradict each other.
    """
    if (b.first_seq, -b.last_seq) < (a.first_seq, -a.last_seq):
        a, b = b, a
    _check_order(a, b)
    same_writer = a.author == b.author and a.log == b.log
    if b.first_seq > a.last_seq + 1 or (b.first_seq == a.last_seq + 1 and not same_writer):
        return None
    if not same_writer:
        raise HintsError(a.log, f"expected one author and log where {a} and {b} overlap")
    if a.first_seq == b.first_seq and a.first_checksum != b.first_checksum:
        raise HintsError(a.log, f"expected one first_checksum of {a} and {b}")
    return _union(a, b)


def _check_order(a: Segment, b: Segment) -> None:
    """Check that offsets grow with sequence numbers; `a` begins first."""
    if a.log == b.log and a.first_seq != b.first_seq and a.first_offset > b.first_offset:
        raise HintsError(a.log, f"expected first_offset to grow from {a} to {b}")
    if a.first_seq < b.first_seq and a.last_offset == 0 and (b.last_offset or a.log != b.log):
        raise HintsError(a.log, f"expected last_offset of {a}, because {b} follows")
    if a.log != b.log or not a.last_offset or not b.last_offset:
        return
    in_order = (
        a.last_offset <= b.last_offset
        if a.last_seq < b.last_seq
        else a.last_offset >= b.last_offset
    )
    if not in_order or (a.last_seq == b.last_seq and a.last_offset != b.last_offset):
        raise HintsError(a.log, f"expected last_offset to grow with last_seq_no in {a} and {b}")


def _union(a: Segment, b: Segment) -> Segment:
    # Both are lower bounds, so the larger one is tighter.
    first_offset = (
        max(a.first_offset, b.first_offset) if a.first_seq == b.first_seq else a.first_offset
    )
    last_seq, last_offset = a.last_seq, a.last_offset
    if b.last_seq > a.last_seq:
        last_seq, last_offset = b.last_seq, b.last_offset
    elif b.last_seq == a.last_seq:
        last_offset = a.last_offset or b.last_offset
    return replace(a, first_offset=first_offset, last_seq=last_seq, last_offset=last_offset)
