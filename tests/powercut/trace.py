"""What a process did to the files below one directory, in order. Paths are relative to that directory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written to a file."""

    path: str
    offset: int
    content: bytes
    is_durable: bool = False
    """True if the call returned only once these bytes were on the disk (RWF_DSYNC)."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file that was cut or extended to a length, bytes."""

    path: str
    length: int


@dataclass(frozen=True, slots=True)
class Sync:
    """An fsync or fdatasync of a file or a directory."""

    path: str


@dataclass(frozen=True, slots=True)
class FailedSync:
    """A sync of a file that was made to fail: the disk did not take what was written."""

    path: str


@dataclass(frozen=True, slots=True)
class Create:
    """A new file, or a new directory."""

    path: str
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A second name of a file."""

    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Another name for a file or a directory; what had that name is gone."""

    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Remove:
    """The end of a name, of a file or of an empty directory."""

    path: str


@dataclass(frozen=True, slots=True)
class Said:
    """A line that the process wrote to its standard output: what it promised at this instant."""

    line: str


Event = Write | Truncate | Sync | FailedSync | Create | Link | Rename | Remove | Said
