"""Appends of commands: those that are published while an append is under way go into the next one together.

A command journal may be divided meanwhile: it refuses the append, which goes into one of its parts then, always the
same, so that commands keep their order (`broadsheet.journals.message.division`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    PartMissingError,
    RegisterMismatchError,
)
from broadsheet.journals.message.batch import MessageType
from broadsheet.journals.message.division import KEYLESS, UNDIVIDED, is_divided
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id

REPEATS_MAX: Final = 5
"""Repetitions of an append whose answer was lost."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Commands of one append."""

    content: Sequence[bytes] = ()
    waiting: int = 0
    """Callers that have not given up."""
    end: Mapping[str, int] | None = None
    error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.end is not None or self.error is not None


class CommandAppender:
    """Appends commands to one journal. For the tasks of one event loop.

    It is one producer for all of them: a producer for each command would stay in the checkpoints of the shard. One
    append is under way at a time, because readers drop what a producer appended out of order.
    """

    def __init__(
        self, journals: JournalClient, journal: MappedJournal, encoding: MessageType
    ) -> None:
        self._journals = journals
        self._journal = journal
        self._takes = journal.journal
        """The journal, or its part that takes commands since it was divided."""
        self._encoding = encoding
        self._clock = MessageClock()
        self._publisher = Publisher(self._clock, new_producer_id())
        self._lock = asyncio.Lock()
        self._under_way = _Batch()
        self._next = _Batch()

    # `Any`: a message is of the class of its encoding.
    async def append(self, message: Any) -> Mapping[str, int]:
        """Append a message; return an offset at or behind its end, by the journal that took it.

        If the caller is cancelled, the message may be appended nevertheless.

        Raises:
            PublishError: the message cannot be encoded; nothing is appended.
            AppendOutcomeUnknownError: it is not known whether the message is there.
            JournalError, EndpointError: the journal did not take it.
        """
        self._clock.update(time.time())
        self._publisher.publish_committed(self._journal, message, self._encoding)
        batch = self._next
        batch.waiting += 1
        try:
            while not batch.is_done:
                async with self._lock:
                    if not batch.is_done:
                        await self._append_oldest()
        finally:
            batch.waiting -= 1
        if batch.error is not None:
            raise batch.error
        assert batch.end is not None, "a batch that is done has an end or an error"
        return batch.end

    async def _append_oldest(self) -> None:
        # One that is left under way lost the caller that appended it. The others who wait for it append it again, with
        # the same UUIDs: readers drop whichever copy comes second.
        if self._under_way.is_done or not self._under_way.waiting:
            self._under_way, self._next = self._next, _Batch()
            (append,) = self._publisher.take_appends()
            self._under_way.content = append.content
        batch = self._under_way
        try:
            batch.end = await self._append(batch.content)
        except Exception as error:  # Told to all who wait for the batch.
            batch.error = error

    async def _append(self, content: Sequence[bytes]) -> Mapping[str, int]:
        repeats = 0
        refused: set[str] = set()
        while True:
            journal = self._takes
            try:
                appended = await self._journals.append(journal, content, check_registers=UNDIVIDED)
                return {journal: appended.commit.end}
            except AppendOutcomeUnknownError:
                repeats += 1
                if repeats > REPEATS_MAX:
                    raise
            except RegisterMismatchError as error:
                if not is_divided(error.registers):
                    raise
                if repeats:
                    # It may be there already, and would come twice.
                    raise AppendOutcomeUnknownError(
                        journal, "an answer was lost, and then the journal was divided"
                    ) from error
                await self._journals.learn_divided(journal)
                self._takes = self._journals.divided.part_of(journal, KEYLESS)
                refused.add(journal)
                # Not only the journal itself: labels may name parts in a circle.
                if self._takes in refused:
                    raise PartMissingError(journal) from error
