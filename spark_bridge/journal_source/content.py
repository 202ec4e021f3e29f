"""The wanted bytes of a partition as they are decoded: pieces of a journal joined, their places kept.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from spark_bridge.journal_source.message_table import Offsets


@dataclass(frozen=True, slots=True)
class Content:
    """Whole frames from one or more places of a journal."""

    journal: str
    data: bytes = field(repr=False)
    """Not shown: asyncio shows results to itself, and megabytes take their time."""
    piece_starts: Offsets
    """Where each piece begins in `data`; shape (P,), bytes."""
    piece_offsets: Offsets
    """Where it begins in the journal; shape (P,), bytes."""

    def offsets_of(self, starts: Offsets, stops: Offsets) -> tuple[Offsets, Offsets]:
        """Return begin and end in the journal of N frames [start, stop) of `data`; shape (N,) each, bytes.

        Requires:
            Pieces that a frame lies across are consecutive in the journal.
        """
        piece = np.searchsorted(self.piece_starts, stops - 1, side="right") - 1
        ends = self.piece_offsets[piece] + (stops - self.piece_starts[piece])
        return ends - (stops - starts), ends


class ContentBuffer:
    """Collects pieces until there are enough to decode."""

    def __init__(self, journal: str, whole_bytes: Callable[[bytes], int]) -> None:
        """Start empty.

        Args:
            journal: Whose content it is.
            whole_bytes: Returns how many bytes of content are whole frames; the rest waits.
        """
        self._journal = journal
        self._whole_bytes = whole_bytes
        self._pieces: list[tuple[int, bytes]] = []
        self.size_bytes = 0

    def add(self, offset: int, piece: bytes) -> None:
        """Add the bytes that stand at `offset`; they are not empty."""
        self._pieces.append((offset, piece))
        self.size_bytes += len(piece)

    def take(self) -> Content:
        """Remove and return the whole frames, perhaps none."""
        data = b"".join([piece for _, piece in self._pieces])
        used = self._whole_bytes(data)
        starts = np.cumsum([0, *(len(piece) for _, piece in self._pieces)], dtype=np.int64)[:-1]
        offsets = np.array([offset for offset, _ in self._pieces], dtype=np.int64)
        self._keep_from(used, len(data))
        wanted = starts < used
        return Content(self._journal, data[:used], starts[wanted], offsets[wanted])

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
