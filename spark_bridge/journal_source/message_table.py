"""Messages of a journal as columns of numbers: offset, producer and clock of each, without payloads.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import UNREADABLE
from broadsheet.journals.message.framing import Frames
from broadsheet.journals.message.sequence import stretch_bounds
from broadsheet.journals.message.uuid import NIL_UUID

Offsets: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
_PRODUCER_MASK: Final = np.uint64((1 << 48) - 1)
DAMAGED: Final = np.uint64(UNREADABLE)
"""Flags of a damaged record, which has no UUID and is outside of sequencing."""


class BlockHeads(NamedTuple):
    """The first message of each block, as lists, because single elements of arrays are slow to access."""

    producers: list[int]
    clocks: list[int]
    flags: list[int]

    def of(self, block: int) -> tuple[int, int, int]:
        """Return producer, clock and flags."""
        return self.producers[block], self.clocks[block], self.flags[block]


NO_HEADS: Final = BlockHeads([], [], [])


@dataclass(frozen=True, slots=True)
class MessageTable:
    """N messages of one journal in offset order. Every column has shape (N,)."""

    begins: Offsets
    """Offsets of first bytes, framing included."""
    ends: Offsets
    producers: Words
    """48-bit producer ids; 0 where a message has no UUID."""
    clocks: Words
    """0 where a message opted out of sequencing."""
    flags: Words

    def __len__(self) -> int:
        return len(self.begins)

    def select(self, wanted: NDArray[np.bool_]) -> MessageTable:
        """Return the messages for which `wanted`, shape (N,), is true."""
        return MessageTable(
            self.begins[wanted],
            self.ends[wanted],
            self.producers[wanted],
            self.clocks[wanted],
            self.flags[wanted],
        )

    def blocks(self) -> list[int]:
        """Return the bounds of the blocks, from 0 to N.

        A block is a stretch of one producer's messages with the same flags and growing clocks, or a stretch that opted
        out of sequencing, or one of damaged records. Each acknowledgement is a separate block.
        """
        bounds: list[int] = stretch_bounds(self.producers, self.clocks, self.flags).tolist()
        return bounds

    def heads(self, starts: list[int]) -> BlockHeads:
        """Return the messages at the starts of blocks."""
        return BlockHeads(
            self.producers[starts].tolist(),
            self.clocks[starts].tolist(),
            self.flags[starts].tolist(),
        )


def table_of(
    begins: Sequence[int] | Offsets, ends: Sequence[int] | Offsets, uuids: bytes
) -> MessageTable:
    """Return N messages with their UUIDs, 16 bytes each; zero for those that no publisher can have made.

    Source: RFC 4122 §4.1.2; `broadsheet.journals.message.uuid` does the same for one.
    """
    halves = np.frombuffer(uuids, dtype=">u8").astype(np.uint64).reshape(-1, 2)
    high, low = halves[:, 0], halves[:, 1]
    sound = ((high & _u64(0xF000)) == _u64(0x1000)) & (low >> _u64(62) == _u64(2))
    clocks = (
        ((high & _u64(0xFFF)) << _u64(52))
        | ((high & _u64(0xFFFF0000)) << _u64(20))
        | (high >> _u64(32) << _u64(4))
        | (low >> _u64(58) & _u64(0xF))
    )
    zero = _u64(0)
    return MessageTable(
        np.asarray(begins, dtype=np.int64),
        np.asarray(ends, dtype=np.int64),
        np.where(sound, low & _PRODUCER_MASK, zero),
        np.where(sound, clocks, zero),
        np.where(sound, low >> _u64(48) & _u64(0x3FF), zero),
    )


def _u64(value: int) -> np.uint64:
    return np.uint64(value)


UuidOf: TypeAlias = Callable[[bytes], bytes]
"""Returns the 16-byte UUID of a payload, 16 zero bytes if it has none; raises ValueError if it is not a message."""


class FrameTables:
    """Turns a journal's frames into tables as they arrive: finds messages and UUIDs one by one; pure."""

    def __init__(
        self, journal: str, content_type: str, uuid_of: UuidOf, *, read_around: bool = False
    ) -> None:
        self._journal = journal
        self._framing = framing_for(content_type, journal=journal)
        self._uuid_of = uuid_of
        self._read_around = read_around
        self.restart(0)

    def restart(self, offset: int) -> None:
        """Continue at `offset`, where a frame begins; an incomplete frame is dropped."""
        self._unframer = self._framing.unframer(
            journal=self._journal, offset=offset, read_around=self._read_around
        )

    def feed(self, content: bytes) -> MessageTable:
        """Add the next bytes; return the messages that end in them, and damaged records if these are skipped.

        Raises:
            FramingError: a frame holds no message or is too long, and damage is not skipped.
        """
        frames = self._unframer.feed(content)
        if frames.error is not None:
            raise frames.error
        uuids, damaged = self._uuids(frames)
        table = table_of(frames.begins, frames.ends, b"".join(uuids))
        if damaged:
            table.flags[damaged] = DAMAGED
        return _with_skipped(table, frames)

    def _uuids(self, frames: Frames) -> tuple[list[bytes], list[int]]:
        """Return the UUIDs, and the frames that hold no message."""
        uuids: list[bytes] = []
        damaged: list[int] = []
        for index, payload in enumerate(frames.payloads):
            try:
                uuids.append(self._uuid_of(payload))
            except ValueError as error:
                if not self._read_around:
                    begin, end = frames.begins[index], frames.ends[index]
                    raise FramingError(
                        self._journal, offset=begin, end=end, detail=str(error)
                    ) from error
                uuids.append(NIL_UUID)
                damaged.append(index)
        return uuids, damaged


def _with_skipped(table: MessageTable, frames: Frames) -> MessageTable:
    """Add the skipped ranges, which belong to no frame, to a table."""
    skipped = [
        place
        for place, content in zip(frames.skipped, frames.skipped_content, strict=False)
        if content != b"\n"  # a line end after a length-prefixed message, as text tools add
    ]
    if not skipped:
        return table
    begins, ends = np.array(skipped, dtype=np.int64).T
    zeros = np.zeros(len(skipped), dtype=np.uint64)
    flags = np.full(len(skipped), DAMAGED)
    order = np.argsort(np.concatenate((table.begins, begins)), kind="stable")
    return MessageTable(
        np.concatenate((table.begins, begins))[order],
        np.concatenate((table.ends, ends))[order],
        np.concatenate((table.producers, zeros))[order],
        np.concatenate((table.clocks, zeros))[order],
        np.concatenate((table.flags, flags))[order],
    )
