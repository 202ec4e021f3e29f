"""Publication of messages from outside of a shard: a program, a notebook, `shardctl journals publish`.

Messages are buffered, and each `flush` appends the buffer of each journal as one append. By default each message counts
as soon as it is appended. A writer with `transaction=True` appends messages that readers do not show before `commit`:
then they show all of them, or, after `roll_back`, none.

    message by message     publish … flush                      ► readers show them
    in a transaction       publish … flush … publish … commit   ► readers show them, in all journals
                           publish … flush … roll_back          ► readers show none of them

A journal may be divided meanwhile: it refuses the first append of a transaction, and each one without, and the writer
publishes those messages into its parts (`broadsheet.journals.message.division`). An operator may roll back a
transaction whose program seems to be dead: if it is not, its next append is refused (`TransactionRolledBackError`).

An append whose answer was lost is sent again as it is: readers that sequence messages by UUIDs count the copy once.
Each transaction has a producer of its own, so that a late copy of its acknowledgement cannot undo a later one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping as MappingOf, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    PartMissingError,
    RegisterMismatchError,
    TransactionRolledBackError,
)
from broadsheet.journals.message.batch import batch_of
from broadsheet.journals.message.division import UNDIVIDED, is_divided
from broadsheet.journals.message.partitioning import MappedJournal, Mapping
from broadsheet.journals.message.publisher import PendingAppend, Publisher
from broadsheet.journals.message.rollback import is_rolled_back, not_rolled_back
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import selector, union

REPEATS_MAX: Final = 5
"""Repetitions of an append whose answer was lost."""
_Unsent: TypeAlias = tuple[Mapping | MappedJournal, MessageType]
"""The mapping of a message of the buffer, and its type."""


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
        self._buffered: dict[str, list[_Unsent]] = {}
        """How messages that are not appended were published, by journal: if that is divided, they are again."""
        self._published: dict[str, PublishedRange] = {}
        self._doubtful: set[str] = set()
        """Journals that may hold messages of the transaction by an append whose outcome is unknown."""

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
        if self._journals.divided.parts:
            mapped = self._journals.divided.mapped(mapped, mapping, message)
        if self._transaction:
            self._publisher.publish_uncommitted(mapped, message, message_type)
        else:
            self._publisher.publish_committed(mapped, message, message_type)
        how = mapping, message_type
        buffered = self._buffered.get(mapped.journal)
        if buffered is None:
            self._buffered[mapped.journal] = [how]
        else:
            buffered.append(how)

    async def flush(self) -> Sequence[PublishedRange]:
        """Append what is buffered; return this append's range in each journal.

        Raises:
            AppendOutcomeUnknownError: it is not known whether the messages of a journal are there.
            TransactionRolledBackError: an operator has rolled the transaction back in a journal.
            PartMissingError: a journal is divided, and the part that took a key was deleted.
            JournalError: a journal refused them. Those of other journals may be there: see `published`.
            EndpointError: no broker could be reached.
        """
        ranges = []
        divided: set[str] = set()
        while appends := self._publisher.take_appends():
            for append in appends:
                unsent = self._buffered.pop(append.journal)
                try:
                    ranges.append(await self._append(append.journal, append.content, len(unsent)))
                except RegisterMismatchError as error:
                    if not is_divided(error.registers):
                        raise
                    if append.journal in divided:
                        raise PartMissingError(append.journal) from error
                    divided.add(append.journal)
                    await self._publish_again(append, unsent)
        return ranges

    async def _publish_again(self, refused: PendingAppend, unsent: Sequence[_Unsent]) -> None:
        """Buffer messages that a divided journal has refused once more, for its parts."""
        journal = refused.journal
        await self._journals.learn_divided(journal)
        if journal not in self._journals.divided.parts:
            raise PartMissingError(journal)
        for frame, (mapping, message_type) in zip(refused.content, unsent, strict=True):
            framing = framing_for(message_type.content_type, journal=journal)
            frames = framing.unframer(journal=journal, offset=0).feed(frame)
            batch, _ = batch_of(journal, frames, message_type)
            # As it was encoded: the caller may have changed its object since.
            (message,) = batch.messages()
            self.publish(mapping, message, message_type)

    async def commit(self) -> Sequence[PublishedRange]:
        """Flush, and have readers show the transaction; return its whole range in each journal.

        Without a transaction, this is `flush` that returns all ranges so far. The journals are acknowledged one after
        the other: if this fails, the transaction is shown in those that come before the one of the error.

        Raises:
            AppendOutcomeUnknownError, TransactionRolledBackError, JournalError, EndpointError: see `flush`.
        """
        await self.flush()
        for intent in self._publisher.build_ack_intents():
            await self._append(intent.journal, [intent.content], 0, is_acknowledgement=True)
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
        appended = self._published.keys() | self._doubtful
        rollbacks = self._publisher.take_rollbacks()
        for rollback in rollbacks:
            if rollback.journal in appended:
                with suppress(TransactionRolledBackError):  # An operator did it.
                    await self._append(
                        rollback.journal, [rollback.content], 0, is_acknowledgement=True
                    )
        self._begin_again()

    def _demanded(self, *, has_begun: bool) -> LabelSelector | None:
        """Return what an append demands of a journal's registers."""
        if not self._transaction:
            return None if has_begun else UNDIVIDED
        excluded = not_rolled_back(self._publisher.producer_id)
        if not has_begun:
            excluded = union(UNDIVIDED.exclude, excluded)
        return selector(exclude=excluded)

    def _begin_again(self) -> None:
        self._publisher = Publisher(self._clock, new_producer_id())
        self._buffered = {}
        self._published = {}
        self._doubtful = set()

    async def _append(
        self,
        journal: str,
        content: Sequence[bytes],
        messages: int,
        *,
        is_acknowledgement: bool = False,
    ) -> PublishedRange:
        repeats = 0
        # A transaction that has begun in a journal ends there: the journal is sealed behind it.
        has_begun = is_acknowledgement or (self._transaction and journal in self._published)
        producer = self._publisher.producer_id
        check = self._demanded(has_begun=has_begun)
        while True:
            try:
                appended = await self._journals.append(journal, content, check_registers=check)
                break
            except AppendOutcomeUnknownError:
                # The same UUIDs again: readers drop whichever copy comes second.
                self._doubtful.add(journal)
                repeats += 1
                if repeats > REPEATS_MAX:
                    raise
            except RegisterMismatchError as error:
                if self._transaction and is_rolled_back(error.registers, producer):
                    raise TransactionRolledBackError(
                        journal, "call roll_back(), and publish its messages again"
                    ) from error
                if not repeats:
                    raise
                # What an earlier copy may have brought in would come twice if it was published into the parts, too.
                raise AppendOutcomeUnknownError(
                    journal, "an answer was lost, and then the journal was divided"
                ) from error
        self._doubtful.discard(journal)
        commit = appended.commit
        published = PublishedRange(journal, messages, commit.begin, commit.end)
        before = self._published.get(journal)
        self._published[journal] = (
            published
            if before is None
            else replace(before, messages=before.messages + messages, end=commit.end)
        )
        return published
