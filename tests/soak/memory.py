"""What processes take of memory, and what is said about it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GROWTH_RATIO_MAX = 1.10
"""Of a process's memory at the end of traffic, to that when it was warm."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NAMES = (("broadsheet.cli.main", "member"), ("broadsheet.broker", "broker"))


@dataclass(frozen=True, slots=True)
class Measured:
    """One look at all processes."""

    at_seconds: float
    """Since traffic began."""
    rss_bytes: Mapping[str, int]
    """Resident memory, by process."""


def rss_by_process() -> dict[str, int]:
    """Return the resident memory of this run's members and broker, bytes."""
    found: dict[str, int] = {}
    for pid in _descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:  # it has ended
            continue
        for module, name in _NAMES:
            if module in command:
                found[f"{name} {pid}"] = pages * _PAGE_BYTES
    return found


def table_line(measured: Measured) -> str:
    """Return a line of the table: the time, and each process's memory in MiB."""
    columns = (f"{name} {rss / 2**20:7.1f} MiB" for name, rss in sorted(measured.rss_bytes.items()))
    return f"{measured.at_seconds:7.0f} s  " + "  ".join(columns)


def verdict(
    measured: Sequence[Measured], *, warm_seconds: float, traffic_seconds: float
) -> list[str]:
    """Return what is wrong: a process that grew while traffic was steady, or kept what it had when that ended.

    Args:
        measured: In the order of time.
        warm_seconds: From when on memory is to stay.
        traffic_seconds: When traffic ended.
    """
    warm = next(each for each in measured if each.at_seconds >= warm_seconds)
    loaded = next(each for each in measured if each.at_seconds >= traffic_seconds)
    idle = measured[-1]
    problems = []
    for name, before in warm.rss_bytes.items():
        at_end, after = loaded.rss_bytes.get(name), idle.rss_bytes.get(name)
        if at_end is None or after is None:
            problems.append(f"{name} is not there any more")
            continue
        if at_end > before * GROWTH_RATIO_MAX:
            problems.append(
                f"{name} grew from {before / 2**20:.1f} to {at_end / 2**20:.1f} MiB while traffic was steady"
            )
        if after >= at_end:
            problems.append(
                f"{name} takes {after / 2**20:.1f} MiB after the traffic, {at_end / 2**20:.1f} MiB at its end"
            )
    return problems


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, waiting = list[int](), [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found
