"""How far a player is behind the log, and for how long yet."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.2
"""Of the newest rate in the smoothed one."""


@dataclass(slots=True)
class PlaybackProgress:
    """Of one playback; read by whoever reports it."""

    offset: int = 0
    """Played up to here, bytes."""
    head: int = 0
    """The log's write head as last heard, bytes."""
    played_bytes: int = 0
    """Read and played so far."""
    bytes_per_second: float = 0.0
    """Smoothed rate of playing."""
    tailing: bool = False
    """Whether it has been at the head."""

    @property
    def behind_bytes(self) -> int:
        """Bytes yet to play."""
        return max(0, self.head - self.offset)

    @property
    def behind_seconds(self) -> float | None:
        """How long they take at the rate so far; None: nobody knows yet."""
        if not self.behind_bytes:
            return 0.0
        return self.behind_bytes / self.bytes_per_second if self.bytes_per_second else None

    def on_played(self, offset: int, head: int, *, played_bytes: int, seconds: float) -> None:
        """Take note of a step that took `seconds`."""
        self.offset, self.head = offset, max(head, offset)
        self.played_bytes += played_bytes
        if seconds > 0 and played_bytes:
            rate = played_bytes / seconds
            smoothed = self.bytes_per_second or rate
            self.bytes_per_second = smoothed + _WEIGHT * (rate - smoothed)
