"""Shows how far a playback has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from consumer.cli.output import say
from consumer.recoverylog.playback import PlaybackProgress

LINE_SECONDS = 5.0
"""Time between two lines where there is no terminal."""


class PlaybackDisplay(Protocol):
    """Shows progress."""

    def show(self, progress: PlaybackProgress) -> None:
        """Show how far it has come; called often."""
        ...


@contextmanager
def playback_display(what: str) -> Iterator[PlaybackDisplay]:
    """Show the playback of `what` on stderr until the block ends."""
    if not sys.stderr.isatty():
        yield _Lines(what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield _Bar(bars, what)


class _Bar:
    def __init__(self, bars: Progress, what: str) -> None:
        self._bars = bars
        self._task = bars.add_task(what, total=None)

    def show(self, progress: PlaybackProgress) -> None:
        """Move the bar."""
        self._bars.update(
            self._task, completed=progress.played_bytes, total=_total_bytes(progress) or None
        )


class _Lines:
    def __init__(self, what: str) -> None:
        self._what = what
        self._shown_monotonic_seconds = time.monotonic()

    def show(self, progress: PlaybackProgress) -> None:
        """Write a line if the last one is old."""
        now = time.monotonic()
        if now - self._shown_monotonic_seconds < LINE_SECONDS:
            return
        self._shown_monotonic_seconds = now
        say(f"{self._what}: {decimal(progress.played_bytes)} of {decimal(_total_bytes(progress))}")


def _total_bytes(progress: PlaybackProgress) -> int:
    """Return how much there is to play, as far as is known: hints may leave some of the rest out."""
    return progress.played_bytes + progress.behind_bytes
