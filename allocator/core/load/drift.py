"""A load that is used until another one has been measured for long enough.

in force ──elsewhere──► drifting ──for `persist_seconds` without a break──► in force
   ▲                       │
   └────── back again ─────┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from allocator.core.load.quantise import IDLE, Bucket, held_bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The bucket in force, and since when measurements lie elsewhere."""

    bucket: Bucket = IDLE
    measured: bool = False
    """Whether `bucket` was measured; before that, it is nobody's."""
    since_monotonic_seconds: float | None = None

    def after(
        self,
        value: float,
        now_monotonic_seconds: float,
        *,
        ratio: float,
        least: float,
        persist_seconds: float,
    ) -> Drift:
        """Return what is in force once `value` is measured now."""
        bucket = held_bucket(self.bucket, value, ratio, least=least)
        if self.measured and bucket == self.bucket:
            if self.since_monotonic_seconds is None:
                return self
            return replace(self, since_monotonic_seconds=None)
        since = self.since_monotonic_seconds
        if since is None:
            since = now_monotonic_seconds
        if now_monotonic_seconds - since < persist_seconds:
            return replace(self, since_monotonic_seconds=since)
        return Drift(bucket=bucket, measured=True)
