"""Finds messages and their UUIDs by their framing, one by one.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from consumer.errors import FramingError
from consumer.message.framing import Frames, framing_for
from consumer.message.uuid import NIL_UUID
from spark_bridge.journal_source.message_table import DAMAGED, MessageTable, table_of

UuidOf: TypeAlias = Callable[[bytes], bytes]
"""Returns the 16-byte UUID of a payload, 16 zero bytes if it has none; raises ValueError if it is no message."""


class FrameTables:
    """Turns a journal's frames into tables as they arrive."""

    def __init__(
        self, journal: str, content_type: str, uuid_of: UuidOf, *, read_around: bool = False
    ) -> None:
        self._journal = journal
        self._framing = framing_for(content_type, journal=journal)
        self._uuid_of = uuid_of
        self._read_around = read_around
        self.restart(0)

    def restart(self, offset: int) -> None:
        """Go on at `offset`, where a frame begins; a frame under way is dropped."""
        self._unframer = self._framing.unframer(
            journal=self._journal, offset=offset, read_around=self._read_around
        )

    def feed(self, content: bytes) -> MessageTable:
        """Take the bytes that follow, and return the messages that end in them; damaged records, if read around, too.

        Raises:
            FramingError: a frame holds no message, or is too long, and that is not read around.
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
        """Return the UUIDs, and which of the frames hold no message."""
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
    """Return a table with the ranges that belong to no frame, where those are read around."""
    skipped = [
        place
        for place, content in zip(frames.skipped, frames.skipped_content, strict=False)
        if content != b"\n"  # a line end behind a length-prefixed message, which text tools add
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
