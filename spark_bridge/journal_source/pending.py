"""Messages that await their acknowledgement: their places, as much of them as memory allows.

What exceeds the bound is forgotten, oldest first, and read again once it is acknowledged.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from consumer.message.sequence_rules import CommitSelection
from spark_bridge.journal_source.message_table import MessageTable, Offsets, Words

PENDING_BYTES: Final = 64 << 20
"""Of one journal's scan: about two million messages."""
_SEGMENT_BYTES: Final = 400
"""What a segment takes beside its rows."""
_ROW_BYTES: Final = 24
_DEAD_SLOTS_MAX: Final = 10_000


class Segment(NamedTuple):
    """Consecutive messages of one producer, clocks growing; every column has shape (N,), N > 0."""

    begins: Offsets
    ends: Offsets
    clocks: Words

    @classmethod
    def of(cls, table: MessageTable, start: int, stop: int) -> Segment:
        """Return messages [start, stop) of a table, which it does not keep alive."""
        return cls(
            table.begins[start:stop].copy(),
            table.ends[start:stop].copy(),
            table.clocks[start:stop].copy(),
        )

    @property
    def size_bytes(self) -> int:
        """Memory taken."""
        return _SEGMENT_BYTES + _ROW_BYTES * len(self.begins)


class Span:
    """The pending messages of one producer that are still in memory, in offset order."""

    __slots__ = ("live", "segments")

    def __init__(self) -> None:
        self.segments: deque[Segment] = deque()
        self.live = True


class PendingRing:
    """Owns the memory of all spans."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._slots: deque[Span] = deque()
        """The span of each segment, in order of arrival; a span that left is swept out some time."""
        self._dead_slots = 0

    def add(self, span: Span, segment: Segment) -> None:
        """Add messages, and forget the oldest if they are too many; these here are kept."""
        while self._slots and self._bytes + segment.size_bytes > self._bytes_max:
            self._forget_oldest()
        span.segments.append(segment)
        self._bytes += segment.size_bytes
        self._slots.append(span)

    def release(self, span: Span) -> None:
        """Let go of a span's messages."""
        span.live = False
        self._bytes -= sum(segment.size_bytes for segment in span.segments)
        self._dead_slots += len(span.segments)
        if self._dead_slots > _DEAD_SLOTS_MAX:
            self._slots = deque(slot for slot in self._slots if slot.live)
            self._dead_slots = 0

    def _forget_oldest(self) -> None:
        span = self._slots.popleft()
        if span.live:
            self._bytes -= span.segments.popleft().size_bytes
        else:
            self._dead_slots -= 1


def committed_of(
    segments: Sequence[Segment], selection: CommitSelection
) -> tuple[Offsets, Offsets]:
    """Return begins and ends of the messages that an acknowledgement commits.

    Args:
        segments: What may be committed, in the order of the journal.
        selection: By the acknowledgement.
    """
    if not segments:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing
    clocks = np.concatenate([segment.clocks for segment in segments])
    begins = np.concatenate([segment.begins for segment in segments])
    ends = np.concatenate([segment.ends for segment in segments])
    committed = selection.admitted_of(clocks)
    return begins[committed], ends[committed]
