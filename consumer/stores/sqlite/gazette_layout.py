"""Takes a SQLite database over from a recovery log that Gazette's SQLite store recorded.

    pageDB/                 a RocksDB: a column family a database, named by its path; pages by their offsets
    primary.db-wal, …       write-ahead log or rollback journal of a database, as files

The pages become `state.db`, and SQLite itself applies the journal beside it. This goes one way: Gazette's store does
not read what ours records then, and would begin with an empty database. So the application must ask for it, once its
last Gazette consumer is gone.

Source: gazette/core consumer/store-sqlite/{store.go,store.cpp} (the layout, and the name `primary.db`).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.recoverylog.local_state import recorded_path, remove_if_there
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.consumer.stores.sqlite.recording import DATABASE, NEXT
from broadsheet.runtime.errors import needs_extra
from broadsheet.runtime.private_directory import FILE_MODE

PAGES: Final = "pageDB"
PRIMARY: Final = "primary.db"
_DEFAULT_FAMILY: Final = "default"
"""Made by RocksDB, and never used by the store."""
_JOURNALS: Final = ("-wal", "-journal")
_KEY_BYTES: Final = 8
"""Length of a page's offset, big-endian."""
_HEADER_BYTES: Final = 100
_PAGE_BYTES_AT: Final = 16
_LONGEST_PAGE: Final = 65_536
"""Stated as 1, because the field has 16 bits."""


def has_gazette_layout(directory: Path) -> bool:
    """Tell whether the played files are those of Gazette's SQLite store."""
    return (directory / PAGES).is_dir()


def take_over_pages(fqn: str, directory: Path, recorder: FileRecorder) -> None:
    """Make `state.db` of the played pages; nothing of it is recorded yet.

    Args:
        fqn: The shard, for errors.
        directory: Holds the played files, and no `state.db`.
        recorder: Removes what a take-over that was cut off left in the log.

    Raises:
        StoreError: pages are missing, or there are several databases.
        OSError: as of the disk.
    """
    target = directory / NEXT
    remove_if_there(recorder, directory, NEXT)
    try:
        _write_database(fqn, directory, target)
        for suffix in _JOURNALS:
            journal = directory / f"{PRIMARY}{suffix}"
            if journal.exists():
                shutil.copyfile(journal, directory / f"{NEXT}{suffix}")
        # SQLite applies the journal: copies what is committed into the file, or takes back what is not.
        with closing(sqlite3.connect(target)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StoreError(fqn, f"the pages in its recovery log make no sound database: {found}")
    except sqlite3.Error as error:
        raise StoreError(
            fqn, f"the pages in its recovery log make no database that SQLite opens: {error}"
        ) from error
    target.rename(directory / DATABASE)


def remove_gazette_files(directory: Path, recorder: FileRecorder) -> None:
    """Remove the files of Gazette's store, here and in the log; call it once the log has the database.

    Raises:
        OSError: as of the disk.
    """
    for suffix in _JOURNALS:
        remove_if_there(recorder, directory, f"{PRIMARY}{suffix}")
    # The pages last, because they tell the next life that something is left.
    for path in sorted((directory / PAGES).rglob("*")):
        if path.is_file():
            recorder.remove(recorded_path(str(path.relative_to(directory))))
    shutil.rmtree(directory / PAGES)


def _write_database(fqn: str, directory: Path, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        page_bytes = 0
        for key, page in _pages(fqn, directory / PAGES):
            page_bytes = page_bytes or _page_bytes(fqn, page)
            at = int.from_bytes(key, "big")
            if len(key) != _KEY_BYTES or at != file.tell() or len(page) != page_bytes:
                raise StoreError(
                    fqn,
                    f"{PAGES} in its recovery log: expected a page of {page_bytes} bytes at {file.tell()}, got "
                    f"{len(page)} bytes at {at}",
                )
            file.write(page)


def _page_bytes(fqn: str, first: bytes) -> int:
    if len(first) < _HEADER_BYTES:
        raise StoreError(fqn, f"{PAGES} in its recovery log: its first page has {len(first)} bytes")
    stated = int.from_bytes(first[_PAGE_BYTES_AT : _PAGE_BYTES_AT + 2], "big")
    return _LONGEST_PAGE if stated == 1 else stated


def _pages(fqn: str, pages: Path) -> Iterator[tuple[bytes, bytes]]:
    try:
        from rocksdict import AccessType, Options, Rdict
    except ImportError as error:
        raise StoreError(
            fqn,
            "its recovery log is of Gazette's SQLite store, whose pages are in a RocksDB: that "
            + needs_extra("rocksdb", "rocksdict"),
        ) from error
    families = set(Rdict.list_cf(str(pages), Options(raw_mode=True)))
    if families - {_DEFAULT_FAMILY} != {PRIMARY}:
        raise StoreError(
            fqn,
            f"expected one database, {PRIMARY}, in its recovery log, got {sorted(families - {_DEFAULT_FAMILY})}; "
            "attached databases cannot be taken over",
        )
    database = Rdict(
        str(pages),
        Options(raw_mode=True),
        column_families={name: Options(raw_mode=True) for name in families},
        access_type=AccessType.read_only(),
    )
    try:
        family = database.get_column_family(PRIMARY)
        yield from family.items()
        family.close()
    finally:
        database.close()
