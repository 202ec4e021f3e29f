"""Room on the disk for a run of the whole suite: a run that has too little ends before its first test."""

from __future__ import annotations

import shutil
import tempfile

import pytest

NEEDED_BYTES = 4 * 2**30
"""The most that a run with two processes has at once, with a margin (CONTRIBUTING.md, "Budget")."""


class DiskSpace:
    """A plugin of the process that collects results."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Say what a whole run needs, and end it if that is not there: a full disk fails tests in any way it likes."""
        config = session.config
        if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.markexpr:
            return
        directory = tempfile.gettempdir()
        sentence = room_for_a_run(directory, shutil.disk_usage(directory).free)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(sentence)


def room_for_a_run(directory: str, free_bytes: int) -> str:
    """Return the sentence that says that there is room enough.

    Raises:
        pytest.exit.Exception: there is not; the message says what to do.
    """
    needed = f"the tests need {NEEDED_BYTES / 2**30:.0f} GiB free in {directory} (TMPDIR)"
    found = f"{free_bytes / 2**30:.1f} GiB are"
    if free_bytes < NEEDED_BYTES:
        remedy = "free some, or set TMPDIR to a directory of a larger disk"
        pytest.exit(f"{needed}, and {found}: {remedy}", returncode=pytest.ExitCode.USAGE_ERROR)
    return f"{needed}; {found}"
