"""What failed in a run of tests that broke off: pytest sums up its failures only where a run ends by itself."""

from __future__ import annotations

import sys

import pytest

_CHARACTERS_MAX = 300


class FailureLines:
    """A plugin that keeps a line a failure, and prints them where an internal error ended the run."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._broken = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep where and why a phase of a test failed."""
        if report.failed:
            self._lines.append(f"{report.nodeid} [{report.when}]: {_essence(report.longreprtext)}")

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep each internal error: the first of several is the cause."""
        self._broken = True
        self._lines.append(f"internal error: {_essence(excinfo.exconly())}")

    def pytest_unconfigure(self) -> None:
        """Print what was kept, if there was an internal error."""
        if self._broken:
            sys.stderr.write("\nFailed before the run broke off:\n" + "\n".join(self._lines) + "\n")


def _essence(traceback: str) -> str:
    """Return what a printed traceback says of the error itself, on one line: its begin and its end, if it is long."""
    lines = traceback.strip().splitlines()
    error = [line.strip("E ") for line in lines if line.startswith("E ")] or lines
    line = " ".join(" ".join(error).split())
    if len(line) <= _CHARACTERS_MAX:
        return line
    return f"{line[: _CHARACTERS_MAX // 2]} ... {line[-_CHARACTERS_MAX // 2 :]}"
