"""Partitions of a journal's bytes: the ranges that a task reads, and the runs within them that it keeps.

A *run* is a stretch [begin, end) of whole frames that are all wanted. Bytes between two runs of a partition are read
and discarded: acknowledgements, messages of transactions that are open or were rolled back, duplicates.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from broadsheet.spark_bridge.journal_source.message_table import Offsets


@dataclass(frozen=True, slots=True)
class BytePartition:
    """Wanted bytes of one journal, read by one task."""

    journal: str
    bounds: Offsets
    """Begins and ends of the runs alternately, ascending; shape (2R,), bytes."""
    damaged: bool = False
    """Whether each run is a damaged record."""
    epoch: bytes = b""
    """Encoded JournalEpoch in which the partition was planned; empty if it is not known."""
    stored: tuple[bytes, ...] = ()
    """Encoded `ListedFragment`s that hold its bytes, with URLs; others are asked for at the broker."""

    @property
    def begin(self) -> int:
        """Offset of the first wanted byte."""
        return int(self.bounds[0])

    @property
    def end(self) -> int:
        """Offset after the last wanted byte."""
        return int(self.bounds[-1])

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield each run's begin and end."""
        return zip(self.bounds[::2].tolist(), self.bounds[1::2].tolist(), strict=True)


class WholeSpans:
    """Spans of a journal that one task should read, because it would have to decode them from their beginning."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        """Take begins and ends, ascending, bytes."""
        bounds = np.array(list(spans), dtype=np.int64).reshape(-1, 2)
        self._begins, self._ends = bounds[:, 0], bounds[:, 1]

    def aligned(self, begin: int, end: int) -> int:
        """Return an end near `end` that splits no span, of a partition that begins at `begin`."""
        index = int(np.searchsorted(self._begins, end, side="left")) - 1
        if index < 0 or self._ends[index] <= end:
            return end
        span_begin = int(self._begins[index])
        return span_begin if span_begin > begin else int(self._ends[index])


_NO_SPANS = WholeSpans()


def partitions_of(
    journal: str,
    begins: Offsets,
    ends: Offsets,
    *,
    bytes_max: int,
    whole: WholeSpans = _NO_SPANS,
) -> list[BytePartition]:
    """Return partitions of about equal size that hold exactly the wanted stretches.

    Args:
        journal: Their journal.
        begins: Offset of each wanted stretch of messages, in any order; shape (N,), bytes.
        ends: Offset after each; shape (N,), bytes.
        bytes_max: Most bytes that a partition reads, holes included; a single stretch may be longer.
        whole: Spans that are not split, even if they are longer.
    """
    if not len(begins):
        return []
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], ends[order]
    sizes = ends - begins
    total = int(sizes.sum())
    # As many partitions as needed, of equal size; one stretch more, because stretches are not cut.
    equal_bytes = -(-total // -(-total // bytes_max)) + int(sizes.max())
    partitions: list[BytePartition] = []
    start = 0
    while start < len(begins):
        begin = int(begins[start])
        end = whole.aligned(begin, begin + min(bytes_max, equal_bytes))
        # At least one stretch, because a single one may be longer than the bound.
        stop = max(start + 1, int(np.searchsorted(ends, end, side="right")))
        partitions.append(BytePartition(journal, _bounds(begins[start:stop], ends[start:stop])))
        start = stop
    return partitions


def damaged_partitions_of(
    journal: str, begins: Offsets, ends: Offsets, *, bytes_max: int
) -> list[BytePartition]:
    """Return the partitions of damaged records, each a run, also where they are consecutive.

    Args:
        journal: Their journal.
        begins: Offset of each, ascending; shape (N,), bytes.
        ends: Offset after each; shape (N,), bytes.
        bytes_max: Most bytes that a partition reads, holes included; a single record may be longer.
    """
    partitions: list[BytePartition] = []
    start = 0
    while start < len(begins):
        end = int(begins[start]) + bytes_max
        stop = max(start + 1, int(np.searchsorted(ends, end, side="right")))
        bounds = np.stack((begins[start:stop], ends[start:stop]), axis=1).reshape(-1)
        partitions.append(BytePartition(journal, bounds, damaged=True))
        start = stop
    return partitions


def _bounds(begins: Offsets, ends: Offsets) -> Offsets:
    """Return the bounds of the runs that stretches in order form."""
    apart = np.flatnonzero(begins[1:] != ends[:-1])
    bounds = np.empty(2 * len(apart) + 2, dtype=np.int64)
    bounds[0], bounds[-1] = begins[0], ends[-1]
    bounds[1:-1:2] = ends[apart]
    bounds[2::2] = begins[apart + 1]
    return bounds


class RunCutter:
    """Cuts the wanted bytes out of a partition's content as it arrives."""

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        self._runs = iter(runs)
        self._run = next(self._runs, None)

    def take(self, offset: int, content: bytes) -> list[tuple[int, bytes]]:
        """Return the wanted pieces of `content`, which begins at `offset`, with their own offsets.

        Runs that end before `offset` are dropped: contents come in order, and a gap is made of whole missing fragments,
        which end at message boundaries.
        """
        pieces: list[tuple[int, bytes]] = []
        content_end = offset + len(content)
        while self._run is not None and self._run[1] <= offset:
            self._run = next(self._runs, None)
        while self._run is not None and self._run[0] < content_end:
            begin, end = max(self._run[0], offset), min(self._run[1], content_end)
            pieces.append((begin, content[begin - offset : end - offset]))
            if self._run[1] > content_end:
                break
            self._run = next(self._runs, None)
        return pieces

    @property
    def exhausted(self) -> bool:
        """True once every run was cut out to its end."""
        return self._run is None


