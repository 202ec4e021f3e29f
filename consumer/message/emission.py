"""Committed messages on their way to the application.

A *run* is a stretch of messages that are each committed by itself. A *sequence* is what one acknowledgement commits:
its producer's pending messages, re-read from the journal where memory no longer holds them, and the acknowledgement at
the end.

Source: gazette/core message/sequencer.go (Step, StartReplay: which messages are passed over, and in which order).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from consumer.errors import ReplayError
from consumer.message.batch import MessageBatch, MessageType
from consumer.message.ring import Row


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Bytes [begin, end) of a journal that must be read again."""

    journal: str
    begin: int
    end: int


def rows_of(batch: MessageBatch) -> list[Row]:
    """Return the messages of a batch as rows."""
    return list(
        zip(
            batch.begins,
            batch.ends,
            batch.producers,
            batch.clocks,
            batch.flags,
            batch.payloads,
            strict=True,
        )
    )


def batch_of_rows(journal: str, rows: Iterable[Row], message_type: MessageType) -> MessageBatch:
    """Return rows as a batch.

    Requires:
        `rows` is not empty.
    """
    begins, ends, producers, clocks, flags, payloads = zip(*rows, strict=True)
    return MessageBatch(journal, begins, ends, producers, clocks, flags, payloads, message_type)


class RunEmission:
    """Messages that are each committed by itself."""

    def __init__(
        self,
        journal: str,
        *,
        rows: Sequence[Row],
        read_through: Sequence[int],
        message_type: MessageType,
    ) -> None:
        """Begin to emit.

        Args:
            journal: Of all messages.
            rows: Shape (N,), not empty.
            read_through: The journal's offset once each row is consumed: its end, or that of the duplicates between it
                and the next row; shape (N,).
            message_type: Of all messages.
        """
        self.journal = journal
        self.replay: ReplayRange | None = None
        self._rows = rows
        self._read_through = read_through
        self._message_type = message_type
        self._consumed = 0

    def peek(self, limit: int) -> MessageBatch:
        """Return up to `limit` messages that come next."""
        rows = self._rows[self._consumed : self._consumed + limit]
        return batch_of_rows(self.journal, rows, self._message_type)

    def take(self, count: int) -> Sequence[Row]:
        """Consume the next `count` messages, and return them."""
        rows = self._rows[self._consumed : self._consumed + count]
        assert len(rows) == count, f"consumed {count} messages of {len(rows)}"
        self._consumed += count
        return rows

    @property
    def offset(self) -> int:
        """The journal's offset after what was consumed."""
        return self._read_through[self._consumed - 1]

    @property
    def exhausted(self) -> bool:
        """Whether every message was consumed."""
        return self._consumed == len(self._rows)


class SequenceEmission:
    """A producer's messages that one acknowledgement commits, and the acknowledgement."""

    def __init__(
        self,
        journal: str,
        *,
        rows: deque[Row],
        acknowledgement: Row,
        last_clock: int,
        replay: ReplayRange | None,
        message_type: MessageType,
    ) -> None:
        """Begin to emit.

        Args:
            journal: Of all messages.
            rows: Pending messages that are in memory.
            acknowledgement: Comes last. Messages with a later clock are rolled back, i.e. passed over.
            last_clock: Clock up to which this producer's messages were consumed already.
            replay: What must be read again before `rows`, if anything.
            message_type: Of all messages.
        """
        self.journal = journal
        self.replay = replay
        self._in_memory = rows
        self._acknowledgement = acknowledgement
        self._last_clock = last_clock
        self._replayed_through = replay.begin if replay else 0
        self._message_type = message_type
        self._ready: deque[Row] = deque()
        if replay is None:
            self._admit(self._rows_in_memory())

    def feed_replay(self, batch: MessageBatch) -> None:
        """Take messages of the replay's range, in order; those of other producers are passed over.

        Raises:
            ReplayError: they are not of the journal and the range asked for.
        """
        assert self.replay is not None, "no replay was asked for"
        if batch.journal != self.replay.journal:
            raise ReplayError(
                self.replay.journal, f"got messages of {batch.journal}, expected {self.replay}"
            )
        if not batch.begins:
            return
        begin, end = batch.begins[0], batch.ends[-1]
        if begin < self._replayed_through or end > self.replay.end:
            raise ReplayError(
                self.replay.journal,
                f"got messages [{begin}, {end}), expected ones within "
                f"[{self._replayed_through}, {self.replay.end})",
            )
        self._replayed_through = end
        producer = self._acknowledgement[2]
        self._admit([row for row in rows_of(batch) if row[2] == producer])

    def end_replay(self) -> None:
        """Say that the range was read to its end; what follows is in memory."""
        assert self.replay is not None, "no replay was asked for"
        self.replay = None
        self._admit(self._rows_in_memory())

    def peek(self, limit: int) -> MessageBatch | None:
        """Return up to `limit` messages that come next; None if they must be re-read first."""
        if not self._ready:
            return None
        return batch_of_rows(self.journal, islice(self._ready, limit), self._message_type)

    def take(self, count: int) -> Row:
        """Consume the next `count` messages, and return the last of them."""
        assert count <= len(self._ready), f"consumed {count} messages of {len(self._ready)}"
        if count == len(self._ready):
            last = self._ready[-1]
            self._ready.clear()
            return last
        for _ in range(count - 1):
            self._ready.popleft()
        return self._ready.popleft()

    @property
    def next_begin(self) -> int | None:
        """Where the next message begins; None if that is not known before more is re-read."""
        return self._ready[0][0] if self._ready else None

    @property
    def acknowledgement(self) -> Row:
        """What comes last."""
        return self._acknowledgement

    @property
    def exhausted(self) -> bool:
        """Whether every message was consumed."""
        return self.replay is None and not self._ready

    def _rows_in_memory(self) -> Iterable[Row]:
        yield from self._in_memory
        yield self._acknowledgement

    def _admit(self, rows: Iterable[Row]) -> None:
        """Make ready the messages that are neither duplicates nor rolled back.

        Clocks must grow: a duplicate may come within the replay, or in memory after its original was re-read.
        """
        last_clock, newest_clock = self._last_clock, self._acknowledgement[3]
        for row in rows:
            if last_clock < row[3] <= newest_clock:
                last_clock = row[3]
                self._ready.append(row)
        self._last_clock = last_clock
