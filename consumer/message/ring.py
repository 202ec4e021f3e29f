"""Messages that await their acknowledgement, as many as memory allows: oldest evicted first.

Each producer's pending messages form a *span*. The ring bounds all spans together, by messages and by bytes. What it
evicts is read from the journal again once it is acknowledged.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

Row: TypeAlias = tuple[int, int, int, int, int, bytes]
"""One message, in the order of `MessageBatch`'s columns: begin, end, producer, clock, flags, payload."""


class Span:
    """The pending messages of one producer that are still in memory, in offset order."""

    __slots__ = ("in_ring", "rows", "size_bytes")

    def __init__(self) -> None:
        self.rows: deque[Row] = deque()
        self.size_bytes = 0
        self.in_ring = True


class Ring:
    """Owns the memory of all spans.

    `_slots` names the span of each message in order of arrival. A span that leaves the ring leaves its slots behind;
    they are passed over, and swept out once they outnumber the messages a full ring holds.
    """

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = max(1, messages_max)
        self._bytes_max = bytes_max
        self._slots: deque[Span] = deque()
        self._slots_max = 2 * self._messages_max + 64
        self.messages = 0
        self.size_bytes = 0

    def add(self, span: Span, row: Row) -> None:
        """Add a message to its span, evicting older messages of any span to make room.

        The message itself is kept even if it alone exceeds the bound on bytes.
        """
        size = row[1] - row[0]
        while self.messages >= self._messages_max or (
            self.messages and self.size_bytes + size > self._bytes_max
        ):
            self._evict_oldest()
        span.rows.append(row)
        span.size_bytes += size
        self.messages += 1
        self.size_bytes += size
        self._slots.append(span)
        if len(self._slots) > self._slots_max:
            self._slots = deque(slot for slot in self._slots if slot.in_ring)

    def release(self, span: Span) -> deque[Row]:
        """Let go of a span, and return the messages of it that are still in memory."""
        span.in_ring = False
        self.messages -= len(span.rows)
        self.size_bytes -= span.size_bytes
        return span.rows

    def _evict_oldest(self) -> None:
        span = self._slots.popleft()
        while not span.in_ring:
            span = self._slots.popleft()
        row = span.rows.popleft()
        size = row[1] - row[0]
        span.size_bytes -= size
        self.messages -= 1
        self.size_bytes -= size
