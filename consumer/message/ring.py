"""Messages that await their acknowledgement, as many as memory allows: oldest evicted first.

Each producer's pending messages form a *span*, of parts: stretches of its messages as they stood next to each other in
what was read. The ring bounds all spans together, by messages, by the memory that they take, and by age. What it evicts
is read from the journal again once it is acknowledged.

Memory is that of Python's objects, which is many times the framed bytes of short messages: measured with tracemalloc, a
message of 100 bytes takes 325 in a part of 512 messages, and 1,810 in a span of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate
from typing import Final

from consumer.message.batch import MessageBatch

MESSAGE_BYTES: Final = 224
"""Of memory a message takes beside its payload: a slot in each of six columns, four integers, a bytes object's head."""
PART_BYTES: Final = 1_500
"""Of memory a part takes beside its messages, as the only one of its span: the batch, its columns, the span."""
_DEAD_SLOTS_MIN: Final = 64
"""Slots of released spans that are swept out together, at least."""
_RELEASED: Final[deque[MessageBatch]] = deque(maxlen=0)
"""The parts of every released span: none, for ever. A deque of its own would take 700 bytes a span."""


class Span:
    """The pending messages of one producer that are still in memory: parts in offset order, none of them empty."""

    __slots__ = ("in_ring", "messages", "parts", "size_bytes")

    def __init__(self) -> None:
        self.parts: deque[MessageBatch] = deque()
        self.messages = 0
        self.size_bytes = 0
        self.in_ring = True

    @property
    def begin(self) -> int | None:
        """Offset of the first message, bytes; None if there is none."""
        return self.parts[0].begins[0] if self.parts else None


class Ring:
    """Owns the memory of all spans.

    `_slots` names the span of each part in order of arrival. A span that leaves the ring leaves its slots behind, but
    not its messages, which the bounds do not count any more. Such slots are passed over, and swept out once they
    outnumber those in use: whatever a busy journal commits, memory is in proportion to what is pending.
    """

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = max(1, messages_max)
        self._bytes_max = bytes_max
        self._slots: deque[tuple[Span, float]] = deque()
        """Each with when it arrived."""
        self._parts = 0
        """In all spans: slots in use."""
        self.messages = 0
        self.size_bytes = 0
        """Of memory."""

    def add(self, span: Span, part: MessageBatch, *, now_seconds: float = 0.0) -> None:
        """Add messages to their span, and evict the oldest of any span while there are too many.

        The last message itself is kept even if it alone exceeds the bound on bytes.

        Args:
            span: Of their producer.
            part: The messages.
            now_seconds: By a clock that never steps.
        """
        size_bytes = memory_bytes(part)
        span.parts.append(part)
        self._slots.append((span, now_seconds))
        self._parts += 1
        self._count(span, len(part), size_bytes)
        while self.messages > self._messages_max:
            self._evict_oldest(messages_max=self.messages - self._messages_max, bytes_max=None)
        while self.size_bytes > self._bytes_max and self.messages > 1:
            excess_bytes = self.size_bytes - self._bytes_max
            self._evict_oldest(messages_max=self.messages - 1, bytes_max=excess_bytes)
        if len(self._slots) > 2 * self._parts + _DEAD_SLOTS_MIN:
            self._slots = deque(slot for slot in self._slots if slot[0].in_ring)

    def evict_older(self, than_seconds: float) -> None:
        """Evict what arrived before a time: an acknowledgement that is so late will hardly come."""
        while self._slots and self._slots[0][1] < than_seconds:
            if self._slots[0][0].in_ring:
                self._evict_oldest(messages_max=self.messages, bytes_max=None)
            else:
                self._slots.popleft()

    def release(self, span: Span) -> deque[MessageBatch]:
        """Let go of a span, and return the messages of it that are still in memory."""
        span.in_ring = False
        self.messages -= span.messages
        self.size_bytes -= span.size_bytes
        parts, span.parts = span.parts, _RELEASED
        self._parts -= len(parts)
        return parts

    def _evict_oldest(self, *, messages_max: int, bytes_max: int | None) -> None:
        """Evict from the oldest part as many messages as that, or as few as make so many bytes, but one at least."""
        while not self._slots[0][0].in_ring:
            self._slots.popleft()
        span, _ = self._slots[0]
        part = span.parts[0]
        count = min(len(part), messages_max)
        if bytes_max is not None:
            totals = list(accumulate(MESSAGE_BYTES + len(each) for each in part.payloads[:count]))
            count = min(count, bisect_left(totals, bytes_max) + 1)
        if count == len(part):
            self._slots.popleft()
            span.parts.popleft()
            self._parts -= 1
            self._count(span, -count, -memory_bytes(part))
            return
        span.parts[0] = part.span(count, len(part))
        self._count(span, -count, memory_bytes(span.parts[0]) - memory_bytes(part))

    def _count(self, span: Span, messages: int, size_bytes: int) -> None:
        span.messages += messages
        span.size_bytes += size_bytes
        self.messages += messages
        self.size_bytes += size_bytes


def memory_bytes(part: MessageBatch) -> int:
    """Return the memory that a part takes."""
    return PART_BYTES + MESSAGE_BYTES * len(part) + sum(map(len, part.payloads))
