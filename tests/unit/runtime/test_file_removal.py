"""The removal of files that are long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broadsheet.runtime.file_removal import LONG_BYTES, remove_file
from tests.support.eventually import eventually_sync


@pytest.mark.parametrize("size_bytes", [0, LONG_BYTES])
def test_file_is_gone_at_once_and_its_content_soon(tmp_path: Path, size_bytes: int) -> None:
    """Its name may be used again at once; nothing of the process has the old file open for long."""
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, size_bytes)

    remove_file(path)

    assert not path.exists()
    path.write_text("another")
    eventually_sync(lambda: not _open_and_removed(path), timeout_seconds=30)
    assert path.read_text() == "another"


def test_file_that_is_not_there_is_no_surprise(tmp_path: Path) -> None:
    """Removing says so, as of any file."""
    with pytest.raises(FileNotFoundError):
        remove_file(tmp_path / "nothing")


def _open_and_removed(path: Path) -> bool:
    """Report whether this process has a removed file of that name open."""
    links = [_target(each) for each in Path("/proc/self/fd").iterdir()]
    return f"{path} (deleted)" in links


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""
