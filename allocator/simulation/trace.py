"""Events in order: kept in full on request, and always hashed.

Two runs of one seed have the same hash, or the simulator is not deterministic.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

RECENT_LINES = 60
"""Kept for a report on a failure."""


class Trace:
    """Lines with the virtual time as a prefix."""

    def __init__(
        self, now_seconds: Callable[[], float], *, sink: Callable[[str], object] | None = None
    ) -> None:
        """Start empty.

        Args:
            now_seconds: Virtual time.
            sink: Gets each line at once.
        """
        self._now_seconds = now_seconds
        self._sink = sink
        self._hash = hashlib.sha256()
        self.recent: deque[str] = deque(maxlen=RECENT_LINES)
        """The last lines, oldest first."""

    def add(self, text: str) -> None:
        """Add an event that happens now."""
        line = f"{self._now_seconds():10.4f}  {text}"
        self._hash.update(line.encode())
        self.recent.append(line)
        if self._sink is not None:
            self._sink(line)

    def remark(self, text: str) -> None:
        """Show a line that is not an event, such as a member's log line."""
        if self._sink is not None:
            self._sink(f"{self._now_seconds():10.4f}      {text}")

    def digest(self) -> str:
        """Return the hash of all lines."""
        return self._hash.hexdigest()
