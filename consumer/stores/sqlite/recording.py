"""Ships changes of a store's SQLite files into its recovery log.

    commit            the frames appended to state.db-wal since the last one
    checkpoint        the pages it copied into state.db, while the log still has every frame; then no state.db-wal
    now and then      all of state.db as a new file, renamed over the old, or the log of its pages would grow for ever

A log that ends anywhere replays to a committed state. Frames of a commit that is cut off do not check out, and SQLite
passes over them. A checkpoint that is cut off left every frame in place, and frames come before the pages of the file.

A life continues the write-ahead log that it finds, after the last frame that SQLite took for committed: to copy the log
into the file first, and to record that, would delay the take-over. Frames after that one were cut off and are
overwritten. The remaining ones do not check out, because each checksum continues that of the frame before, which is
another one now, or would have been committed. Here they are cut off at once, because they look like ours.

The descriptors here are open for the store's life: closing one would drop SQLite's own locks on the file, which belong
to the process (sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

from broadsheet.consumer.recoverylog.local_state import (
    CHUNK_BYTES,
    record_write,
    recorded_path,
    remove_if_there,
    replace_file,
)
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.consumer.stores.sqlite.wal_format import (
    HEADER_BYTES,
    INDEX_HEADER_BYTES,
    committed_frames,
    committed_in_index,
    pages_in,
    parse_header,
)

DATABASE, NEXT, WAL = "state.db", "state.db.next", "state.db-wal"


_INDEX = "state.db-shm"
REWRITE_RATIO = 2.0
"""Bytes of pages recorded, by the length of the database, after which it is recorded again as a whole. The log that
a standby must play holds these pages and their frames at most: about 5 times the database; and a busy store ships a
half more than it writes."""
REWRITE_BYTES_MIN = 4 << 20
"""Below this much there is nothing to gain."""


class SqliteRecording:
    """Records the files, and knows how much of each the log has."""

    def __init__(
        self,
        recorder: FileRecorder,
        directory: Path,
        *,
        rewrite_bytes_min: int = REWRITE_BYTES_MIN,
    ) -> None:
        """Take over the files as they were played from the log.

        Args:
            recorder: Of this life.
            directory: Of this life.
            rewrite_bytes_min: Least bytes of pages after which the whole database is recorded again.

        Requires:
            SQLite has not opened the database yet.
        """
        self._recorder = recorder
        self._rewrite_bytes_min = rewrite_bytes_min
        remove_if_there(recorder, directory, NEXT)
        wal = directory / WAL
        self._wal_in_log = wal.exists()
        self._wal_path = wal
        self._pages: set[int] = set()
        self._inherited_bytes = 0
        """Length of the write-ahead log that earlier lives recorded, and whose pages are not in `_pages` yet."""
        self._index_file = -1
        self.knows_database = (directory / DATABASE).exists()
        """Whether the log has the database at all."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(directory / DATABASE, flags, 0o600)
        self._wal_file = -1
        self._wal_length = 0
        """Bytes of the write-ahead log that are recorded, since it last began again."""
        self._file_length = os.fstat(self._file).st_size
        self._page_bytes = 0
        self._pages_recorded_bytes = 0

    def take_over_wal(self) -> None:
        """Go on behind the committed frames that SQLite found in the write-ahead log.

        Requires:
            SQLite has read the database, and nothing has been written to it.
        """
        if not self._wal_in_log:
            return
        if self.wal_end_bytes < HEADER_BYTES:
            os.truncate(self._wal_path, 0)
            return
        header = parse_header(os.pread(self._wal_file, HEADER_BYTES, 0))
        self._index_file = os.open(self._wal_path.with_name(_INDEX), os.O_RDONLY | os.O_CLOEXEC)
        frames = committed_in_index(os.pread(self._index_file, INDEX_HEADER_BYTES, 0))
        if header is not None and frames:
            self._wal_length = HEADER_BYTES + frames * header.frame_bytes
            self._inherited_bytes = self._wal_length
        os.truncate(self._wal_path, self._wal_length)

    @property
    def wal_end_bytes(self) -> int:
        """Length of the write-ahead log as it is now, recorded or not; 0 if there is none yet."""
        if self._wal_file < 0:
            try:
                self._wal_file = os.open(self._wal_path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return 0
        return os.fstat(self._wal_file).st_size

    @property
    def inherits(self) -> bool:
        """True while frames of an earlier life are in the write-ahead log."""
        return self._inherited_bytes > 0

    def record_commit(self, end: int | None = None) -> bool:
        """Record the frames of the transactions committed since the last call; tell whether there were any.

        Args:
            end: Length of the write-ahead log when the commit was done, if more may have been written since: a
                transaction begun meanwhile spills into it what the cache cannot hold. Its end now, if None.
        """
        end = self.wal_end_bytes if end is None else end
        if not end:
            return False
        header = parse_header(os.pread(self._wal_file, HEADER_BYTES, 0))
        if header is None:
            return False
        self._page_bytes = header.page_bytes
        begin = self._wal_length or HEADER_BYTES
        frames = _read(self._wal_file, begin, end)
        committed = committed_frames(header, frames)
        if committed is None:
            return False
        if self._wal_length == 0:
            if self._wal_in_log:  # Of an earlier life, with nothing committed in it.
                self._recorder.remove(recorded_path(WAL))
            self._recorder.create(recorded_path(WAL))
            self._wal_in_log = True
            self._recorder.write(recorded_path(WAL), 0, os.pread(self._wal_file, HEADER_BYTES, 0))
        record_write(self._recorder, WAL, begin, frames[: committed.length_bytes])
        self._wal_length = begin + committed.length_bytes
        self._pages.update(committed.pages)
        return True

    def prepare_checkpoint(self) -> None:
        """Note what a checkpoint is about to copy, as far as it was not us who recorded it."""
        if self._inherited_bytes:
            # Mapped: a copy of it all would take the shard's first pause after a hand-over several times as long. Of
            # this file's locks none is lost when the mapping's descriptor is closed, for SQLite takes none on it.
            with mmap(self._wal_file, self._inherited_bytes, access=ACCESS_READ) as content:
                self._pages |= pages_in(content)
            self._inherited_bytes = 0

    def record_checkpoint(self) -> None:
        """Record what a checkpoint did that copied every frame, and after which the write-ahead log is empty.

        Requires:
            `prepare_checkpoint` was called before it.
        """
        assert not self._inherited_bytes, "frames that an earlier life recorded were copied unseen"
        length = os.fstat(self._file).st_size
        if self._must_rewrite(length):
            replace_file(self._recorder, DATABASE, self._content(length), by_way_of=NEXT)
            self.knows_database = True
            self._pages_recorded_bytes = 0
        else:
            self._record_pages()
        self._file_length = length
        self._pages.clear()
        self._wal_length = 0
        if self._wal_in_log:
            self._recorder.remove(recorded_path(WAL))
            self._wal_in_log = False

    def close(self) -> None:
        """Close the files. Idempotent.

        Requires:
            SQLite has closed them.
        """
        for descriptor in (self._file, self._wal_file, self._index_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._wal_file = self._index_file = -1

    def _must_rewrite(self, length: int) -> bool:
        if not self.knows_database or length < self._file_length:
            return True  # The log cannot cut a file short.
        recorded = self._pages_recorded_bytes + len(self._pages) * self._page_bytes
        return recorded > max(REWRITE_RATIO * length, self._rewrite_bytes_min)

    def _record_pages(self) -> None:
        page_bytes = self._page_bytes or self._read_page_bytes()
        for first, end in _runs(self._pages):
            begin = (first - 1) * page_bytes
            content = _read(self._file, begin, (end - 1) * page_bytes)
            record_write(self._recorder, DATABASE, begin, content)
            self._pages_recorded_bytes += len(content)

    def _read_page_bytes(self) -> int:
        stated = int.from_bytes(os.pread(self._file, 2, 16), "big")
        return 65536 if stated == 1 else stated

    def _content(self, length: int) -> Iterator[bytes]:
        for begin in range(0, length, CHUNK_BYTES):
            yield _read(self._file, begin, min(begin + CHUNK_BYTES, length))


def _read(descriptor: int, begin: int, end: int) -> bytes:
    """Return the bytes [begin, end) of a file, as far as it goes."""
    content = os.pread(descriptor, max(0, end - begin), begin)
    if begin + len(content) >= end or not content:
        return content
    return content + _read(descriptor, begin + len(content), end)


def _runs(pages: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs [first, end) of consecutive numbers."""
    first = end = 0
    for page in sorted(pages):
        if page != end:
            if end:
                yield first, end
            first = page
        end = page + 1
    if end:
        yield first, end
