"""Makes rows of damaged records, and decodes around messages that cannot be decoded.

Damage that the driver finds (a junk line, bytes outside frames, an invalid UUID) comes to tasks as separate ranges.
Damage that only a decoder finds is isolated here by bisection: a batch that fails is decoded in halves, until the bad
message is alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType

from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.framing import Frames
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.columns import RowColumns, metadata_columns
from broadsheet.spark_bridge.journal_source.message_table import Offsets
from broadsheet.spark_bridge.journal_source.options import ReadMode

RECORD_BYTES_MAX: Final = 16 << 20
"""Most bytes of a damaged record in a row, because a stretch of junk may be too large for one."""


class DamagedRecord(NamedTuple):
    """Bytes [begin, end) of a journal that are not a message."""

    begin: int
    end: int
    content: bytes


class _Decoder(Protocol):
    def whole_bytes(self, data: bytes) -> int: ...

    def decode(self, content: FetchedContent) -> pa.RecordBatch: ...


def damaged_rows(columns: RowColumns, journal: str, records: list[DamagedRecord]) -> pa.RecordBatch:
    """Return a row for each record: its offsets and, if there is a column for them, its bytes; the rest is null.

    Raises:
        ValueError: a column must not be null.
    """
    begins = np.array([record.begin for record in records], dtype=np.int64)
    ends = np.array([record.end for record in records], dtype=np.int64)
    values = metadata_columns(journal, begins=begins, ends=ends, uuids=None)
    values |= corrupt_column(columns, [record.content for record in records])
    return columns.batch(values, len(records))


def corrupt_column(columns: RowColumns, contents: list[bytes | None]) -> dict[str, pa.Array]:
    """Return the column of damaged records, if it is wanted; None for sound records."""
    field = columns.corrupt
    if field is None:
        return {}
    cut = [None if each is None else each[:RECORD_BYTES_MAX] for each in contents]
    if isinstance(field.dataType, BinaryType):
        return {field.name: pa.array(cut, pa.binary())}
    texts = [None if each is None else each.decode("utf-8", errors="replace") for each in cut]
    return {field.name: pa.array(texts, pa.string())}


class TolerantDecoder:
    """Decodes all decodable messages; others become a row, are left out, or are an error."""

    def __init__(
        self, inner: _Decoder, columns: RowColumns, *, content_type: str, mode: ReadMode
    ) -> None:
        """Wrap a decoder.

        Args:
            inner: Decodes whole frames, or raises.
            columns: Of the batches.
            content_type: Tells how frames are found.
            mode: Treatment of messages that cannot be decoded.
        """
        self._inner = inner
        self._columns = columns
        self._framing = framing_for(content_type)
        self._mode = mode
        self.whole_bytes = inner.whole_bytes

    def decode(self, content: FetchedContent) -> Iterator[pa.RecordBatch]:
        """Yield the messages of whole frames, in order.

        Raises:
            FramingError: a message cannot be decoded, and the mode is FAILFAST.
        """
        try:
            yield self._inner.decode(content)
            return
        except MemoryError:
            raise  # not the message's fault
        except Exception as error:
            if self._mode is ReadMode.FAILFAST:
                raise _framing_error(content, error) from error
        frames = self._framing.unframer(journal="", offset=0).feed(content.data)
        yield from self._halves(content, frames, 0, len(frames.payloads))

    def _halves(
        self, content: FetchedContent, frames: Frames, start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """Decode frames [start, stop), which are known to fail together."""
        if stop - start <= 1:
            if start < stop and self._mode is ReadMode.PERMISSIVE:
                yield self._damaged(content, frames, start)
            return
        # Halves, because a few bad messages among thousands are found with few attempts.
        middle = (start + stop) // 2
        for first, last in ((start, middle), (middle, stop)):
            part = _part(content, frames.begins[first], frames.ends[last - 1])
            try:
                batch = self._inner.decode(part)
            except MemoryError:
                raise
            except Exception:
                yield from self._halves(content, frames, first, last)
            else:
                yield batch

    def _damaged(self, content: FetchedContent, frames: Frames, index: int) -> pa.RecordBatch:
        begins, ends = content.offsets_of(_one(frames.begins[index]), _one(frames.ends[index]))
        record = DamagedRecord(int(begins[0]), int(ends[0]), frames.payloads[index])
        try:
            return damaged_rows(self._columns, content.journal, [record])
        except ValueError as error:
            raise _framing_error(content, error) from error


def _framing_error(content: FetchedContent, error: Exception) -> FramingError:
    if isinstance(error, FramingError):
        return error
    detail = f"of a message there or after: {type(error).__name__}: {error}"
    return FramingError(content.journal, offset=int(content.piece_offsets[0]), detail=detail)


def _part(content: FetchedContent, start: int, stop: int) -> FetchedContent:
    """Return bytes [start, stop) of some content, which are whole frames."""
    first = int(np.searchsorted(content.piece_starts, start, side="right")) - 1
    last = int(np.searchsorted(content.piece_starts, stop - 1, side="right"))
    starts = content.piece_starts[first:last] - start
    offsets = content.piece_offsets[first:last].copy()
    offsets[0] -= starts[0]  # the part begins within its first piece
    starts[0] = 0
    return FetchedContent(content.journal, content.data[start:stop], starts, offsets)


def _one(value: int) -> Offsets:
    return np.array([value], dtype=np.int64)
