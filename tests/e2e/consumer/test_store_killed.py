"""Stores whose process is killed at any moment of its commits: on a disk that stays, as another process finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broadsheet.testing.stores.subject import offset_of
from tests.support.committing_process import SHARD, subject_of

pytestmark = pytest.mark.e2e

COMMITS_BEFORE_KILLS = (2, 110)
"""The kill comes as soon as so many commits of a life are told, which is somewhere in the next one."""


@pytest.mark.parametrize("kind", ["json_file", "sql", "sqlite", "rocksdb"])
def test_killed_store_holds_a_whole_commit_and_none_that_was_told_is_lost(
    kind: str, tmp_path: Path
) -> None:
    """State and checkpoint are of one commit, not older than the last that the process knew to be durable."""
    for commits in COMMITS_BEFORE_KILLS:
        told = _kill_after(commits, kind, tmp_path)

        with subject_of(kind, tmp_path) as subject:
            store = subject.open(SHARD)
            step = offset_of(store.restore_checkpoint(SHARD))
            state = subject.committed(store)
            store.destroy()

        assert told <= step <= told + 1
        expected = {f"k{past % 50}": past for past in range(max(1, step - 49), step + 1)}
        assert state == {"last": step} | expected


def _kill_after(commits: int, kind: str, directory: Path) -> int:
    """Run a process until it has told of `commits`, kill it, and return the last commit it told of."""
    arguments = [sys.executable, "-m", "tests.support.committing_process", kind, str(directory)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(commits)]
        process.kill()
        told += process.stdout.readlines()
    assert process.returncode == -9, f"{kind} ended by itself after {len(told)} commits"
    return int(told[-1])
