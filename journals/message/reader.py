"""Readers of a journal as batches of messages: as written, or as committed.

Batches follow the spans in which the journal's bytes arrive, so no message waits for another; large batches are cut to
the limits. Iterate with `contextlib.aclosing` if you may stop early, because the read ends with the iterator.

Source: gazette/core message/reader.go (ReadUncommittedIter, ReadCommittedIter).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import ContentTypeError, FramingError
from broadsheet.journals.guard import OffsetGuard
from broadsheet.journals.message.batch import (
    MessageBatch,
    MessageType,
    batch_around_damage,
    batch_of,
)
from broadsheet.journals.message.framing import Framing, Unframer
from broadsheet.journals.message.sequencer import RING_BYTES, RING_MESSAGES, Sequencer
from broadsheet.journals.reader import ReadSpan
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, value_of

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Options of the batches that a journal is read in."""

    messages_max: int = 4096
    """Maximum number of messages of a batch."""
    bytes_max: int = 1 << 20
    """Maximum of framed bytes; a single message may exceed it."""
    read_around: bool = False
    """Include bytes that are not messages, marked `UNREADABLE`, instead of failing at them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLimits:
    """The memory of messages that await their acknowledgement; those beyond it are read a second time."""

    messages_max: int = RING_MESSAGES
    bytes_max: int = RING_BYTES


DEFAULT_OPTIONS: Final = BatchOptions()
DEFAULT_RING: Final = RingLimits()


class MessageSource:
    """The messages of a journal whose framing is known. Made by `open_source`, or from a given spec."""

    def __init__(
        self,
        client: JournalClient,
        journal: str,
        *,
        spec: JournalSpec,
        message_type: MessageType,
        options: BatchOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Choose the framing by the journal's content type.

        Args:
            client: Reads the journal.
            journal: Its name; a `;meta` suffix is kept in the batches.
            spec: The journal's spec, which names its content type.
            message_type: Encoding of its messages.
            options: How batches are made.

        Raises:
            ContentTypeError: the journal's content type is missing, has no framing, or is not the message type's.
        """
        self.journal = journal
        self.message_type = message_type
        self.options = options
        self._client = client
        self._framing = _framing_of(spec, message_type)

    async def batches(
        self,
        *,
        offset: int = 0,
        block: bool = True,
        end_offset: int = 0,
        guard: OffsetGuard | None = None,
    ) -> AsyncGenerator[MessageBatch, None]:
        """Yield the journal's messages in the order in which they were written.

        Args:
            offset: Offset at which the first frame begins, bytes; -1 is the current write head.
            block: Wait at the write head for more, instead of ending there.
            end_offset: Offset at which the last frame ends, bytes; 0 means no end.
            guard: Ends the read with JournalReplacedError if the journal no longer holds the content read before.

        Raises:
            FramingError: bytes are not a message of the journal's content type, or the read ended within a frame. The
                messages before them were yielded.
            ServiceError: the journal cannot be read.
        """
        spans = SpanBatches(self)
        async with self._client.reader(
            self.journal, offset=offset, block=block, end_offset=end_offset, guard=guard
        ) as reader:
            async for span in reader:
                batch, error = spans.take(span)
                for part in _cut(batch, self.options):
                    yield part
                if error is not None:
                    raise error
        spans.finish()

    async def committed(
        self,
        *,
        offset: int = 0,
        block: bool = True,
        end_offset: int = 0,
        ring: RingLimits = DEFAULT_RING,
    ) -> AsyncGenerator[MessageBatch, None]:
        """Yield the journal's messages as committed: each once, transactions whole.

        Acknowledgements come after what they commit. The errors are those of `batches`.

        Args:
            offset: As of `batches`.
            block: As of `batches`.
            end_offset: As of `batches`.
            ring: Memory of messages that await their acknowledgement.
        """
        sequencer = Sequencer({}, ring_messages=ring.messages_max, ring_bytes=ring.bytes_max)
        read = self.batches(offset=offset, block=block, end_offset=end_offset)
        async with aclosing(read) as batches:
            async for batch in batches:
                index = 0
                while index < len(batch):
                    index = sequencer.queue(batch, index).next_index
                    async with aclosing(self._emitted(sequencer)) as runs:
                        async for run in runs:
                            yield run

    def unframer(self, offset: int) -> Unframer:
        """Return an unframer of this journal from `offset` on, bytes."""
        return self._framing.unframer(
            journal=self.journal, offset=offset, read_around=self.options.read_around
        )

    async def _emitted(self, sequencer: Sequencer) -> AsyncGenerator[MessageBatch, None]:
        """Yield and consume everything that the sequencer emits now."""
        wanted = sequencer.replay_range()
        if wanted is not None:
            replay = self.batches(offset=wanted.begin, end_offset=wanted.end, block=False)
            async with aclosing(replay) as batches:
                async for batch in batches:
                    sequencer.feed_replay(batch)
                    for run in _ready(sequencer, self.options):
                        yield run
            sequencer.end_replay()
        for run in _ready(sequencer, self.options):
            yield run


