"""Expiry of state rows.

A row whose expiry is at or before the batch time is invisible. It is removed later, by a sweep that follows an index of
expiries, within a budget a transaction. The index files a row by the end of the 64th of its TTL in which it expires, so
a row that is written again and again moves in the index once in that time, and not at each write.
"""

from __future__ import annotations

from typing import Final

SWEPT_BUSY: Final = 2_000
"""Index entries that a transaction with rows looks at."""
SWEPT_IDLE: Final = 20_000
"""The same of a transaction without rows."""
_PARTS: Final = 64


def is_expired(expiry_ms: int | None, batch_ms: int) -> bool:
    """Tell whether a row is invisible in a transaction."""
    return expiry_ms is not None and batch_ms >= expiry_ms


def filed_at(expiry_ms: int, ttl_ms: int) -> int:
    """Return the time by which the index has a row: at or after its expiry, by less than a 64th of its TTL."""
    grain = max(1, ttl_ms // _PARTS)
    return -(-expiry_ms // grain) * grain
