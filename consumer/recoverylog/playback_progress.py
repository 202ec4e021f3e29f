"""How far a player is behind the log, and for how long yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 0.2
"""Time over which a rate is taken: what is read comes in bursts."""
_WEIGHT: Final = 0.3
"""Of the newest rate in the smoothed one."""


@dataclass(frozen=True, slots=True)
class PlayingTime:
    """When a step of playing began and ended, monotonic seconds."""

    began: float
    ended: float


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
    """Smoothed rate of playing while there was something to play."""
    tailing: bool = False
    """Whether it has been at the head."""
    _window_began: float | None = None
    _window_bytes: int = 0

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

    def on_idle(self) -> None:
        """Take note that all is played: waiting for somebody to write is no time of ours."""
        self._window_began = None

    def on_played(self, offset: int, head: int, *, played_bytes: int, time: PlayingTime) -> None:
        """Take note that `played_bytes` more are played."""
        self.offset, self.head = offset, max(head, offset)
        self.played_bytes += played_bytes
        if self._window_began is None:
            self._window_began, self._window_bytes = time.began, 0
        self._window_bytes += played_bytes
        seconds = time.ended - self._window_began
        if seconds >= WINDOW_SECONDS or (seconds > 0 and not self.bytes_per_second):
            rate = self._window_bytes / seconds
            smoothed = self.bytes_per_second or rate
            self.bytes_per_second = smoothed + _WEIGHT * (rate - smoothed)
            self._window_began, self._window_bytes = time.ended, 0
