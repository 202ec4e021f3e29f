"""Finds messages and their UUIDs by their framing, one by one.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from consumer.errors import FramingError
from consumer.message.framing import framing_for
from spark_bridge.journal_source.message_table import MessageTable, table_of

UuidOf: TypeAlias = Callable[[bytes], bytes]
"""Returns the 16-byte UUID of a payload, 16 zero bytes if it has none; raises ValueError if it is no message."""


class FrameTables:
    """Turns a journal's frames into tables as they arrive."""

    def __init__(self, journal: str, content_type: str, uuid_of: UuidOf) -> None:
        self._journal = journal
        self._framing = framing_for(content_type, journal=journal)
        self._uuid_of = uuid_of
        self.restart(0)

    def restart(self, offset: int) -> None:
        """Go on at `offset`, where a frame begins; a frame under way is dropped."""
        self._unframer = self._framing.unframer(journal=self._journal, offset=offset)

    def feed(self, content: bytes) -> MessageTable:
        """Take the bytes that follow, and return the messages that end in them.

        Raises:
            FramingError: a frame holds no message, or is too long.
        """
        frames = self._unframer.feed(content)
        uuids: list[bytes] = []
        for begin, payload in zip(frames.begins, frames.payloads, strict=True):
            try:
                uuids.append(self._uuid_of(payload))
            except ValueError as error:
                raise FramingError(self._journal, offset=begin, detail=str(error)) from error
        return table_of(frames.begins, frames.ends, b"".join(uuids))
