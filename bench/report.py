"""One JSON object a line: the only form in which this project states a speed."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

import structlog

Params: TypeAlias = "dict[str, str | int | float | bool]"


def keep_logs_apart() -> None:
    """Send what this process logs to standard error, for standard output has figures alone."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def emit(
    bench: str, figure: str, value: float, unit: str, **params: str | int | float | bool
) -> None:
    """Print one figure.

    Args:
        bench: The benchmark's name, as in `make bench BENCH=<name>`.
        figure: What was measured; `*_limit` is the bare machinery below it, measured in the same run.
        value: The figure.
        unit: Its unit.
        params: What it was measured with.
    """
    record = {
        "bench": bench,
        "figure": figure,
        "value": round(value, 4),
        "unit": unit,
        "params": params,
    }
    print(json.dumps(record), flush=True)


def alternate(
    ours: Callable[[], float], limit: Callable[[], float], rounds: int
) -> tuple[float, float]:
    """Measure both sides in turn, so that a drifting machine drifts under both, and return their medians."""
    mine: list[float] = []
    bound: list[float] = []
    for _ in range(rounds):
        mine.append(ours())
        bound.append(limit())
    return statistics.median(mine), statistics.median(bound)


def emit_pair(
    bench: str,
    figure: str,
    medians: Sequence[float],
    unit: str,
    *,
    limit: str,
    **params: str | int | float | bool,
) -> None:
    """Print a figure, the limit it was measured against, and their ratio.

    Args:
        bench: The benchmark's name.
        figure: The figure's name.
        medians: (ours, limit), shape (2,).
        unit: Unit of both.
        limit: What the limit is.
        params: What both were measured with.
    """
    mine, bound = medians
    emit(bench, figure, mine, unit, **params)
    emit(bench, f"{figure}_limit", bound, unit, limit=limit, **params)
    emit(bench, f"{figure}_ratio", mine / bound, "ratio", limit=limit, **params)
