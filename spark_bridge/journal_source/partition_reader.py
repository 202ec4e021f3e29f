"""Reads one partition in a task: bytes of a journal in, Arrow batches out.

gRPC is imported in here only: a task's process was forked from one that must not have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from spark_bridge.journal_source.byte_runs import BytePartition, RunCutter
from spark_bridge.journal_source.columns import Columns
from spark_bridge.journal_source.content import Content, ContentBuffer
from spark_bridge.journal_source.errors import JournalBytesGoneError
from spark_bridge.journal_source.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

DECODE_BYTES: Final = 4 << 20
"""Content decoded together: an Arrow batch of some ten thousand rows."""


class JournalPartition(InputPartition):
    """What a task needs to know."""

    def __init__(self, bytes_: BytePartition, content_type: str) -> None:
        """Take the bytes and how they are to be understood."""
        super().__init__(None)
        self.bytes = bytes_
        self.content_type = content_type


def read_partition(
    partition: InputPartition, *, options: ReadOptions, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition.

    Raises:
        JournalBytesGoneError: the journal lost bytes of the partition after it was planned.
        FramingError: a message cannot be decoded, or does not fit the columns.
        ConsumerError: the journal cannot be read.
    """
    if not isinstance(partition, JournalPartition):
        return  # Spark's own, of a read that finds nothing
    from spark_bridge.journal_source.codecs import decoder_for

    journal = partition.bytes.journal
    decoder = decoder_for(journal, partition.content_type, options=options, columns=columns)
    buffer = ContentBuffer(journal, decoder.whole_bytes)
    with asyncio.Runner() as runner:
        contents = _contents(partition.bytes, options, buffer)
        try:
            while (content := runner.run(anext(contents, None))) is not None:
                yield decoder.decode(content)
        finally:
            runner.run(contents.aclose())


async def _contents(
    wanted: BytePartition, options: ReadOptions, buffer: ContentBuffer
) -> AsyncGenerator[Content, None]:
    from spark_bridge.brokers import open_client

    cutter = RunCutter(wanted.runs())
    expected = wanted.begin
    async with (
        open_client(options.access) as client,
        client.reader(
            wanted.journal, offset=wanted.begin, block=False, end_offset=wanted.end
        ) as reader,
    ):
        async for span in reader:
            if span.offset != expected and options.fail_on_data_loss:
                raise JournalBytesGoneError(wanted.journal, expected, span.offset)
            expected = span.end
            for offset, piece in cutter.take(span.offset, span.content):
                buffer.add(offset, piece)
            if buffer.size_bytes >= DECODE_BYTES:
                content = buffer.take()
                if content.data:
                    yield content
    if expected < wanted.end and options.fail_on_data_loss:
        raise JournalBytesGoneError(wanted.journal, expected, wanted.end)
    content = buffer.take()
    if content.data:
        yield content
