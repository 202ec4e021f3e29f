"""Batches on their way from readers to a shard's transactions: bounded in messages and in bytes.

Readers wait when it is full, in the order they came, so that each source gets its turn. A batch larger than the bounds
is let in when the queue is empty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from consumer.message.batch import MessageBatch


class InputQueue:
    """First in, first out; one consumer, which is told when something arrives or the queue is closed."""

    def __init__(self, *, messages_max: int, bytes_max: int, on_ready: Callable[[], None]) -> None:
        """Create an empty queue.

        Args:
            messages_max: Messages held before readers wait.
            bytes_max: Bytes of journal held before readers wait.
            on_ready: Called after each arrival, and when the queue is closed.
        """
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._on_ready = on_ready
        self._batches: deque[MessageBatch] = deque()
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        self._messages = 0
        self._bytes = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether batches are dropped."""
        return self._closed

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left and nothing more will come."""
        return self._closed and not self._batches

    async def put(self, batch: MessageBatch) -> None:
        """Add a batch; wait while the queue is full. Once it is closed, batches are dropped."""
        if len(batch) == 0:
            return
        async with self._turn:
            while self._batches and not self._fits(batch):
                self._room.clear()
                await self._room.wait()
        if self._closed:
            return
        self._batches.append(batch)
        self._messages += len(batch)
        self._bytes += _bytes_of(batch)
        self._on_ready()

    def close(self) -> None:
        """Take nothing more."""
        self._closed = True
        self._on_ready()

    def take_or_none(self) -> MessageBatch | None:
        """Return the oldest batch; None if there is none now."""
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._messages -= len(batch)
        self._bytes -= _bytes_of(batch)
        self._room.set()
        return batch

    def _fits(self, batch: MessageBatch) -> bool:
        return (
            self._messages + len(batch) <= self._messages_max
            and self._bytes + _bytes_of(batch) <= self._bytes_max
        )


def _bytes_of(batch: MessageBatch) -> int:
    """Return the range of the journal that a batch spans, bytes: no less than its frames."""
    return batch.ends[-1] - batch.begins[0]