async def open_source(
    client: JournalClient,
    journal: str,
    message_type: MessageType,
    *,
    options: BatchOptions = DEFAULT_OPTIONS,
) -> MessageSource:
    """Fetch a journal's spec and return the source of its messages.

    Args:
        client: Reads the journal.
        journal: Its name; a `;meta` suffix is kept in the batches.
        message_type: Encoding of its messages.
        options: How batches are made.

    Raises:
        JournalNotFoundError: there is no such journal.
        ContentTypeError: see `MessageSource`.
    """
    spec = (await client.get(journal)).spec
    return MessageSource(client, journal, spec=spec, message_type=message_type, options=options)


async def read_batches(
    client: JournalClient,
    journal: str,
    message_type: MessageType,
    *,
    offset: int = 0,
    block: bool = True,
) -> AsyncGenerator[MessageBatch, None]:
    """Yield a journal's messages as written, committed or not: `MessageSource.batches` of `open_source`."""
    source = await open_source(client, journal, message_type)
    async with aclosing(source.batches(offset=offset, block=block)) as batches:
        async for batch in batches:
            yield batch


async def read_committed(
    client: JournalClient,
    journal: str,
    message_type: MessageType,
    *,
    offset: int = 0,
    block: bool = True,
) -> AsyncGenerator[MessageBatch, None]:
    """Yield a journal's messages as committed: each once, transactions whole.

    Acknowledgements come after what they commit. `open_source` returns a source that can also be read up to an offset,
    within other bounds.

    Args:
        client: Reads the journal.
        journal: Its name; a `;meta` suffix is kept in the batches.
        message_type: Encoding of its messages.
        offset: Offset at which the first frame begins, bytes; -1 is the current write head.
        block: Wait at the write head for more, instead of ending there.

    Raises:
        JournalNotFoundError: there is no such journal.
        ContentTypeError: the journal's content type is missing, has no framing, or is not the message type's.
        FramingError: bytes are not a message of the journal's content type, or the read ended within a frame.
        ServiceError: the journal cannot be read.
    """
    source = await open_source(client, journal, message_type)
    async with aclosing(source.committed(offset=offset, block=block)) as runs:
        async for run in runs:
            yield run


def _ready(sequencer: Sequencer, options: BatchOptions) -> Iterator[MessageBatch]:
    while sequencer.emitting:
        run = sequencer.peek(options.messages_max)
        if run is None:
            return
        sequencer.consume(len(run))
        yield run


class SpanBatches:
    """The conversion of one read's spans to batches."""

    def __init__(self, source: MessageSource) -> None:
        self._source = source
        self._unframer: Unframer | None = None
        self._end = 0

    def take(self, span: ReadSpan) -> tuple[MessageBatch, FramingError | None]:
        """Return the messages that end in a span, and the error after them, if any."""
        if self._unframer is None or span.jumped:
            self._unframer = self._begin(span)
        frames = self._unframer.feed(span.content)
        self._end = span.end
        for begin, end in frames.skipped:
            _log.warning(
                "framing.desynchronized", journal=self._source.journal, begin=begin, end=end
            )
        journal, message_type = self._source.journal, self._source.message_type
        if self._source.options.read_around:
            return batch_around_damage(journal, frames, message_type), None
        return batch_of(journal, frames, message_type)

    def finish(self) -> None:
        """Refuse a frame that is incomplete at the end of the read."""
        if self._source.options.read_around:
            # A range that is read again may end with damage, and only the message after it shows where damage ends.
            return
        if self._unframer is not None and self._unframer.pending_bytes:
            pending = self._unframer.pending_bytes
            raise FramingError(
                self._source.journal,
                offset=self._end - pending,
                detail=f"the read ended after {pending} bytes of a frame",
            )

    def _begin(self, span: ReadSpan) -> Unframer:
        """Return an unframer for a span that does not continue the previous one."""
        if self._unframer is not None and self._unframer.pending_bytes:
            _log.warning(
                "framing.partial_dropped",
                journal=self._source.journal,
                begin=self._end - self._unframer.pending_bytes,
                end=self._end,
                jumped_to=span.offset,
            )
        return self._source.unframer(span.offset)


def _cut(batch: MessageBatch, options: BatchOptions) -> Iterator[MessageBatch]:
    """Yield a batch in parts of the size allowed, none of them empty."""
    start, count = 0, len(batch)
    while start < count:
        last = batch.begins[start] + options.bytes_max
        by_bytes = int(batch.ends.searchsorted(last, side="right"))
        stop = max(start + 1, min(count, start + options.messages_max, by_bytes))
        yield batch if stop - start == count else batch.span(start, stop)
        start = stop


def _framing_of(spec: JournalSpec, message_type: MessageType) -> Framing:
    content_type = value_of(spec.labels, CONTENT_TYPE)
    framing = framing_for(content_type, journal=spec.name)
    if content_type != message_type.content_type:
        raise ContentTypeError(
            spec.name,
            content_type,
            f"the message type decodes {message_type.content_type!r}",
        )
    return framing
