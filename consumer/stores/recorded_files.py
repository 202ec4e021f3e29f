"""Common ways of recording files, such that a log which ends anywhere replays to a directory that a store can open."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from consumer.recoverylog.recorder import FileRecorder

CHUNK_BYTES = 1 << 20
"""Longest content of one recorded write: it is held in memory, and shipped whole."""


def recorded_path(name: str) -> str:
    """Return how the log names a file of the store's directory."""
    return f"/{name}"


def record_write(recorder: FileRecorder, name: str, offset: int, content: bytes) -> None:
    """Record a write of any length, bytes [offset, offset + len(content)), in chunks."""
    view = memoryview(content)
    for begin in range(0, len(view), CHUNK_BYTES):
        chunk = view[begin : begin + CHUNK_BYTES]
        recorder.write(recorded_path(name), offset + begin, bytes(chunk))


def record_file(recorder: FileRecorder, name: str, chunks: Iterable[bytes]) -> int:
    """Record a new file and all its content; return its length in bytes."""
    recorder.create(recorded_path(name))
    offset = 0
    for chunk in chunks:
        record_write(recorder, name, offset, chunk)
        offset += len(chunk)
    return offset


def replace_file(
    recorder: FileRecorder, name: str, chunks: Iterable[bytes], *, by_way_of: str
) -> int:
    """Record a file's replacement at one stroke: all of it under another name, then the rename."""
    length = record_file(recorder, by_way_of, chunks)
    recorder.rename(recorded_path(by_way_of), recorded_path(name))
    return length


def remove_if_there(recorder: FileRecorder | None, directory: Path, name: str) -> None:
    """Remove what an earlier life left unfinished, here and in the log."""
    path = directory / name
    if path.exists():
        path.unlink()
        if recorder is not None:
            recorder.remove(recorded_path(name))
