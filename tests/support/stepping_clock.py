"""Time that a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SteppingClock:
    """Stands still unless it is moved, or somebody sleeps on it."""

    now_seconds: float = 0.0
    slept_seconds: list[float] = field(default_factory=list)
    wall_offset_seconds: float = 0.0
    """By how much the wall clock was set forward."""

    def monotonic_seconds(self) -> float:
        """Return the time."""
        return self.now_seconds

    def wall_seconds(self) -> float:
        """Return the same, unless the wall clock was set."""
        return self.now_seconds + self.wall_offset_seconds

    async def sleep(self, seconds: float) -> None:
        """Move it at once."""
        self.slept_seconds.append(seconds)
        self.now_seconds += seconds
