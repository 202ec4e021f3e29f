"""Reading a write-ahead log: with logs that SQLite wrote."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broadsheet.consumer.stores.sqlite.wal_format import (
    HEADER_BYTES,
    committed_frames,
    pages_in,
    parse_header,
)


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """Two commits, and frames of a transaction that is still open and does not fit into the cache."""
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    for statement in (
        "PRAGMA page_size = 1024",
        "PRAGMA journal_mode = WAL",
        "PRAGMA cache_size = 1",
        "CREATE TABLE t (content BLOB)",
        "INSERT INTO t VALUES (randomblob(3000))",
    ):
        connection.execute(statement)
    connection.execute("BEGIN")
    for _ in range(50):
        connection.execute("INSERT INTO t VALUES (randomblob(3000))")
    content = (tmp_path / "a.db-wal").read_bytes()
    connection.execute("ROLLBACK")
    connection.close()
    return content


def test_header_tells_the_page_size(log: bytes) -> None:
    """Frames are found by it."""
    header = parse_header(log)

    assert header is not None
    assert header.page_bytes == 1024


@pytest.mark.parametrize(
    "content", [b"", b"\x37\x7f\x06\x82", bytes(64), b"SQLite format 3\x00" * 4]
)
def test_what_is_no_log_has_no_header(content: bytes) -> None:
    """An empty log is one that has begun again; another file is none."""
    assert parse_header(content) is None


def test_frames_behind_the_last_commit_are_left_out(log: bytes) -> None:
    """They belong to a transaction that may yet be rolled back."""
    header = parse_header(log)
    assert header is not None

    committed = committed_frames(header, log[HEADER_BYTES:])

    assert committed is not None
    assert 0 < committed.length_bytes < len(log) - HEADER_BYTES
    assert committed.length_bytes % header.frame_bytes == 0
    assert committed.pages < pages_in(log)
    assert committed_frames(header, log[HEADER_BYTES + committed.length_bytes :]) is None


def test_frames_of_before_the_log_began_anew_are_left_out(log: bytes) -> None:
    """Their salts are others: the file is overwritten in place, and not cut."""
    header = parse_header(log)
    assert header is not None
    other = log[:16] + bytes(8) + log[24:]

    assert pages_in(other) == frozenset()
    assert pages_in(log) != frozenset()
