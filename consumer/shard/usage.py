"""What one shard has taken of its process so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Sums over one attempt to serve; the next begins at zero."""

    consumed_bytes: int = 0
    """Journal bytes of completed transactions."""
    cpu_seconds: float = 0.0
    """CPU time of the worker thread, up to the last call that it finished."""
