"""Publication of messages from outside of a shard: a program, a notebook, `shardctl journals publish`.

Messages are buffered, and each `flush` appends the buffer of each journal as one append. By default each message counts
as soon as it is appended. A writer with `transaction=True` appends messages that readers do not show before `commit`:
then they show all of them, or, after `roll_back`, none.

    message by message     publish … flush                      ► readers show them
    in a transaction       publish … flush … publish … commit   ► readers show them, in all journals
                           publish … flush … roll_back          ► readers show none of them

An append whose answer was lost is sent again as it is: readers that sequence messages by UUIDs count the copy once.
Each transaction has a producer of its own, so that a late copy of its acknowledgement cannot undo a later one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping as MappingOf, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.errors import AppendOutcomeUnknownError
from broadsheet.journals.message.partitioning import MappedJournal, Mapping
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id

REPEATS_MAX: Final = 5
"""Repetitions of an append whose answer was lost."""


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """The messages that a writer appended to a journal."""

    journal: str
    messages: int
    begin: int
    """Offset of the first of their bytes. Other writers' messages may be between these."""
    end: int
    """Offset behind the last, with its acknowledgement: a shard that has read through it has read them all."""


class MessageWriter:
    """Publishes messages to journals through a client, for one task at a time.

    Nothing is held open: a writer that is dropped loses what was not flushed, and needs no close.
    """

    def __init__(self, journals: JournalClient, *, transaction: bool = False) -> None:
        """Create a writer.

        Args:
            journals: Appends the messages; it must outlive the writer.
            transaction: Show messages to readers at `commit`, all at once.
        """
        self._journals = journals
        self._transaction = transaction
        self._clock = MessageClock()
        self._publisher = Publisher(self._clock, new_producer_id())
        self._buffered: dict[str, int] = {}
        """Messages that are not appended, by journal."""
        self._published: dict[str, PublishedRange] = {}

    @property
    def published(self) -> MappingOf[str, PublishedRange]:
        """The ranges appended so far, by journal."""
        return MappingProxyType(self._published)

    def publish(
        self, mapping: Mapping | MappedJournal, message: Any, message_type: MessageType
    ) -> None:
        """Buffer a message, stamped with its UUID.

        Args:
            mapping: The journal, or a function of the message that chooses it: `Topic.mapping`, `modulo_mapping`.
            message: Of the application's class; the UUID is written into it.
            message_type: Encoding of the message; its content type must be the journal's.

        Raises:
            PublishError: the message cannot be encoded.
            ContentTypeError: the journal's content type is not the message's.
            NoPartitionsError: the mapping has no journal to choose.
        """
        self._clock.update(time.time())
        mapped = mapping if isinstance(mapping, MappedJournal) else mapping(message)
        if self._transaction:
            self._publisher.publish_uncommitted(mapped, message, message_type)
        else:
            self._publisher.publish_committed(mapped, message, message_type)
        self._buffered[mapped.journal] = self._buffered.get(mapped.journal, 0) + 1

    async def flush(self) -> Sequence[PublishedRange]:
        """Append what is buffered; return this append's range in each journal.

        Raises:
            AppendOutcomeUnknownError: it is not known whether the messages of a journal are there.
            JournalError: a journal refused them. Those of other journals may be there: see `published`.
            EndpointError: no broker could be reached.
        """
        ranges = []
        for append in self._publisher.take_appends():
            messages = self._buffered.pop(append.journal)
            ranges.append(await self._append(append.journal, append.content, messages))
        return ranges

    async def commit(self) -> Sequence[PublishedRange]:
        """Flush, and have readers show the transaction; return its whole range in each journal.

        Without a transaction, this is `flush` that returns all ranges so far. The journals are acknowledged one after
        the other: if this fails, the transaction is shown in those that come before the one of the error.

        Raises:
            AppendOutcomeUnknownError, JournalError, EndpointError: see `flush`.
        """
        await self.flush()
        for intent in self._publisher.build_ack_intents():
            await self._append(intent.journal, [intent.content], 0)
        ranges = list(self._published.values())
        if self._transaction:
            self._begin_again()
        return ranges

    async def roll_back(self) -> None:
        """Drop what is buffered, and have readers drop what was appended since the transaction began.

        Raises:
            JournalError, EndpointError: a journal did not take it. Its readers keep the messages as pending, and never
                show them.
        """
        appended = {*self._published}
        rollbacks = self._publisher.take_rollbacks()
        for rollback in rollbacks:
            if rollback.journal in appended:
                await self._append(rollback.journal, [rollback.content], 0)
        self._begin_again()

    def _begin_again(self) -> None:
        self._publisher = Publisher(self._clock, new_producer_id())
        self._buffered = {}
        self._published = {}

    async def _append(
        self, journal: str, content: Sequence[bytes], messages: int
    ) -> PublishedRange:
        repeats = 0
        while True:
            try:
                commit = (await self._journals.append(journal, content)).commit
                break
            except AppendOutcomeUnknownError:
                # The same UUIDs again: readers drop whichever copy comes second.
                repeats += 1
                if repeats > REPEATS_MAX:
                    raise
        appended = PublishedRange(journal, messages, commit.begin, commit.end)
        before = self._published.get(journal)
        self._published[journal] = (
            appended
            if before is None
            else replace(before, messages=before.messages + messages, end=commit.end)
        )
        return appended
