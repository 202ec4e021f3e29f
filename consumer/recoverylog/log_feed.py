"""Reads a log ahead of the player, so that reading, decoding and writing to the disk go on side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from allocator.runtime.task_group import TaskGroup
from consumer.errors import ConsumerError
from consumer.journal.client import JournalClient
from consumer.journal.read_progress import ReadSpan
from consumer.recoverylog.playback import Position

AHEAD_BYTES: Final = 8 << 20
"""Read and not taken yet, bytes; no more is read above it."""


class LogFeed:
    """The content of one log from a position on, for ever: reads block at the write head."""

    def __init__(
        self,
        journals: JournalClient,
        position: Position,
        group: TaskGroup,
        on_arrival: Callable[[], None],
    ) -> None:
        """Begin to read, in a task of `group`.

        Args:
            journals: Reads the log.
            position: Of the first byte.
            group: Outlives the feed.
            on_arrival: Called when there is something to take.
        """
        self.log = position.log
        self._reader = journals.reader(position.log, offset=position.offset, block=True)
        self._on_arrival = on_arrival
        self._spans: deque[ReadSpan] = deque()
        self._bytes = 0
        self._error: ConsumerError | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._task = group.start_soon(self._read(), name=f"play {position.log}")

    @property
    def write_head(self) -> int:
        """The log's write head as the broker told it last, bytes."""
        return self._reader.write_head

    @property
    def offset(self) -> int:
        """Up to where it is read, bytes."""
        return self._reader.offset

    def take(self) -> list[ReadSpan]:
        """Return what has arrived, in order.

        Raises:
            ConsumerError: the log cannot be read, and all that was read is taken.
        """
        if not self._spans and self._error is not None:
            raise self._error
        taken = list(self._spans)
        self._spans.clear()
        self._bytes = 0
        self._room.set()
        return taken

    def close(self) -> None:
        """Read no more."""
        self._task.cancel()

    async def _read(self) -> None:
        try:
            async with self._reader:
                async for span in self._reader:
                    self._spans.append(span)
                    self._bytes += len(span.content)
                    self._on_arrival()
                    if self._bytes > AHEAD_BYTES:
                        self._room.clear()
                        await self._room.wait()
        except ConsumerError as error:
            self._error = error
            self._on_arrival()
