"""The sizes of what is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BENCH: Final = "elastic"


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes, and the machine's load before."""

    keys: int
    """Of a shard that is split."""
    row_bytes: int
    """Of each key's state, beside what the application needs."""
    row_work_us: int
    """CPU of each row of a shard that is to become two, beside its state; microseconds."""
    trials: int
    rows: int
    """That wait in a journal."""
    seconds: float
    """Of rows that come one by one."""
    load: float
    """Load average of the last minute."""
