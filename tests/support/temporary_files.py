"""Temporary files of a test session: one directory for all, which goes with the session, and what tests leave there.

Tests have `tmp_path`. What is told no directory, such as an embedded etcd, a JVM or a program that a test kills, uses
the system's: what each run left there filled the disk in the end.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broadsheet.runtime.process_directory import HELD, ProcessDirectory

_WORKER_OUTPUT = "temporary_files"


class TemporaryFiles:
    """A plugin of each process that runs or collects tests: it tells at the end which test left what behind.

    A test whose server lives longer, because a fixture shares it, is not told apart from one that forgets it until all
    fixtures have ended. So entries are noted as they appear, and reported if they are still there in the end.
    """

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._seen: dict[str, str] = {}
        """Entries by name, with the test after which each was there first."""
        self.left: list[str] = []
        """Lines of the report."""

    @contextmanager
    def kept_together(self) -> Iterator[None]:
        """Direct temporary files of this process, and of those that it starts, into a directory for this block."""
        # A short name, because it is part of those of unix sockets.
        with ProcessDirectory("bs-tests-") as place, pytest.MonkeyPatch.context() as patch:
            # Servers that refuse to run as the superuser pass through it to directories of their own.
            place.path.chmod(0o711)
            self._directory = place.path
            patch.setenv("TMPDIR", str(place.path))
            patch.setattr(tempfile, "tempdir", str(place.path))
            yield
            self.left.extend(self._remaining(place.path))
            self._directory = None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note what is new since the last test."""
        if self._directory is not None:
            for name in os.listdir(self._directory):  # noqa: PTH208 - names alone, after each of 10,000 tests
                self._seen.setdefault(name, nodeid)

    @pytest.hookimpl(trylast=True)  # when the fixtures of the session have ended
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand a worker's findings to the process that collects them."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_WORKER_OUTPUT] = self.left

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take a worker's findings."""
        self.left.extend(getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, []))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show them."""
        if self.left:
            terminalreporter.section("left among temporary files, and removed")
            for line in sorted(self.left):
                terminalreporter.write_line(line)

    def _remaining(self, directory: Path) -> Iterator[str]:
        for entry in sorted(directory.iterdir()):
            files = _files_of(entry)
            # An empty directory may be for all processes of this user, such as the parent of members' directories.
            if files and entry.name != HELD:
                size = sum(map(_allocated, files)) / 2**20
                after = self._seen.get(entry.name, "the last test")
                yield f"{entry.name} ({size:.1f} MiB), first seen after {after}"


def _files_of(entry: Path) -> list[Path]:
    if not entry.is_dir():
        return [entry]
    return [Path(folder, name) for folder, _, names in os.walk(entry) for name in names]


def _allocated(file: Path) -> int:
    try:
        return file.lstat().st_blocks * 512
    except OSError:
        return 0  # its process, which was killed, ends just now
