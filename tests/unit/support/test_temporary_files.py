"""Temporary files of a session: gone with it, and told."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.temporary_files import TemporaryFiles


def test_files_left_behind_are_removed_and_told_with_their_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that forgets a directory is named; one that cleans up is not."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = TemporaryFiles()

    with files.kept_together():
        kept = Path(tempfile.mkdtemp(prefix="kept-"))
        (kept / "file").write_bytes(bytes(3 << 20))
        Path(tempfile.mkdtemp(prefix="removed-")).rmdir()
        files.pytest_runtest_logfinish("tests/test_one.py::test_leaves")
        files.pytest_runtest_logfinish("tests/test_one.py::test_other")

    assert list(tmp_path.iterdir()) == []
    (line,) = files.left
    assert line == f"{kept.name} (3.0 MiB), first seen after tests/test_one.py::test_leaves"
