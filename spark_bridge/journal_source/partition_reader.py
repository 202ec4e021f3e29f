"""Reads one partition in a task: bytes of a journal become Arrow batches.

gRPC is imported inside functions only, because a task's process was forked from one that must not have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from broadsheet.spark_bridge.errors import (
    JournalBytesGoneError,
    QuerySourceGoneError,
    QuerySourceReplacedError,
)
from broadsheet.spark_bridge.journal_source.byte_runs import (
    BytePartition,
    ContentBuffer,
    FetchedContent,
    RunCutter,
)
from broadsheet.spark_bridge.journal_source.columns import RowColumns
from broadsheet.spark_bridge.journal_source.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.journals.guard import OffsetGuard
    from broadsheet.journals.reader import Reader, ReadSpan
    from broadsheet.spark_bridge.journal_source.damage import DamagedRecord

DECODE_BYTES: Final = 4 << 20
"""Content that is decoded together, for an Arrow batch of some ten thousand rows."""


class JournalPartition(InputPartition):
    """A partition's bytes, and the options for reading them, as pickled to a task."""

    def __init__(self, bytes_: BytePartition, content_type: str) -> None:
        super().__init__(None)
        self.bytes = bytes_
        self.content_type = content_type


def read_partition(
    partition: InputPartition, *, options: ReadOptions, columns: RowColumns
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition.

    Raises:
        JournalBytesGoneError: the journal lost bytes of the partition after it was planned.
        FramingError: a message cannot be decoded, or does not fit the columns.
        ServiceError: the journal cannot be read.
    """
    if not isinstance(partition, JournalPartition):
        return  # Spark's own partition of a read that finds nothing
    if partition.bytes.damaged:
        yield from _damaged_rows(partition.bytes, options, columns)
        return
    from broadsheet.runtime.interpreter import keep_freed_buffers
    from broadsheet.spark_bridge.journal_source.codecs import tolerant_decoder_for

    keep_freed_buffers()
    journal = partition.bytes.journal
    decoder = tolerant_decoder_for(
        journal, partition.content_type, options=options, columns=columns
    )
    buffer = ContentBuffer(journal, decoder.whole_bytes)
    with asyncio.Runner() as runner:
        contents = _contents(partition.bytes, options, buffer)
        try:
            while (content := runner.run(anext(contents, None))) is not None:
                yield from decoder.decode(content)
        finally:
            runner.run(contents.aclose())


def _damaged_rows(
    wanted: BytePartition, options: ReadOptions, columns: RowColumns
) -> Iterator[pa.RecordBatch]:
    """Yield rows of damaged records."""
    from broadsheet.spark_bridge.journal_source.damage import DamagedRecord

    runs = dict(wanted.runs())
    records: list[DamagedRecord] = []
    parts: list[bytes] = []
    begin = size = 0
    with asyncio.Runner() as runner:
        pieces = _pieces(wanted, options)
        try:
            while (found := runner.run(anext(pieces, None))) is not None:
                offset, piece = found
                if offset in runs:
                    begin, parts = offset, []
                parts.append(piece)
                if offset + len(piece) == runs[begin]:
                    records.append(DamagedRecord(begin, runs[begin], b"".join(parts)))
                    size += runs[begin] - begin
                if size >= DECODE_BYTES:
                    yield _rows_of(columns, wanted.journal, records)
                    records, size = [], 0
        finally:
            runner.run(pieces.aclose())
    if records:
        yield _rows_of(columns, wanted.journal, records)


def _rows_of(columns: RowColumns, journal: str, records: list[DamagedRecord]) -> pa.RecordBatch:
    from broadsheet.journals.errors import FramingError
    from broadsheet.spark_bridge.journal_source.damage import damaged_rows

    try:
        return damaged_rows(columns, journal, records)
    except ValueError as error:
        detail = f"a damaged record, of which no row can be made: {error}"
        raise FramingError(journal, offset=records[0].begin, detail=detail) from error


async def _contents(
    wanted: BytePartition, options: ReadOptions, buffer: ContentBuffer
) -> AsyncGenerator[FetchedContent, None]:
    async with aclosing(_pieces(wanted, options)) as pieces:
        async for offset, piece in pieces:
            buffer.add(offset, piece)
            if buffer.size_bytes >= DECODE_BYTES:
                content = buffer.take()
                if content.data:
                    yield content
    content = buffer.take()
    if content.data:
        yield content


async def _pieces(
    wanted: BytePartition, options: ReadOptions
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the bytes of a partition's runs, and their offsets."""
    from broadsheet.spark_bridge.brokers import open_client
    from broadsheet.wire.journal_pb2 import FragmentsResponse

    listed = FragmentsResponse.ListedFragment
    cutter = RunCutter(wanted.runs())
    expected = wanted.begin
    async with (
        # The driver has verified what it planned. Else each task would read its fragments whole.
        open_client(options.access, verify_first=False) as client,
        client.reader(
            wanted.journal,
            offset=wanted.begin,
            block=False,
            end_offset=wanted.end,
            guard=_guard_of(wanted),
            stored=[listed.FromString(each) for each in wanted.stored],
        ) as reader,
    ):
        async for span in _guarded(reader, wanted, options):
            if span.offset != expected and options.fail_on_data_loss:
                raise JournalBytesGoneError(wanted.journal, expected, span.offset)
            expected = span.end
            for offset, piece in cutter.take(span.offset, span.content):
                yield offset, piece
    # The last bytes may be gone, too, and then no span follows that shows the gap.
    if expected < wanted.end and options.fail_on_data_loss:
        raise JournalBytesGoneError(wanted.journal, expected, wanted.end)


def _guard_of(wanted: BytePartition) -> OffsetGuard | None:
    """Return the guard that notices a replacement of the journal since the driver planned the partition."""
    from broadsheet.journals.guard import OffsetGuard, RememberedRead
    from broadsheet.wire.identity_pb2 import JournalEpoch

    # The epoch was not known when the driver planned the partition.
    if not wanted.epoch:
        return None
    guard = OffsetGuard(RememberedRead(wanted.journal, JournalEpoch.FromString(wanted.epoch)))
    guard.looked = True
    return guard


async def _guarded(
    reader: Reader, wanted: BytePartition, options: ReadOptions
) -> AsyncGenerator[ReadSpan, None]:
    """Yield the content of the planned journal; for a replacement, or if it is gone, yield nothing, or raise."""
    from broadsheet.journals.errors import JournalNotFoundError, JournalReplacedError as Replaced

    try:
        async for span in reader:
            yield span
    except JournalNotFoundError as error:
        if options.fail_on_data_loss:
            raise QuerySourceGoneError(wanted.journal, wanted.end) from error
    except Replaced as error:
        if options.fail_on_data_loss:
            raise QuerySourceReplacedError(
                error.journal,
                error.offset,
                error.write_head,
                error.read_epoch,
                error.present_epoch,
            ) from error
