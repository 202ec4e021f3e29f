"""The log that the suite records into is itself strict, and a fence: else a store could pass that should not."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from broadsheet.consumer.errors import StoreError
from broadsheet.testing.stores.recorded_log import RecordedLog


def test_replay_of_all_is_what_was_done(tmp_path: Path) -> None:
    """Writes overwrite, renames replace, properties are files."""
    log = RecordedLog()
    recorder = log.recorder()
    recorder.create("/a")
    recorder.write("/a", 0, b"hello")
    recorder.write("/a", 4, b"p me")
    recorder.create("/dir/b")
    recorder.rename("/a", "/dir/b")
    recorder.create("/c")
    recorder.remove("/c")
    recorder.set_property("/id", "x")

    log.replay(tmp_path)

    assert (tmp_path / "dir/b").read_bytes() == b"hellp me"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir", "id"]


def test_operations_that_make_no_sense_are_refused() -> None:
    """A log is not a filesystem: what it does not know, it cannot write to."""
    recorder = RecordedLog().recorder()
    recorder.create("/a")

    with pytest.raises(ValueError, match="exists"):
        recorder.create("/a")
    with pytest.raises(ValueError, match="hole"):
        recorder.write("/a", 1, b"x")
    with pytest.raises(ValueError, match="does not exist"):
        recorder.write("/b", 0, b"x")
    with pytest.raises(ValueError, match="does not exist"):
        recorder.remove("/b")
    with pytest.raises(ValueError, match="slash"):
        recorder.create("b")


def test_older_recorder_changes_nothing_and_its_barrier_fails() -> None:
    """As at a broker: appends of a fenced author are refused."""
    log = RecordedLog()
    older, newer = log.recorder(), log.recorder()

    older.create("/a")

    assert log.changes == []
    with pytest.raises(StoreError, match="fenced"):
        older.barrier().result(0)
    newer.barrier().result(0)


def test_hand_over_is_one_step_to_a_thread_that_still_records(tmp_path: Path) -> None:
    """Stores fold and compact on threads of their own: none of their changes may fall behind the replay, yet be in."""
    log = RecordedLog()
    older, many = log.recorder(), threading.Event()

    def record() -> None:
        for number in count():
            older.create(f"/{number}")
            if number > 1000:
                many.set()
            if older.fenced:
                return

    thread = threading.Thread(target=record)
    thread.start()
    try:
        assert many.wait(30)
        log.hand_over(tmp_path)
    finally:
        log.recorder()
        thread.join(30)

    replayed = sorted(f"/{path.name}" for path in tmp_path.iterdir())
    assert replayed == log.files.paths()
    assert len(replayed) == len(log.changes)


def test_cuts_are_after_each_change_and_within_each_write() -> None:
    """An append may be split: half a write is a place where the log may end."""
    log = RecordedLog()
    recorder = log.recorder()
    recorder.create("/a")
    recorder.write("/a", 0, b"1234")

    cuts = [(count, files.size_bytes(), len(files.paths())) for count, files in log.cuts()]

    assert cuts == [(0, 0, 0), (1, 0, 1), (1, 2, 1), (2, 4, 1)]


def test_held_barriers_wait() -> None:
    """A slow broker."""
    log = RecordedLog()
    log.hold()
    barrier = log.recorder().barrier()

    assert not barrier.done()
    log.release()
    barrier.result(0)
