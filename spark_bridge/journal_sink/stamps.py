"""UUIDs of one producer of the sink, for many messages at once, with growing clocks."""

from __future__ import annotations

import time
from collections.abc import Callable

from broadsheet.journals.message.uuid import Bytes, Flags, MessageClock, build_uuid, uuid_bytes


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
        self._clock = MessageClock()

    def stamp_messages(self, count: int) -> Bytes:
        """Return UUIDs of messages within a transaction, in the order of their clocks; shape (count, 16)."""
        self._clock.update_nanoseconds(self._now())
        return uuid_bytes(self.producer, self._clock.tick_many(count), Flags.CONTINUE_TXN)

    def stamp_acknowledgement(self) -> bytes:
        """Return the UUID of an acknowledgement of every message so far, 16 bytes; it serves every journal."""
        return build_uuid(self.producer, self._clock.tick(), Flags.ACK_TXN)
