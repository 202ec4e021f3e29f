"""Ships changes of a store's RocksDB files into its recovery log.

    tables (*.sst, *.blob) ─► write-ahead logs (*.log) ─► MANIFEST ─► CURRENT ─► removals

Every file is written once from its beginning to its end, so new content is everything after the recorded length. The
order makes a log that ends anywhere open at a commit: tables are unknown until the manifest names them, a commit cut
off at the end of a write-ahead log is skipped, and no file is removed that the manifest still names. The growth of a
manifest is one recorded write, which is in the log completely or not at all: it may name a table that came and went
between two looks, together with what replaced it.

RocksDB's own threads add tables and remove files at any time. The files are therefore listed between two reads of the
manifest, and again if it changed meanwhile: if it did not, every file that it names was complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadsheet.consumer.recoverylog.local_state import (
    CHUNK_BYTES,
    record_write,
    recorded_path,
    replace_file,
)
from broadsheet.consumer.recoverylog.ownership import is_owner_path
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.consumer.stores.store_record import RECORD

_TABLE: Final = re.compile(r"\d+\.(sst|blob)")
_WAL: Final = re.compile(r"\d+\.log")
_MANIFEST: Final = re.compile(r"MANIFEST-\d+")
_CURRENT, _IDENTITY = "CURRENT", "IDENTITY"
_LOCAL: Final = re.compile(r"LOCK|LOG|LOG\.old\..*|rocksdict-config\.json")
"""Files that an opening creates for itself."""

_LOOKS_MAX = 1000
"""Attempts to list the files before giving up; each failure means that a flush or a compaction just ended."""


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The manifest that RocksDB uses at a moment."""

    current: bytes
    """Content of CURRENT: the manifest's name and a newline."""
    length: int

    @property
    def name(self) -> str:
        return self.current.decode().strip()


@dataclass(frozen=True, slots=True)
class _Grown:
    """A file with more content than the log has: an open descriptor, which outlasts the file's removal."""

    name: str
    descriptor: int
    end: int


