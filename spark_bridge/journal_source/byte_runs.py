"""Which bytes of a journal a task reads, and which of them it keeps.

A *run* is a stretch [begin, end) of whole frames that are all wanted. What lies between two runs of a partition is read
and thrown away: acknowledgements, messages of transactions that are open or were rolled back, duplicates.

Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BytePartition:
    """Wanted bytes of one journal, read by one task."""

    journal: str
    bounds: array[int]
    """Begins and ends of the runs in turn, ascending; shape (2R,), bytes."""

    @property
    def begin(self) -> int:
        """First byte wanted."""
        return self.bounds[0]

    @property
    def end(self) -> int:
        """After the last byte wanted."""
        return self.bounds[-1]

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield each run's begin and end."""
        return zip(self.bounds[::2], self.bounds[1::2], strict=True)


def partitions_of(
    journal: str, begins: Sequence[int], ends: Sequence[int], *, bytes_max: int
) -> list[BytePartition]:
    """Return the partitions that hold exactly the wanted messages.

    Args:
        journal: Their journal.
        begins: Offset of each wanted message, in any order; shape (N,), bytes.
        ends: Offset after each; shape (N,), bytes.
        bytes_max: What a partition reads at most, holes included; a single message may be longer.
    """
    partitions: list[BytePartition] = []
    bounds: array[int] = array("q")
    begin_of_partition = last_end = -1
    for begin, end in sorted(zip(begins, ends, strict=True)):
        if not bounds or end - begin_of_partition > bytes_max:
            bounds = array("q", (begin, end))
            partitions.append(BytePartition(journal, bounds))
            begin_of_partition = begin
        elif begin == last_end:
            bounds[-1] = end
        else:
            bounds.append(begin)
            bounds.append(end)
        last_end = end
    return partitions


class RunCutter:
    """Cuts the wanted bytes out of a partition's content as it arrives."""

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        self._runs = iter(runs)
        self._run = next(self._runs, None)

    def take(self, offset: int, content: bytes) -> list[tuple[int, bytes]]:
        """Return the wanted pieces of `content`, which stands at `offset`, with their own offsets.

        Requires:
            Contents come in order and without a gap.
        """
        pieces: list[tuple[int, bytes]] = []
        content_end = offset + len(content)
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
