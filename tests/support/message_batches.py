"""Batches of messages as a reader would give them, written by hand: `J.batch(cont(1), cont(2), ack(3))`."""

from __future__ import annotations

from dataclasses import dataclass

from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import Flags

FRAME_BYTES = 10
"""Every message of a `WrittenJournal` takes as many bytes."""


@dataclass(frozen=True, slots=True)
class Written:
    """A message: who wrote it, when, and as which part of a transaction."""

    producer: int
    clock: int
    flags: int
    payload: bytes


def cont(clock: int, *, producer: int = 1, payload: bytes = b"{}") -> Written:
    """Return a message that awaits its acknowledgement."""
    return Written(producer, clock, Flags.CONTINUE_TXN, payload)


def ack(clock: int, *, producer: int = 1) -> Written:
    """Return an acknowledgement."""
    return Written(producer, clock, Flags.ACK_TXN, b"{}")


def single(clock: int, *, producer: int = 1, payload: bytes = b"{}") -> Written:
    """Return a message that is committed by itself."""
    return Written(producer, clock, Flags.OUTSIDE_TXN, payload)


class WrittenJournal:
    """A journal in memory, from which any range can be read again."""

    def __init__(self, name: str = "in/a") -> None:
        self.name = name
        self.messages: list[Written] = []

    @property
    def write_head(self) -> int:
        """Its length, bytes."""
        return len(self.messages) * FRAME_BYTES

    def batch(self, *messages: Written) -> MessageBatch:
        """Write messages, and return them as read."""
        begin = self.write_head
        self.messages.extend(messages)
        return self.read(begin, self.write_head)

    def read(self, begin: int, end: int) -> MessageBatch:
        """Return the messages of a range, bytes."""
        indices = range(begin // FRAME_BYTES, end // FRAME_BYTES)
        chosen = [self.messages[index] for index in indices]
        return MessageBatch(
            self.name,
            [index * FRAME_BYTES for index in indices],
            [(index + 1) * FRAME_BYTES for index in indices],
            [message.producer for message in chosen],
            [message.clock for message in chosen],
            [message.flags for message in chosen],
            [message.payload for message in chosen],
            JsonType(),
        )
