"""Where to begin that which was never read, in any system; each has further places of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Latest:
    """Begin with what is written from now on."""


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """Begin with what was written at `at` or later, as the system tells times; aware, milliseconds count."""

    at: datetime

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ValueError(f"at: expected a time with a zone, got {self.at!r}")
