"""The load of a shard by group of keys: where it is divided evenly, and whether one group has most of it. Pure.

Groups are counted in rows, which decay, so that a summary is of about the last minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadsheet.wire.key_range import GROUPS, KeyRange

HALF_LIFE_SECONDS: Final = 60.0
QUANTILES: Final = 16
ROWS_LEAST: Final = 1_000.0
"""Fewer rows say nothing of how load is spread."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The spread of a shard's load over its groups."""

    median_group: int = 0
    """First group of the upper half, inside of the range; 0: unknown, or the range has one group."""
    busiest_ratio: float = 0.0
    """Part of the load that the busiest group has; 0: unknown."""
    quantile_groups: tuple[int, ...] = ()
    """First groups of each of `QUANTILES` equal parts of the load but the first, ascending; none: unknown."""


UNKNOWN: Final = GroupSummary()


@dataclass(slots=True)
class GroupLoad:
    """Decaying rows by group of one attempt."""

    rows: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GROUPS))
    """Shape (GROUPS,)."""
    _before: Counts = field(default_factory=lambda: np.zeros(GROUPS, np.int64))

    def observe(self, counts: Counts, elapsed_seconds: float) -> None:
        """Take over the counters of an attempt.

        Args:
            counts: Rows since its begin, shape (GROUPS,).
            elapsed_seconds: Since the last call.
        """
        if (counts < self._before).any():
            self._before = np.zeros(GROUPS, np.int64)  # Another attempt, which began at zero.
        self.rows *= 0.5 ** (elapsed_seconds / HALF_LIFE_SECONDS)
        self.rows += counts - self._before
        self._before = counts.copy()

    def summary(self, owned: KeyRange) -> GroupSummary:
        """Return the spread over the groups that a shard owns."""
        return summary_of(self.rows, owned)


def summary_of(rows: NDArray[np.float64], owned: KeyRange) -> GroupSummary:
    """Return the spread of load.

    Args:
        rows: By group, shape (GROUPS,).
        owned: The shard's groups.
    """
    own = rows[owned.begin : owned.end]
    total = float(own.sum())
    if total < ROWS_LEAST:
        return UNKNOWN
    busiest = float(own.max()) / total
    if len(own) < 2:
        return GroupSummary(0, busiest)
    below = np.cumsum(own)[:-1]
    # The cut with the smaller larger half: at the median, the busiest group itself must go to one side.
    cut = int(np.argmin(np.maximum(below, total - below)))
    at = total * np.arange(1, QUANTILES) / QUANTILES
    quantiles = owned.begin + np.searchsorted(np.cumsum(own), at, side="left") + 1
    return GroupSummary(
        owned.begin + cut + 1,
        busiest,
        tuple(int(group) for group in np.minimum(quantiles, owned.end - 1)),
    )
