"""Read-ahead of recovery logs, so that reading, decoding and writing to disk run concurrently.

current position ──► read ahead by `AHEAD_BYTES`
next jump        ──► read in advance as well, so that a jump costs no round trip
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.playback import JUMP_BYTES, PlaybackPosition
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    IndexHasGreaterOffsetError,
    JournalReplacedError,
    JournalStoreUnhealthyError,
    JournalSuspendedError,
    JournalUnavailableError,
)
from broadsheet.journals.guard import HEAD_DOUBT_SECONDS, OffsetGuard, RememberedRead
from broadsheet.journals.reader import Reader, ReadSpan
from broadsheet.runtime.errors import EndpointError, RpcFailedError, ServiceError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.identity_pb2 import JournalEpoch

_log = structlog.get_logger()

AHEAD_BYTES: Final = 8 << 20
"""Bytes read and not taken yet at which a feed stops reading; of each feed."""
LINGER_SECONDS: Final = 0.05
"""Delay with which a feed at the write head receives new content: five or ten transactions of a busy shard are then one
message, and one step of its standby. A feed does not linger once a hand-over, or a mark, is waited for.
"""


class LogFeed:
    """The content of one log from a position on, without end: reads block at the write head."""

    def __init__(
        self,
        reader: Reader,
        position: PlaybackPosition,
        group: TaskGroup,
        on_arrival: Callable[[], None],
    ) -> None:
        """Start to read in a task of `group`.

        Args:
            reader: Reads the log from `position` on, without end; used by this feed alone.
            position: Position of the first byte.
            group: Outlives the feed.
            on_arrival: Called when there is something to take.
        """
        self.begin = position
        """Position of the first byte."""
        self._reader = reader
        self._on_arrival = on_arrival
        self._spans: deque[ReadSpan] = deque()
        self._bytes = 0
        self._limit: int | None = None
        self._error: ServiceError | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._task = group.start_soon(self._read(), name=f"play {position.log}")

    @property
    def write_head(self) -> int:
        """The log's write head as last reported by a broker, bytes."""
        return self._reader.write_head

    @property
    def read_to(self) -> int:
        """Offset up to which it has read, bytes."""
        return self._reader.offset

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes read and not taken yet."""
        return self._bytes

    def take(self) -> ReadSpan | None:
        """Return the next bytes, or None if none have arrived.

        Raises:
            ServiceError: the log cannot be read, and everything read before is taken.
        """
        if not self._spans:
            if self._error is not None:
                raise self._error
            return None
        span = self._spans.popleft()
        self._bytes -= len(span.content)
        if self._bytes <= AHEAD_BYTES:
            self._room.set()
        return span

    def reaches(self, position: PlaybackPosition) -> bool:
        """Tell whether a position is read already, or near enough to be read soon."""
        return (
            position.log == self.begin.log
            and position.offset <= self._reader.offset + JUMP_BYTES
            and (self._limit is None or position.offset < self._limit)
        )

    def end_at(self, offset: int) -> None:
        """Stop reading at `offset`; bytes beyond it that are read already stay."""
        self._limit = offset

    def close(self) -> None:
        """Stop reading."""
        self._task.cancel()

    async def _read(self) -> None:
        try:
            async with self._reader:
                async for span in self._reader:
                    self._spans.append(span)
                    self._bytes += len(span.content)
                    self._on_arrival()
                    # The next feed reads from its own begin on.
                    if self._limit is not None and span.end >= self._limit:
                        return
                    # Backpressure: reading pauses until the player has taken enough.
                    if self._bytes > AHEAD_BYTES:
                        self._room.clear()
                        await self._room.wait()
        except JournalReplacedError as error:
            # Later operations may depend on operations that no longer exist: a recorder that took the log over from
            # here would write what cannot be recovered.
            self._error = LogDataLossError(
                self.begin.log, f"it is not the log that was followed any more: {error}"
            )
            self._error.__cause__ = error
            self._on_arrival()
        except ServiceError as error:
            self._error = error
            self._on_arrival()


class LogFeeds:
    """The feed of the current position, and the feed of the next jump."""

    def __init__(
        self,
        journals: JournalClient,
        position: PlaybackPosition,
        group: TaskGroup,
        on_arrival: Callable[[], None],
        *,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        """Start to read at `position`.

        Args:
            journals: Reads the logs.
            position: Position of the first byte.
            group: Outlives the feeds.
            on_arrival: Called when there is something to take.
            linger_seconds: Delay at the write head.
        """
        self._journals = journals
        self._group = group
        self._on_arrival = on_arrival
        self._linger_seconds = linger_seconds
        self._epochs: dict[str, JournalEpoch] = {}
        """The epoch in which each log was read, as reported by brokers."""
        self._read_to: dict[str, int] = {}
        """Offset up to which each log was read in that epoch, bytes."""
        self.current = self._open(position)
        self.next: LogFeed | None = None

    def take(self, played_to: int) -> ReadSpan | None:
        """Return the next bytes of the current feed, or of the next one once the current one is played.

        Args:
            played_to: Offset in the current log up to which the taken bytes are played.

        Raises:
            ServiceError: the log cannot be read, and everything read before is taken.
        """
        span = self.current.take()
        following = self.next
        if span is not None or following is None:
            return span
        if following.begin.log == self.current.begin.log and following.begin.offset <= played_to:
            self.jump(following.begin)
            return self.current.take()
        return None

    def prepare(self, upcoming: PlaybackPosition | None) -> None:
        """Start to read at the player's next jump, if it is known; one jump at a time."""
        if upcoming is None or self.next is not None or self.current.reaches(upcoming):
            return
        self.next = self._open(upcoming)
        if upcoming.log == self.current.begin.log:
            self.current.end_at(upcoming.offset)

    def jump(self, position: PlaybackPosition) -> None:
        """Continue at a position that the current feed does not reach."""
        self._close(self.current)
        prepared, self.next = self.next, None
        # The prepared feed is for another jump.
        if prepared is not None and prepared.begin != position:
            self._close(prepared)
            prepared = None
        self.current = prepared or self._open(position)

    def hurry(self, position: PlaybackPosition) -> None:
        """Continue at `position` without lingering, because a caller waits for the end."""
        # The feeds do not linger already.
        if not self._linger_seconds:
            return
        self._linger_seconds = 0.0
        self.close()
        self.current, self.next = self._open(position), None

    def close(self) -> None:
        """Stop reading."""
        self._close(self.current)
        if self.next is not None:
            self._close(self.next)

    def _open(self, position: PlaybackPosition) -> LogFeed:
        guard = OffsetGuard(
            RememberedRead(
                position.log,
                self._epochs.get(position.log),
                read_through=min(position.offset, self._read_to.get(position.log, 0)),
                starts_at=position.offset,
            ),
            # Its readers may append, so that no replica's head is believed against the journal's.
            patience_seconds=HEAD_DOUBT_SECONDS,
            on_epoch=partial(self._epochs.__setitem__, position.log),
            agreed_head=partial(_agreed_head, self._journals, position.log),
        )
        reader = self._journals.reader(
            position.log,
            offset=position.offset,
            block=True,
            linger_seconds=self._linger_seconds,
            guard=guard,
        )
        return LogFeed(reader, position, self._group, self._on_arrival)

    def _close(self, feed: LogFeed) -> None:
        feed.close()
        log = feed.begin.log
        self._read_to[log] = max(self._read_to.get(log, 0), feed.read_to)


# An empty append passes through every replica of the log, so its end is the head on which they agree. These failures
# say nothing about it: brokers are missing, or do not answer.
_UNTOLD = (
    AppendOutcomeUnknownError,
    EndpointError,
    IndexHasGreaterOffsetError,
    JournalStoreUnhealthyError,
    JournalSuspendedError,
    JournalUnavailableError,
    RpcFailedError,
)


async def _agreed_head(journals: JournalClient, log: str) -> int | None:
    """Return a log's write head as all of its replicas know it, bytes; None if that cannot be told now."""
    try:
        response = await journals.append(log, b"")
    except _UNTOLD as error:
        _log.warning("recovery_log.head_unknown", log=log, cause=str(error))
        return None
    return response.commit.end
