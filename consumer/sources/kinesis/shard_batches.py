"""Conversion of a shard's pages into message batches, with the checkpoint entries to resume from them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from broadsheet.consumer.errors import SourceDataLossError
from broadsheet.consumer.sources.kinesis.lineage import StreamShard
from broadsheet.consumer.sources.kinesis.pages import Page, PageReader
from broadsheet.consumer.sources.kinesis.places import Beginning, Resume
from broadsheet.consumer.sources.kinesis.records import StreamRecord
from broadsheet.consumer.sources.received import Payload
from broadsheet.journals.message.batch import MessageBatch, MessageType


class ShardBatches:
    """One reading of one shard."""

    def __init__(
        self,
        name: str,
        shard: StreamShard,
        beginning: Beginning,
        *,
        reader: PageReader,
        message_type: MessageType,
    ) -> None:
        """Create the reading.

        Args:
            name: Of the messages.
            shard: Of the stream.
            beginning: Where to begin.
            reader: Reads pages.
            message_type: How the records' data is encoded.
        """
        self.name = name
        self.shard = shard
        self.offset = beginning.offset
        """Behind what was read so far, bytes."""
        self._beginning = beginning
        self._reader = reader
        self._message_type = message_type
        self._first = True

    async def batches(self) -> AsyncGenerator[MessageBatch, None]:
        """Yield batches, none of them empty, until the shard ends.

        Raises:
            SourceDataLossError: the record that the checkpoint names is gone.
        """
        async with aclosing(self._reader.pages(self.shard, self._beginning.place)) as pages:
            async for page in pages:
                batch = self._batch_of(page)
                if len(batch) > 0:
                    yield batch
        self._check_skipped()

    def _batch_of(self, page: Page) -> MessageBatch:
        """Return a batch of a page's records that were not consumed before."""
        if page.first and self._first:
            self._first = False
            self._check_first(page.first)
        begin = self.offset
        begins, ends, kept = self._laid_out(page)
        resume = Resume(begin=begin, end=self.offset, first=page.first, last=page.last)
        zeros = [0] * len(kept)
        return MessageBatch(
            self.name,
            begins,
            ends,
            zeros,
            zeros,
            zeros,
            [Payload(record.data, record.metadata) for record in kept],
            self._message_type,
            {self.name: resume.encode()},
        )

    def _laid_out(self, page: Page) -> tuple[list[int], list[int], list[StreamRecord]]:
        begins: list[int] = []
        ends: list[int] = []
        kept: list[StreamRecord] = []
        for record in page.records:
            begin = self.offset
            self.offset = end = begin + max(1, len(record.data))
            if begin >= self._beginning.skip_to:
                begins.append(begin)
                ends.append(end)
                kept.append(record)
            elif end > self._beginning.skip_to:
                self._refuse(f"a record lies across offset {self._beginning.skip_to}")
        return begins, ends, kept

    def _check_first(self, number: str) -> None:
        """Refuse to skip records by offset if the offsets count from another record."""
        expected = getattr(self._beginning.place, "number", "")
        if self._beginning.skip_to > self._beginning.offset and number != expected:
            self._refuse(f"the record {expected} is gone, the oldest there is {number}")

    def _check_skipped(self) -> None:
        if self.offset < self._beginning.skip_to:
            self._refuse(f"it ended at {self.offset}, before {self._beginning.skip_to}")

    def _refuse(self, problem: str) -> None:
        raise SourceDataLossError(
            self.name,
            f"cannot go on where the checkpoint ends, in the middle of what was read at once: {problem};"
            " the stream keeps its records for too short a time",
        )
