"""Mints UUIDs for many messages at once, as NumPy columns: one producer, growing clocks.

The bits are those of `broadsheet.consumer.message.uuid.build_uuid`, which is the reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from broadsheet.consumer.message.uuid import (
    CLOCK_UNITS_PER_MESSAGE,
    Bytes,
    Flags,
    build_uuid,
    clock_at,
    uuid_bytes,
)


class Stamper:
    """Mints the UUIDs of one producer. Used by one thread at a time."""

    def __init__(self, producer: int, *, now: Callable[[], int] = time.time_ns) -> None:
        """Create a producer.

        Args:
            producer: Its unique 48-bit id.
            now: Wall time, nanoseconds since the Unix epoch.
        """
        self.producer = producer
        self._now = now
        self._clock = 0

    def stamp_messages(self, count: int) -> Bytes:
        """Return UUIDs of messages within a transaction, in the order of their clocks; shape (count, 16)."""
        # Clocks grow even if the wall clock is set back.
        before = max(self._clock, clock_at(self._now()))
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(CLOCK_UNITS_PER_MESSAGE)
        self._clock = before + count * CLOCK_UNITS_PER_MESSAGE
        return uuid_bytes(self.producer, steps + np.uint64(before), Flags.CONTINUE_TXN)

    def stamp_acknowledgement(self) -> bytes:
        """Return the UUID of an acknowledgement of every message so far, 16 bytes; it serves every journal."""
        self._clock += CLOCK_UNITS_PER_MESSAGE
        return build_uuid(self.producer, self._clock, Flags.ACK_TXN)
