"""Logs whose frames stand before zeros that were written ahead."""

from __future__ import annotations

from pathlib import Path

from broadsheet.broker.commit_log import AHEAD_BYTES_MIN
from broadsheet.broker.disk import Disk
from broadsheet.broker.recovery import open_journal
from tests.support.journal_files import (
    commit,
    content_by_span,
    copied,
    crash,
    marks,
    opening,
    reopened,
)

COMMITS = 120
"""Enough for the log to outgrow its first unit."""


def _written(directory: Path) -> tuple[Path, int]:
    """Commit until the log is prepared ahead, and crash; return the log, and its length before the last commit."""
    recovered = open_journal(Disk(), directory, opening())
    before = 0
    (log,) = directory.glob("commit-*")
    for number in range(COMMITS):
        before = recovered.store.log_bytes
        commit(recovered.store, b"batch %03d" % number, registers=marks(number))
    end = recovered.store.log_bytes
    crash(recovered)
    assert log.stat().st_size > AHEAD_BYTES_MIN
    assert not log.read_bytes()[end:].strip(b"\0")
    return log, before


def test_a_log_is_prepared_ahead_for_frames_that_are_synced_one_by_one(tmp_path: Path) -> None:
    """Plan: commit past the point from which zeros are written ahead, and crash.

    What recovers is every commit, and nothing counts as damaged.
    """
    _written(tmp_path / "j")

    recovered = reopened(tmp_path / "j")
    crash(recovered)

    whole = b"".join(b"batch %03d" % number for number in range(COMMITS))
    assert content_by_span(recovered.index) == {(0, len(whole)): whole}
    assert not recovered.damage


def test_a_frame_torn_before_the_zeros_was_never_acknowledged(tmp_path: Path) -> None:
    """Plan: leave so many bytes of the last frame, zeros behind them, as a power cut in its sync does.

    Whatever the length, the commit before is the last one, and nothing counts as damaged.
    """
    log, before = _written(tmp_path / "j")
    content = log.read_bytes()
    frame_bytes = len(content.rstrip(b"\0")) - before
    for kept in range(0, frame_bytes - 1, 5):
        directory = copied(tmp_path / "j", tmp_path / "copy")
        torn = content[: before + kept]
        (directory / log.name).write_bytes(torn + bytes(len(content) - len(torn)))

        recovered = reopened(directory)
        state = recovered.store.state
        crash(recovered)

        assert not recovered.damage
        assert (state.head, state.unconfirmed) == (9 * (COMMITS - 1), False)