@dataclass(frozen=True, slots=True)
class FetchedContent:
    """Whole frames from one or more ranges of a journal, joined, with their offsets; pure."""

    journal: str
    data: bytes = field(repr=False)
    """Left out of the repr, because asyncio formats results and megabytes take long."""
    piece_starts: Offsets
    """Beginning of each piece in `data`; shape (P,), bytes."""
    piece_offsets: Offsets
    """Beginning of each piece in the journal; shape (P,), bytes."""

    def offsets_of(self, starts: Offsets, stops: Offsets) -> tuple[Offsets, Offsets]:
        """Return begins and ends in the journal of N frames [start, stop) of `data`; shape (N,) each, bytes.

        Requires:
            Pieces that share a frame are consecutive in the journal.
        """
        piece = np.searchsorted(self.piece_starts, stops - 1, side="right") - 1
        ends = self.piece_offsets[piece] + (stops - self.piece_starts[piece])
        return ends - (stops - starts), ends


class ContentBuffer:
    """Collects pieces of a journal until there are enough to decode."""

    def __init__(self, journal: str, whole_bytes: Callable[[bytes], int]) -> None:
        """Start empty.

        Args:
            journal: The journal's name.
            whole_bytes: Returns the number of content bytes that are whole frames; the rest waits.
        """
        self._journal = journal
        self._whole_bytes = whole_bytes
        self._pieces: list[tuple[int, bytes]] = []
        self.size_bytes = 0

    def add(self, offset: int, piece: bytes) -> None:
        """Add the bytes at `offset`; they are not empty."""
        self._pieces.append((offset, piece))
        self.size_bytes += len(piece)

    def take(self) -> FetchedContent:
        """Remove and return the whole frames, if any."""
        data = b"".join([piece for _, piece in self._pieces])
        used = self._whole_bytes(data)
        starts = np.cumsum([0, *(len(piece) for _, piece in self._pieces)], dtype=np.int64)[:-1]
        offsets = np.array([offset for offset, _ in self._pieces], dtype=np.int64)
        self._keep_from(used, len(data))
        wanted = starts < used
        return FetchedContent(self._journal, data[:used], starts[wanted], offsets[wanted])

    def _keep_from(self, used: int, size: int) -> None:
        kept: list[tuple[int, bytes]] = []
        end = size
        for offset, piece in reversed(self._pieces):
            start = end - len(piece)
            if end <= used:
                break
            cut = max(0, used - start)
            kept.append((offset + cut, piece[cut:]))
            end = start
        self._pieces = kept[::-1]
        self.size_bytes = size - used
