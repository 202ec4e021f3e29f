"""Progress of a long command on stderr: a bar on a terminal, elsewhere a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from broadsheet.cli.output.messages import say

LINE_SECONDS = 5.0
"""Time between two lines where there is no terminal."""


LONG_TEXT_BYTES = 4 << 20
"""Size of a text from which on reading it is said: some 20,000 specs, which take seconds."""


def say_reading(source: str, text: str) -> None:
    """Say that a long text is read; nothing of a short one. No count can be shown: the parser takes it as a whole."""
    if len(text) >= LONG_TEXT_BYTES:
        say(f"reading {source}: {decimal(len(text))}")


class Unit(Enum):
    """The unit of a count."""

    BYTES = "bytes"
    PIECES = "pieces"

    def columns(self) -> list[ProgressColumn]:
        """Return the bar's columns between itself and the time that remains."""
        if self is Unit.BYTES:
            return [DownloadColumn(), TransferSpeedColumn()]
        return [MofNCompleteColumn()]

    def text(self, count: int) -> str:
        """Return a count for people."""
        return decimal(count) if self is Unit.BYTES else f"{count:,}"


class ProgressDisplay(Protocol):
    """Display of how far a command is."""

    def show(self, done: int, total: int) -> None:
        """Show the progress; called often. A total of 0 is not known yet."""
        ...


@contextmanager
def progress_display(what: str, unit: Unit) -> Iterator[ProgressDisplay]:
    """Show the progress of `what` on stderr until the block ends."""
    if not sys.stderr.isatty():
        yield _Lines(what, unit)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), *unit.columns())
    console = Console(stderr=True)
    # The command's last line says what was done, so the bar goes.
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        yield _Bar(bars, what)


class _Bar:
    def __init__(self, bars: Progress, what: str) -> None:
        self._bars = bars
        self._task = bars.add_task(what, total=None)

    def show(self, done: int, total: int) -> None:
        """Move the bar."""
        self._bars.update(self._task, completed=done, total=total or None)


class _Lines:
    def __init__(self, what: str, unit: Unit) -> None:
        self._what = what
        self._unit = unit
        self._shown_monotonic_seconds = time.monotonic()

    def show(self, done: int, total: int) -> None:
        """Write a line if the last one is old."""
        now = time.monotonic()
        if now - self._shown_monotonic_seconds < LINE_SECONDS:
            return
        self._shown_monotonic_seconds = now
        whole = f" of {self._unit.text(total)}" if total else ""
        say(f"{self._what}: {self._unit.text(done)}{whole}")
