"""Decodes and encodes Arrow messages, each a UUID and a stream of one record batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowType
from broadsheet.journals.message.arrow_ipc import check_texts, cut_rows, framed_streams, read_stream
from broadsheet.journals.message.column_texts import Indices
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.uuid import UUID_BYTES
from broadsheet.spark_bridge.content.encoder import (
    Encoded,
    Stretches,
    check_arrow_columns,
    given_rows,
    in_order,
)
from broadsheet.spark_bridge.content.frames import (
    frames_in,
    frames_of,
    framing_error,
    is_message,
    places_of,
    whole_frames,
)
from broadsheet.spark_bridge.content.registry import Inference, SparkContent
from broadsheet.spark_bridge.journal_sink.stamps import Stamper
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.columns import RowColumns, metadata_columns

if TYPE_CHECKING:
    from broadsheet.spark_bridge.journal_sink.options import WriteOptions
    from broadsheet.spark_bridge.journal_source.message_table import UuidOf
    from broadsheet.spark_bridge.journal_source.options import ReadOptions
    from broadsheet.wire.journal_pb2 import LabelSet


class ArrowDecoder:
    """Decodes one journal's messages, each a batch of rows; columns that a batch lacks are null."""

    whole_bytes = staticmethod(whole_frames)

    def __init__(self, columns: RowColumns) -> None:
        self._columns = columns

    def decode(self, content: FetchedContent) -> pa.RecordBatch:
        """Return the rows of whole frames.

        Raises:
            FramingError: a message is not an Arrow stream, or its columns have other types.
        """
        frames = frames_of(content)
        begins, ends = places_of(content, frames)
        try:
            tables = [read_arrow(payload) for payload in frames.payloads]
            rows = np.array([table.num_rows for table in tables])
            batches = [self._conformed(table) for table in tables]
            joined = pa.Table.from_batches(batches, self._wanted()).combine_chunks()
            values = {name: _only_chunk(joined.column(name)) for name in joined.schema.names}
            uuids = None
            if self._columns.wants_uuids:
                repeated = zip(frames.payloads, rows.tolist(), strict=True)
                uuids = b"".join(payload[:UUID_BYTES] * count for payload, count in repeated)
            values |= metadata_columns(
                content.journal,
                begins=np.repeat(begins, rows),
                ends=np.repeat(ends, rows),
                uuids=uuids,
            )
            return self._columns.batch(values, int(rows.sum()))
        except (ValueError, pa.ArrowException) as error:
            raise framing_error(content, error) from error

    def _wanted(self) -> pa.Schema:
        names = set(self._columns.of_messages.names)
        return pa.schema([f for f in self._columns.arrow_schema() if f.name in names])

    def _conformed(self, table: pa.Table) -> pa.RecordBatch:
        arrays = [
            _only_chunk(table.column(field.name)).cast(field.type)
            if field.name in table.schema.names
            else pa.nulls(table.num_rows, field.type)
            for field in self._wanted()
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted())


def read_arrow(payload: bytes) -> pa.Table:
    """Return the validated rows of a message; none if it is an acknowledgement.

    Raises:
        ValueError: it is not a valid Arrow stream.
    """
    if len(payload) <= UUID_BYTES:
        return pa.table({})
    schema, batches = read_stream(pa.py_buffer(payload)[UUID_BYTES:])
    return pa.Table.from_batches(batches, schema)


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)


class ArrowFrames:
    """Encodes batches of rows as framed Arrow messages: a message is a stretch of rows of one batch.

        66 33 93 36 | length | UUID, 16 bytes | Arrow IPC stream: schema, one record batch, end

    An acknowledgement is a UUID alone. The UUID precedes the stream so that sequencing parses no Arrow.
    """

    content_type = ARROW_STREAM

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the messages of each stretch of rows: one, unless the stretch is large."""
        check_texts(rows)
        rows = in_order(rows, order)
        pieces = [cut_rows(rows.slice(begin, end - begin)) for begin, end in stretches]
        messages = [len(each) for each in pieces]
        stamped = (uuid.tobytes() for uuid in stamper.stamp_messages(sum(messages)))
        contents = []
        for (begin, _), each in zip(stretches, pieces, strict=True):
            with given_rows(order, begin):
                contents.append(framed_streams([(next(stamped), piece) for piece in each]))
        return Encoded(contents, messages)

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a frame of the UUID alone."""
        return FixedFraming().frame(uuid)


# ---- The content type ------------------------------------------------------------------------------


def _uuid_of(journal: str, options: ReadOptions) -> UuidOf:
    del journal, options
    return ArrowType().uuid_of


def _decoder(journal: str, options: ReadOptions, columns: RowColumns) -> ArrowDecoder:
    del journal, options
    return ArrowDecoder(columns)


def _encoder(schema: StructType, options: WriteOptions, labels: LabelSet) -> ArrowFrames:
    del options, labels
    check_arrow_columns(schema)
    return ArrowFrames()


def _inference(journal: str, options: ReadOptions) -> Inference:
    del journal, options
    return _infer_arrow


def _infer_arrow(samples: list[bytes], strict: bool) -> StructType:
    for sample in samples:
        for payload in frames_in(sample).payloads:
            if not is_message(payload, read_arrow, strict=strict):
                continue
            found = read_arrow(payload).schema
            if found.names:
                return StructType(
                    [StructField(f.name, from_arrow_type(f.type), f.nullable) for f in found]
                )
    return StructType([])


CONTENT: Final = SparkContent(
    uuid_of=_uuid_of, decoder=_decoder, encoder=_encoder, inference=_inference
)
