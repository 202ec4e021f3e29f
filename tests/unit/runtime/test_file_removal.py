"""The removal of files that are long."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
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


def test_file_goes_without_a_free_descriptor(tmp_path: Path) -> None:
    """A process that has too many files open can still get rid of one."""
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, LONG_BYTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = os.open(path, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(path, os.O_RDONLY)
        remove_file(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(taken)

    assert not path.exists()


_WITHOUT_THREADS = """
import os, pathlib, sys, threading
from broadsheet.runtime.file_removal import LONG_BYTES, remove_file
path = pathlib.Path(sys.argv[1])
path.touch()
os.truncate(path, LONG_BYTES)
threading.stack_size(1 << 46)  # More than there are addresses.
remove_file(path)
assert not path.exists()
print(len([each for each in pathlib.Path("/proc/self/fd").iterdir() if "deleted" in os.path.realpath(each)]))
"""


def test_file_goes_without_another_thread(tmp_path: Path) -> None:
    """Where no thread can begin, because there are too many or the interpreter ends, the caller frees the content."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_THREADS, tmp_path / "file"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


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
