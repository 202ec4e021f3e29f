"""Reading of a journal's transactions, and acknowledgements for it, by a member that neither consumes nor publishes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from broadsheet.consumer.application import Application
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.registry import content_of, framing_for
from broadsheet.journals.message.open_transactions import OpenTransactions
from broadsheet.journals.message.reader import MessageSource
from broadsheet.journals.message.uuid import Flags, build_uuid
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, value_of

OPEN_SECONDS: Final = 86_400.0
"""How far back open transactions are looked for. Readers forget who is silent for longer."""
LIVELY_SECONDS: Final = 60.0
"""Age of an open transaction above which its producer may be dead."""


@dataclass(slots=True)
class JournalReading:
    """What was read of a journal."""

    head: int
    """Where the next message begins, bytes."""
    open: OpenTransactions = field(default_factory=OpenTransactions)


class JournalMessages:
    """Reads and makes messages of any journal."""

    # The store's type is known to the application only.
    def __init__(
        self, journals: JournalClient, application: Application[Any], *, clock: Clock
    ) -> None:
        """Read nothing yet.

        Args:
            journals: Reads.
            application: Knows the messages of journals that its shards read.
            clock: Time.
        """
        self._journals = journals
        self._application = application
        self._clock = clock

    async def read(
        self, spec: JournalSpec, reading: JournalReading | None = None, *, end: int = 0
    ) -> JournalReading:
        """Read a journal on, up to its write head or to an offset.

        Args:
            spec: Of the journal.
            reading: What was read before; None: begin with the messages of the last day.
            end: Offset, bytes; 0: the write head.
        """
        if reading is None:
            since = int(self._clock.wall_seconds() - OPEN_SECONDS)
            oldest = self._journals.reader(
                spec.name, block=False, metadata_only=True, begin_mod_time=since
            )
            async with oldest:
                async for _ in oldest:
                    pass
            reading = JournalReading(0 if oldest.fragment is None else oldest.fragment.begin)
        if end and reading.head >= end:
            return reading
        source = await self.source_of(spec)
        read = source.batches(offset=reading.head, end_offset=end, block=False)
        async with aclosing(read) as batches:
            async for batch in batches:
                reading.open.read(batch)
                reading.head = int(batch.ends[-1])
        return reading

    async def source_of(self, spec: JournalSpec) -> MessageSource:
        """Return what reads a journal's messages."""
        message_type = await self._message_type(spec)
        return MessageSource(self._journals, spec.name, spec=spec, message_type=message_type)

    async def acknowledgement(self, spec: JournalSpec, producer: int, clock: int) -> bytes:
        """Return a framed acknowledgement by a producer, with a clock, for a journal."""
        message_type = await self._message_type(spec)
        message = message_type.new_acknowledgement(spec.name)
        message_type.set_uuid(message, build_uuid(producer, clock, Flags.ACK_TXN))
        framing = framing_for(value_of(spec.labels, CONTENT_TYPE), journal=spec.name)
        return framing.frame(message_type.encode(message))

    async def _message_type(self, spec: JournalSpec) -> MessageType:
        try:
            content = content_of(value_of(spec.labels, CONTENT_TYPE), journal=spec.name)
            return content.message_type(spec.labels, None)
        except (BroadsheetError, TypeError, ValueError, ImportError):
            # Of protobuf, the class is the application's.
            return await asyncio.to_thread(self._application.message_type, spec)
