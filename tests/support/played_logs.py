"""Plays logs that are in memory, as a player does, into files that are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from broadsheet.consumer.recoverylog.playback import (
    CreateFile,
    FileChange,
    Playback,
    PlaybackPosition,
    WriteFile,
)
from broadsheet.wire.recorded_op_pb2 import FSMHints

Spans = Sequence[tuple[int, bytes]]
"""(offset, content) of what a log holds; bytes between spans are gone."""


class PlayedLogs:
    """A playback and the files that come of it."""

    def __init__(self, hints: FSMHints, logs: Mapping[str, Spans]) -> None:
        self.playback = Playback(hints)
        self.logs = logs
        self.positions: list[PlaybackPosition] = []
        """Where reading began, and where it went on after each jump."""
        self._content: dict[int, bytearray] = {}

    def play(self, *, piece_bytes: int = 1 << 30) -> PlayedLogs:
        """Read to the end, in pieces; return ourselves."""
        position: PlaybackPosition | None = self.playback.position
        while position is not None:
            self.positions.append(position)
            position = self._read(position, piece_bytes)
        return self

    @property
    def files(self) -> dict[str, bytes]:
        """The files by path, properties among them."""
        fsm = self.playback.fsm
        assert self._content.keys() == fsm.fnodes.keys()
        files = {path: bytes(self._content[fnode]) for path, fnode in fsm.links.items()}
        return files | {path: content.encode() for path, content in fsm.properties.items()}

    def perform(self, changes: Sequence[FileChange]) -> None:
        """Change the files."""
        for change in changes:
            if isinstance(change, CreateFile):
                assert change.fnode not in self._content
                self._content[change.fnode] = bytearray()
            elif isinstance(change, WriteFile):
                _write(self._content[change.fnode], change.offset, bytes(change.content))
            else:
                del self._content[change.fnode]

    def _read(self, position: PlaybackPosition, piece_bytes: int) -> PlaybackPosition | None:
        """Read a log to its end, or until the player wants to go elsewhere: return where to."""
        for offset, piece in _pieces(self.logs[position.log], position.offset, piece_bytes):
            self.perform(self.playback.feed(offset, piece))
            seek = self.playback.seek
            if self.playback.handed_over:
                return None
            if seek is not None:
                self.playback.go_to(seek)
                return seek
        return None


def _pieces(spans: Spans, begin: int, piece_bytes: int) -> Iterator[tuple[int, bytes]]:
    for offset, content in spans:
        first = max(0, begin - offset)
        for at in range(first, len(content), piece_bytes):
            yield offset + at, content[at : at + piece_bytes]


def _write(file: bytearray, offset: int, content: bytes) -> None:
    file.extend(bytes(max(0, offset - len(file))))
    file[offset : offset + len(content)] = content
