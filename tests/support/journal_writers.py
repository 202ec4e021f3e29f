"""Writes journals of JSON lines as publishers do: uncommitted messages, acknowledgements, single messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec

from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.uuid import (
    Flags,
    MessageClock,
    build_uuid,
    format_uuid,
    new_producer_id,
)


class JournalWriter:
    """One producer's messages for one journal."""

    def __init__(self, address: str, journal: str) -> None:
        """Take a fresh producer id."""
        self.address = address
        self.journal = journal
        self.producer = new_producer_id()
        self._clock = MessageClock()
        self._clock.update(time.time())

    def uncommitted(self, ids: Iterable[int]) -> None:
        """Append messages `{"id": …}` that await `acknowledge`."""
        self.append(b"".join(self.line(Flags.CONTINUE_TXN, id=each) for each in ids))

    def committed(self, ids: Iterable[int]) -> None:
        """Append messages `{"id": …}` that are committed each by itself."""
        self.append(b"".join(self.line(Flags.OUTSIDE_TXN, id=each) for each in ids))

    def acknowledge(self) -> None:
        """Commit what is uncommitted."""
        self.append(self.line(Flags.ACK_TXN))

    def line(self, flags: int, **fields: object) -> bytes:
        """Return the producer's next message."""
        uuid = format_uuid(build_uuid(self.producer, self._clock.tick(), flags))
        return msgspec.json.encode({**fields, "_meta": {"uuid": uuid}}) + b"\n"

    def append(self, content: bytes) -> None:
        """Append content as it is."""

        async def send() -> None:
            async with JournalClient(self.address) as client:
                await client.append(self.journal, content)

        asyncio.run(send())
