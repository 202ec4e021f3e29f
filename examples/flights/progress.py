"""Shows the demonstration's progress: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

_LINE_EVERY_SECONDS = 5.0


class RunProgress:
    """Counts of messages published and consumed; a context manager."""

    def __init__(self, console: Console, *, total: int) -> None:
        self._console = console
        self._total = total
        self._bars = (
            Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._tasks: dict[str, TaskID] = {}
        self._counts = {"published": 0, "consumed": 0}
        self._printed = dict(self._counts)
        self._next_line_monotonic_seconds = 0.0

    def show(self, *, published: int, consumed: int) -> None:
        """Show new counts, messages."""
        self._counts = {"published": published, "consumed": consumed}
        if self._bars is not None:
            for name, count in self._counts.items():
                self._bars.update(self._tasks[name], completed=count)
        elif time.monotonic() >= self._next_line_monotonic_seconds:
            self._next_line_monotonic_seconds = time.monotonic() + _LINE_EVERY_SECONDS
            self._print_line()

    def _print_line(self) -> None:
        """Print the counts, unless they are those of the last line."""
        if self._counts == self._printed:
            return
        self._printed = self._counts
        shown = ", ".join(f"{name} {count:,}" for name, count in self._counts.items())
        self._console.print(f"  {shown} of {self._total:,}")

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
            for name in self._counts:
                self._tasks[name] = self._bars.add_task(name, total=self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        else:
            self._print_line()
