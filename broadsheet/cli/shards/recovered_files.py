"""Files that a recovery log gave back, and their kinds, derived from their names and first bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broadsheet.consumer.recoverylog.ownership import is_owner_path
from broadsheet.consumer.stores.store_record import RECORD

# Kinds of recovered files, derived from their names and first bytes.
_SQLITE = b"SQLite format 3\x00"
_WAL = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_HEAD_BYTES = 16


@dataclass(frozen=True, slots=True)
class RecoveredFile:
    """A file that was recovered."""

    path: str
    """Relative to the directory."""
    length: int
    """Bytes."""
    kind: str
    """For people; empty if unknown."""


def recovered_files(directory: Path) -> list[RecoveredFile]:
    """Describe all files below a directory, by path. Blocking.

    Raises:
        OSError: as of the disk.
    """
    return [
        RecoveredFile(str(path.relative_to(directory)), path.stat().st_size, kind_of(path))
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]


def kind_of(path: Path) -> str:
    """Return a file's kind, for people; empty if unknown. Blocking.

    Raises:
        OSError: as of the disk.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return next((kind for holds, kind in _KINDS if holds(path.name, head)), "")


_Test = Callable[[str, bytes], bool]
_KINDS: tuple[tuple[_Test, str], ...] = (
    (lambda _, head: head == _SQLITE, "SQLite database"),
    (lambda _, head: head.startswith(_WAL), "SQLite write-ahead log: keep it beside its database"),
    (lambda name, _: name.endswith(".sst"), "RocksDB table"),
    (lambda name, _: name.startswith("MANIFEST-"), "RocksDB manifest"),
    (lambda name, _: name == "CURRENT", "RocksDB: names the manifest"),
    (lambda name, _: name.startswith("OPTIONS-"), "RocksDB options"),
    (lambda name, _: name == "IDENTITY", "RocksDB identity"),
    (lambda name, _: is_owner_path(f"/{name}"), "names the shard that the log belongs to"),
    (lambda name, _: name == RECORD, "names the kind of store"),
    (lambda name, _: name.endswith(".log"), "RocksDB write-ahead log"),
    (lambda name, head: name.endswith(".json") and head[:1] in (b"{", b"["), "JSON"),
)
