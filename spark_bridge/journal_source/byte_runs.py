"""Which bytes of a journal a task reads, and which of them it keeps.

A *run* is a stretch [begin, end) of whole frames that are all wanted. What lies between two runs of a partition is read
and thrown away: acknowledgements, messages of transactions that are open or were rolled back, duplicates.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from spark_bridge.journal_source.message_table import Offsets


@dataclass(frozen=True, slots=True)
class BytePartition:
    """Wanted bytes of one journal, read by one task."""

    journal: str
    bounds: Offsets
    """Begins and ends of the runs in turn, ascending; shape (2R,), bytes."""
    damaged: bool = False
    """Each run is a record that is no message."""
    epoch: bytes = b""
    """Encoded JournalEpoch in which the partition was planned; empty if it is not known."""

    @property
    def begin(self) -> int:
        """First byte wanted."""
        return int(self.bounds[0])

    @property
    def end(self) -> int:
        """After the last byte wanted."""
        return int(self.bounds[-1])

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield each run's begin and end."""
        return zip(self.bounds[::2].tolist(), self.bounds[1::2].tolist(), strict=True)


def partitions_of(
    journal: str, begins: Offsets, ends: Offsets, *, bytes_max: int
) -> list[BytePartition]:
    """Return the partitions that hold exactly the wanted stretches, of about equal size.

    Args:
        journal: Their journal.
        begins: Offset of each wanted stretch of messages, in any order; shape (N,), bytes.
        ends: Offset after each; shape (N,), bytes.
        bytes_max: What a partition reads at most, holes included; a single stretch may be longer.
    """
    if not len(begins):
        return []
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], ends[order]
    sizes = ends - begins
    total = int(sizes.sum())
    equal_bytes = -(-total // -(-total // bytes_max)) + int(sizes.max())
    partitions: list[BytePartition] = []
    start = 0
    while start < len(begins):
        end = int(begins[start]) + min(bytes_max, equal_bytes)
        stop = max(start + 1, int(np.searchsorted(ends, end, side="right")))
        partitions.append(BytePartition(journal, _bounds(begins[start:stop], ends[start:stop])))
        start = stop
    return partitions


def damaged_partitions_of(
    journal: str, begins: Offsets, ends: Offsets, *, bytes_max: int
) -> list[BytePartition]:
    """Return the partitions of records that are no messages: a run each, also where they are consecutive.

    Args:
        journal: Theirs.
        begins: Of each, ascending; shape (N,), bytes.
        ends: After each; shape (N,), bytes.
        bytes_max: What a partition reads at most, holes included; a single record may be longer.
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
        """Return the wanted pieces of `content`, which stands at `offset`, with their own offsets.

        Runs that end before `offset` are gone: contents come in order, and where there is a gap, whole fragments are
        missing, which end where messages do.
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
        """Whether every run was cut out to its end."""
        return self._run is None
