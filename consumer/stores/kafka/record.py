"""A record on its way to Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Record(NamedTuple):
    """One record to be sent."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int = -1
    """-1: the partitioner chooses."""
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0
    """Milliseconds since 1970; 0: now."""
