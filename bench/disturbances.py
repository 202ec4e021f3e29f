"""What disturbs a measurement from outside, and is told beside it: pauses of the machine, and stalls of its disk."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.disk_stalls import disk_stalls
from bench.machine_pauses import machine_pauses
from bench.report import Params


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest of each kind that touched a time, seconds; 0: there was none."""

    machine_pause_seconds: float = 0.0
    disk_stall_seconds: float = 0.0

    @staticmethod
    def of(several: Iterable[Longest]) -> Longest:
        """Return the longest of those of several times."""
        found = list(several)
        return Longest(
            max((each.machine_pause_seconds for each in found), default=0.0),
            max((each.disk_stall_seconds for each in found), default=0.0),
        )

    def params(self) -> Params:
        """Return what a figure is printed with."""
        return {
            "machine_pause_max_s": round(self.machine_pause_seconds, 4),
            "disk_stall_max_s": round(self.disk_stall_seconds, 4),
        }


class Disturbances:
    """Watches the machine and a directory's disk while the block runs. A context manager."""

    def __init__(self, directory: Path) -> None:
        """Choose the disk by a directory that is there, e.g. that of the broker's data."""
        self._pauses = machine_pauses()
        self._stalls = disk_stalls(directory)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._pauses)
            stack.enter_context(self._stalls)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def longest(self, *, since: float, until: float) -> Longest:
        """Return what touched a time, monotonic seconds; ask later, because what has not ended is not known."""
        return Longest(
            self._pauses.longest_seconds(since=since, until=until),
            self._stalls.longest_seconds(since=since, until=until),
        )
