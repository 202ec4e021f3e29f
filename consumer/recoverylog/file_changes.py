"""Changes of a player's files, as data. A file is named by its fnode: its paths may change until the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CreateFile:
    """A new, empty file."""

    fnode: int


@dataclass(slots=True)
class WriteFile:
    """Bytes of a file, from `offset` on. Not frozen, which would make it twice as dear to make."""

    fnode: int
    offset: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """A file has no path any more."""

    fnode: int


FileChange = CreateFile | WriteFile | RemoveFile
