"""What `shardctl shards recover` says of files, and of its progress."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broadsheet.cli.shards.recover import total_bytes
from broadsheet.cli.shards.recovered_files import kind_of, recovered_files
from broadsheet.consumer.recoverylog.playback import PlaybackProgress


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("000012.sst", b"anything", "RocksDB table"),
        ("000013.log", b"", "RocksDB write-ahead log"),
        ("MANIFEST-000005", b"", "RocksDB manifest"),
        ("CURRENT", b"MANIFEST-000005\n", "RocksDB: names the manifest"),
        ("OPTIONS-000007", b"", "RocksDB options"),
        ("state.json", b'{"a": 1}', "JSON"),
        ("state.json", b"not at all", ""),
        ("state.db-wal", b"\x37\x7f\x06\x82more", "SQLite write-ahead log: keep it beside"),
        ("unknown", b"bytes", ""),
    ],
)
def test_kinds(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    """By name or by first bytes; what is unknown has no kind."""
    (tmp_path / name).write_bytes(content)
    assert kind_of(tmp_path / name).startswith(expected)
    assert bool(kind_of(tmp_path / name)) == bool(expected)


def test_files_are_listed_with_their_paths(tmp_path: Path) -> None:
    """Those in directories, too; a real SQLite database is known as one."""
    (tmp_path / "db").mkdir()
    connection = sqlite3.connect(tmp_path / "db" / "state.db")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    (tmp_path / "a").write_bytes(b"12345")

    first, second = recovered_files(tmp_path)

    assert (first.path, first.length, first.kind) == ("a", 5, "")
    assert (second.path, second.kind) == ("db/state.db", "SQLite database")
    assert second.length > 0


def test_bytes_to_play_are_those_played_and_those_behind() -> None:
    """Hints leave parts of a log out, so its length says little."""
    progress = PlaybackProgress(offset=2_000_000, behind_bytes=3_000_000, played_bytes=1_500_000)

    assert total_bytes(progress) == 4_500_000
