"""Readers of a journal as batches of messages: as written, or as committed.

Batches follow the spans in which the journal's bytes arrive, so no message waits for another; large batches are cut to
the limits. Iterate with `contextlib.aclosing` if you may stop early, because the read ends with the iterator.

Source: gazette/core message/reader.go (ReadUncommittedIter, ReadCommittedIter).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog

from broadsheet.consumer.errors import ContentTypeError, FramingError
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.journal.guard import OffsetGuard
from broadsheet.consumer.journal.reader import ReadSpan
from broadsheet.consumer.message.batch import (
    MessageBatch,
    MessageType,
    batch_around_damage,
    batch_of,
)
from broadsheet.consumer.message.framing import Framing, Unframer, framing_for
from broadsheet.consumer.message.sequencer import RING_BYTES, RING_MESSAGES, Sequencer
from broadsheet.consumer.protocol.journal_pb2 import JournalSpec
from broadsheet.consumer.protocol.labels import CONTENT_TYPE, value_of

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The maximum size of a batch; a single message may exceed it."""

    messages_max: int = 4096
    bytes_max: int = 1 << 20
    """Framed bytes."""


DEFAULT_LIMITS: Final = BatchLimits()


class MessageSource:
    """The messages of a journal whose framing is known. Made by `open_source`, or from a given spec."""

    def __init__(
        self,
        client: JournalClient,
        journal: str,
        *,
        spec: JournalSpec,
        message_type: MessageType,
        limits: BatchLimits = DEFAULT_LIMITS,
        read_around: bool = False,
    ) -> None:
        """Choose the framing by the journal's content type.

        Args:
            client: Reads the journal.
            journal: Its name; a `;meta` suffix is kept in the batches.
            spec: The journal's spec, which names its content type.
            message_type: Encoding of its messages.
            limits: Maximum size of each batch.
            read_around: Include bytes that are not messages in the batches, marked `UNREADABLE`, instead of failing.

        Raises:
            ContentTypeError: the journal's content type is missing, has no framing, or is not the message type's.
        """
        self.journal = journal
        self.message_type = message_type
        self._client = client
        self._limits = limits
        self.read_around = read_around
        """Whether batches include damage, marked `UNREADABLE`, instead of failing at it."""
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
            ConsumerError: the journal cannot be read.
        """
        spans = _Spans(self)
        async with self._client.reader(
            self.journal, offset=offset, block=block, end_offset=end_offset, guard=guard
        ) as reader:
            async for span in reader:
                batch, error = spans.take(span)
                for part in _cut(batch, self._limits):
                    yield part
                if error is not None:
                    raise error
        spans.finish()

    def unframer(self, offset: int) -> Unframer:
        """Return an unframer of this journal from `offset` on, bytes."""
        return self._framing.unframer(
            journal=self.journal, offset=offset, read_around=self.read_around
        )


async def open_source(
    client: JournalClient,
    journal: str,
    message_type: MessageType,
    *,
    limits: BatchLimits = DEFAULT_LIMITS,
) -> MessageSource:
    """Fetch a journal's spec and return the source of its messages.

    Raises:
        JournalNotFoundError: there is no such journal.
        ContentTypeError: see `MessageSource`.
    """
    listed = await client.get(journal)
    return MessageSource(
        client, journal, spec=listed.spec, message_type=message_type, limits=limits
    )


async def read_batches(
    client: JournalClient,
    journal: str,
    message_type: MessageType,
    *,
    offset: int = 0,
    block: bool = True,
    end_offset: int = 0,
    limits: BatchLimits = DEFAULT_LIMITS,
) -> AsyncGenerator[MessageBatch, None]:
    """Yield a journal's messages as written, committed or not. See `open_source` and `MessageSource.batches`."""
    source = await open_source(client, journal, message_type, limits=limits)
    async with aclosing(
        source.batches(offset=offset, block=block, end_offset=end_offset)
    ) as batches:
        async for batch in batches:
            yield batch


async def read_committed(
    client: JournalClient,
    journal: str,
    message_type: MessageType,
    *,
    offset: int = 0,
    block: bool = True,
    end_offset: int = 0,
    ring_messages: int = RING_MESSAGES,
    ring_bytes: int = RING_BYTES,
    limits: BatchLimits = DEFAULT_LIMITS,
) -> AsyncGenerator[MessageBatch, None]:
    """Yield a journal's messages as committed: each once, transactions whole.

    Acknowledgements come after what they commit. Messages that do not fit `ring_messages` and `ring_bytes` until their
    acknowledgement are read a second time. See `open_source` and `MessageSource.batches` for the other arguments and
    the errors.
    """
    source = await open_source(client, journal, message_type, limits=limits)
    sequencer = Sequencer({}, ring_messages=ring_messages, ring_bytes=ring_bytes)
    async with aclosing(
        source.batches(offset=offset, block=block, end_offset=end_offset)
    ) as batches:
        async for batch in batches:
            index = 0
            while index < len(batch):
                index = sequencer.queue(batch, index).next_index
                async with aclosing(_emitted(sequencer, source, limits)) as runs:
                    async for run in runs:
                        yield run


async def _emitted(
    sequencer: Sequencer, source: MessageSource, limits: BatchLimits
) -> AsyncGenerator[MessageBatch, None]:
    """Yield and consume everything that the sequencer emits now."""
    wanted = sequencer.replay_range()
    if wanted is not None:
        replay = source.batches(offset=wanted.begin, end_offset=wanted.end, block=False)
        async with aclosing(replay) as batches:
            async for batch in batches:
                sequencer.feed_replay(batch)
                for run in _ready(sequencer, limits):
                    yield run
        sequencer.end_replay()
    for run in _ready(sequencer, limits):
        yield run


def _ready(sequencer: Sequencer, limits: BatchLimits) -> Iterator[MessageBatch]:
    while sequencer.emitting:
        run = sequencer.peek(limits.messages_max)
        if run is None:
            return
        sequencer.consume(len(run))
        yield run


class _Spans:
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
        if self._source.read_around:
            return batch_around_damage(journal, frames, message_type), None
        return batch_of(journal, frames, message_type)

    def finish(self) -> None:
        """Refuse a frame that is incomplete at the end of the read."""
        if self._source.read_around:
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


def _cut(batch: MessageBatch, limits: BatchLimits) -> Iterator[MessageBatch]:
    """Yield a batch in parts within the limits, none of them empty."""
    start, count = 0, len(batch)
    while start < count:
        by_bytes = bisect_right(batch.ends, batch.begins[start] + limits.bytes_max)
        stop = max(start + 1, min(count, start + limits.messages_max, by_bytes))
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
