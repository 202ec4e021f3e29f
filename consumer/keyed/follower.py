"""The index of a standby: made once it has played all, and kept current with each commit that it plays.

A promotion takes it as it is, and reads from the files what it lacks, so it costs nothing that grows with the state. A
standby is read from it: it shows what was played by the time of the question.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Final

import pyarrow as pa

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed.absorption import ChangedNames
from broadsheet.consumer.keyed.committed_index import CommittedIndex
from broadsheet.consumer.keyed.recording import KeyedFiles, ReadTo
from broadsheet.consumer.keyed.row_index import RowIndex
from broadsheet.consumer.recoverylog.local_state import LocalState

INDEX_DIRECTORY = "index"
"""Directory of a RocksDB, beside the files."""
_USED_BY_TRANSACTIONS: Final = (
    "broadsheet.journals.content.tables",
    "broadsheet.journals.message.json_rows",
    "broadsheet.journals.message.plain_columns",
)
"""Modules that the encodings of rows import when they are first used, because journals do without pyarrow."""


class KeyedFollower:
    """Keeps the index of one standby; implements `broadsheet.consumer.recoverylog.follower.StandbyFollower`."""

    def __init__(self, fqn: str, new_index: Callable[[], RowIndex]) -> None:
        """Make no index yet.

        Args:
            fqn: The shard, for errors.
            new_index: Makes an index that is empty.
        """
        self._fqn = fqn
        self._new_index = new_index
        self._lock = threading.Lock()
        """Guards `_index` against those who take it or read it, while it is made or made again."""
        self._index: CommittedIndex | None = None
        self._read_to: ReadTo = {}
        self._stopped = False
        self.changed: ChangedNames | None = None
        """Takes the names of changed rows, for a copy of them; set before anything is followed."""

    def follow(self, files: Path) -> None:
        """Bring the index to the last commit that the files have."""
        reader = KeyedFiles(self._fqn, LocalState(files))
        index = self._index
        if index is None or not reader.resumes(index.number):
            self._make(reader)
            return
        for frame, rows in reader.follow(index.number, self._read_to):
            if self._stopped:
                return
            if frame.number != index.number + 1:
                self._make(KeyedFiles(self._fqn, LocalState(files)))
                return
            index.follow(frame, rows)
            if self.changed is not None:
                self.changed.note(rows)

    def follow_to_end(self, files: Path) -> None:
        """Take in the rest of files that grow no more, once playing is over."""
        self._stopped = False
        self.follow(files)

    def reset(self) -> None:
        """Forget the index; the next call of `follow` makes another one."""
        self._stopped = False
        self._replace(None)

    def stop(self) -> None:
        """Have `follow` return after the commit that it is at."""
        self._stopped = True

    def take(self) -> tuple[CommittedIndex, ReadTo] | None:
        """Give the index away, with where its files were read to; None if there is none that is complete.

        No call of `follow` may be under way.
        """
        with self._lock:
            index, self._index = self._index, None
        return None if index is None else (index, self._read_to)

    def lend(self) -> CommittedIndex:
        """Return the index, which the caller is to release. On any thread, at any time.

        Raises:
            StoreError: there is none that is complete.
        """
        with self._lock:
            if self._index is not None and self._index.acquire():
                return self._index
        raise StoreError(self._fqn, "the standby has not made its index yet, or is one no more")

    def discard(self) -> None:
        """Release the index, unless it was taken."""
        self._stopped = True
        self._replace(None)

    def _make(self, reader: KeyedFiles) -> None:
        """Make the index from all files, and show it when it is complete."""
        self._replace(None)
        _import_early()
        if self.changed is not None:
            self.changed.begin_round()
        index = CommittedIndex(self._fqn, self._new_index())
        try:
            for frame, rows in reader.load(tidies=False):
                if self._stopped:
                    break
                index.begin_again(frame, rows)
        except BaseException:
            index.release()
            raise
        if self._stopped or not reader.last_number:
            index.release()
            return
        index.complete()
        self._read_to = dict(reader.read_to)
        self._replace(index)

    def _replace(self, index: CommittedIndex | None) -> None:
        with self._lock:
            before, self._index = self._index, index
        if before is not None:
            before.release()


@lru_cache(maxsize=1)
def _import_early() -> None:
    """Import what a first transaction would import, before rows wait for it. Once in a process.

    A member that never served a keyed shard needs up to half a second for that, which would be a part of the time of a
    fail-over, and of the pause of a split.
    """
    # pyarrow imports pandas, where it is installed, with its first array of Python's values.
    pa.array([0])
    for name in _USED_BY_TRANSACTIONS:
        import_module(name)
