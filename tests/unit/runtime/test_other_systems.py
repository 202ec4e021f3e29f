"""What only Linux has: the same works without it, as on macOS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from broadsheet.broker.disk import Disk
from broadsheet.consumer.recoverylog.standby_files import LiveFiles, copy_files
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.runtime.file_sync import sync_content
from tests.support.eventually import eventually_sync

_OF_LINUX = ("fdatasync", "copy_file_range", "posix_fadvise")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that has none of Linux's own calls."""
    for name in _OF_LINUX:
        monkeypatch.delattr(os, name)


@pytest.mark.usefixtures("elsewhere")
def test_content_is_written_durably_and_copied(tmp_path: Path) -> None:
    """A broker's log, a store's changes and a standby's files: each call of Linux's own has another way."""
    path = tmp_path / "content"
    disk = Disk(writes_durably=False)
    try:
        with path.open("w+b") as file:
            assert disk.write_durably(file.fileno(), [b"one", b"two"], 0) == 6
            sync_content(file.fileno())
    finally:
        disk.close()

    (tmp_path / "7").write_bytes(path.read_bytes())
    live = LiveFiles({7: ("/copied",)}, {})
    assert copy_files(live, tmp_path, tmp_path / "copy", log="a/log", is_wanted=lambda: True)
    assert (tmp_path / "copy" / "copied").read_bytes() == b"onetwo"


_PARENT = """
import os, sys
from pathlib import Path
sys.platform = "darwin"
from broadsheet.embedded.child_process import ChildProcess
child = ChildProcess(["/bin/sleep", "1000"], directory=Path("."), log_file=Path("log"))
print(child.pid, flush=True)
sys.stdin.read()
os._exit(1)
"""


def test_child_ends_with_a_parent_that_cannot_ask_for_a_signal(tmp_path: Path) -> None:
    """An etcd that outlives a test that was killed would have its port and its directory for ever."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)

    parent.kill()
    parent.communicate()

    eventually_sync(lambda: not psutil.pid_exists(pid), message="the end of the child")


def test_child_that_ends_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that looks for the parent ends with the program that it is there for."""
    monkeypatch.setattr(sys, "platform", "darwin")
    child = ChildProcess(["/bin/sleep", "1000"], directory=tmp_path, log_file=tmp_path / "log")
    watchers = eventually_sync(lambda: psutil.Process(child.pid).children(), message="a watcher")

    child.send_signal(signal.SIGTERM)

    eventually_sync(lambda: child.exit_code == -signal.SIGTERM, message="the end of the child")
    eventually_sync(
        lambda: not any(each.is_running() for each in watchers), message="the end of the watcher"
    )