class RocksDbRecording:
    """Records the files, and knows how much of each the log has."""

    def __init__(self, recorder: FileRecorder, directory: Path) -> None:
        """Take over the files as they were played from the log.

        Requires:
            RocksDB has not opened them yet.
        """
        self._recorder = recorder
        self._directory = directory
        self._lengths: dict[str, int] = {}
        """Bytes recorded of each file that is in the log."""
        self._current = b""
        self._identity = ""
        self._played: set[str] = set()
        self._take_over()

    def record_changes(self) -> None:
        """Record changes since the last call.

        Requires:
            Only RocksDB's own threads write to the database meanwhile.
        """
        with ExitStack() as stack:
            manifest, present, grown = self._look(stack)
            self._begin_replaced(present)
            for file in sorted(grown, key=lambda file: _order(file.name)):
                self._record_growth(file)
        if manifest.current != self._current:
            replace_file(
                self._recorder, _CURRENT, (manifest.current,), by_way_of=f"{_CURRENT}.dbtmp"
            )
            self._current = manifest.current
        for name in self._lengths.keys() - present.keys():
            self._recorder.remove(recorded_path(name))
            del self._lengths[name]
        self._record_identity()

    def _take_over(self) -> None:
        names = {entry.name for entry in os.scandir(self._directory) if entry.is_file()}
        names -= {_CURRENT, _IDENTITY} | {name for name in names if _LOCAL.fullmatch(name)}
        # Properties of the log, and no files of RocksDB.
        names -= {RECORD} | {name for name in names if is_owner_path(f"/{name}")}
        current = self._directory / _CURRENT
        if current.exists():
            self._current = current.read_bytes()
        identity = self._directory / _IDENTITY
        self._identity = identity.read_text() if identity.exists() else ""
        for name in sorted(names):
            path = self._directory / name
            # Left by a log that was cut off before there was a database, or in the middle of a rename.
            if not self._current or name.endswith(".dbtmp"):
                path.unlink()
                self._recorder.remove(recorded_path(name))
                continue
            self._lengths[name] = path.stat().st_size
            # So that a file that RocksDB creates again under an old name can be told from the old one.
            os.utime(path, ns=(0, 0))
        self._played = set(self._lengths)

    def _look(self, stack: ExitStack) -> tuple[_Manifest, dict[str, os.stat_result], list[_Grown]]:
        """Return the manifest, and the files, which include every file that it names, complete."""
        for _ in range(_LOOKS_MAX):
            manifest = self._manifest()
            with ExitStack() as attempt:
                try:
                    present = self._present(manifest)
                    grown = [
                        _Grown(name, self._open(name, attempt), status.st_size)
                        for name, status in present.items()
                        if status.st_size > self._length(name, status) or name not in self._lengths
                    ]
                except FileNotFoundError:
                    continue  # It was removed during the listing, so the manifest has changed.
                if self._manifest() == manifest:
                    stack.push(attempt.pop_all())
                    return manifest, present, grown
        raise OSError(
            f"{self._directory}: the manifest changed at each of {_LOOKS_MAX} looks at it"
        )

    def _manifest(self) -> _Manifest:
        while True:
            current = (self._directory / _CURRENT).read_bytes()
            try:
                length = (self._directory / current.decode().strip()).stat().st_size
            except FileNotFoundError:
                continue  # CURRENT names another one by now.
            return _Manifest(current, length)

    def _present(self, manifest: _Manifest) -> dict[str, os.stat_result]:
        """Return the files that belong into the log, by name."""
        present: dict[str, os.stat_result] = {}
        with os.scandir(self._directory) as entries:
            for entry in entries:
                name = entry.name
                if (
                    name in self._lengths
                    or name == manifest.name
                    or _TABLE.fullmatch(name)
                    or _WAL.fullmatch(name)
                ):
                    present[name] = entry.stat()
        return present

    def _open(self, name: str, stack: ExitStack) -> int:
        descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        return descriptor

    def _length(self, name: str, status: os.stat_result) -> int:
        """Return how much of a file is recorded: none if it was created again under the name of a played one."""
        if name in self._played and status.st_mtime_ns != 0:
            return 0
        return self._lengths.get(name, 0)

    def _begin_replaced(self, present: dict[str, os.stat_result]) -> None:
        """Drop the played files that were created again; all others are as they were played, and ours from now on."""
        for name in self._played & present.keys():
            if present[name].st_mtime_ns != 0:
                self._recorder.remove(recorded_path(name))
                del self._lengths[name]
        self._played.clear()

    def _record_growth(self, file: _Grown) -> None:
        begin = self._lengths.get(file.name)
        if begin is None:
            self._recorder.create(recorded_path(file.name))
            begin = 0
        chunks = _chunks(file.descriptor, begin, file.end)
        if begin and _MANIFEST.fullmatch(file.name):
            growth = b"".join(chunk for _, chunk in chunks)
            self._recorder.write(recorded_path(file.name), begin, growth)
        else:
            for chunk_begin, chunk in chunks:
                record_write(self._recorder, file.name, chunk_begin, chunk)
        self._lengths[file.name] = file.end

    def _record_identity(self) -> None:
        if self._identity:
            return
        path = self._directory / _IDENTITY
        if path.exists():
            self._identity = path.read_text()
            self._recorder.set_property(recorded_path(_IDENTITY), self._identity)


def _order(name: str) -> tuple[int, str]:
    """Return the rank of a file among those recorded together."""
    if _TABLE.fullmatch(name):
        return 0, name
    return (1 if _WAL.fullmatch(name) else 2), name


def _chunks(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, content) of the bytes [begin, end) of a file."""
    while begin < end:
        content = os.pread(descriptor, min(CHUNK_BYTES, end - begin), begin)
        if not content:
            raise OSError(
                f"a file of RocksDB is shorter than it was: expected {end} bytes, got {begin}"
            )
        yield begin, content
        begin += len(content)
