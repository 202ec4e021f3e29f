"""Decodes and encodes messages of any content type whose message type is a `RowType`, row by row."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.message_type import RowType
from broadsheet.journals.message.arrow_ipc import cut_rows
from broadsheet.journals.message.framing import Frames, Framing
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.spark_bridge.content.encoder import (
    Encoded,
    Stretches,
    check_arrow_columns,
    given_rows,
    in_order,
)
from broadsheet.spark_bridge.content.frames import framing_error
from broadsheet.spark_bridge.content.registry import Inference, RowDecoder, SparkContent
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.columns import RowColumns, metadata_columns
from broadsheet.wire.journal_pb2 import LabelSet

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from broadsheet.journals.message.column_texts import Indices
    from broadsheet.spark_bridge.content.encoder import Encoder
    from broadsheet.spark_bridge.journal_sink.options import WriteOptions
    from broadsheet.spark_bridge.journal_sink.stamps import Stamper
    from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
    from broadsheet.spark_bridge.journal_source.message_table import UuidOf
    from broadsheet.spark_bridge.journal_source.options import ReadOptions


class RowsDecoder:
    """Decodes one journal's messages, each of one row or more; columns that a message lacks are null."""

    def __init__(self, columns: RowColumns, message_type: RowType, framing: Framing) -> None:
        self._columns = columns
        self._type = message_type
        self._framing = framing
        names = set(columns.of_messages.names)
        self._wanted = pa.schema([f for f in columns.arrow_schema() if f.name in names])

    def whole_bytes(self, data: bytes) -> int:
        """Return how many bytes are whole frames."""
        ends = self._frames(data).ends
        return int(ends[-1]) if len(ends) else 0

    def decode(self, content: FetchedContent) -> pa.RecordBatch:
        """Return the rows of whole frames.

        Raises:
            FramingError: a message cannot be decoded, or its rows do not fit the columns.
        """
        frames = self._frames(content.data)
        begins, ends = content.offsets_of(frames.begins, frames.ends)
        try:
            rows = [self._type.rows_of(self._type.decode(each)) for each in frames.payloads]
            counts = np.array(list(map(len, rows)), dtype=np.int64)
            flat = [row for each in rows for row in each]
            values: dict[str, Any] = {
                field.name: pa.array([row.get(field.name) for row in flat], field.type)
                for field in self._wanted
            }
            uuids = None
            if self._columns.wants_uuids:
                repeated = zip(frames.payloads, counts.tolist(), strict=True)
                uuids = b"".join(self._type.uuid_of(payload) * count for payload, count in repeated)
            values |= metadata_columns(
                content.journal,
                begins=np.repeat(begins, counts),
                ends=np.repeat(ends, counts),
                uuids=uuids,
            )
            return self._columns.batch(values, len(flat))
        except MemoryError:
            raise  # not the messages' fault
        # A message type is code of its own, and its library raises errors of any class.
        except Exception as error:
            raise framing_error(content, error) from error

    def _frames(self, data: bytes) -> Frames:
        return self._framing.unframer(journal="", offset=0).feed(data)


class RowsEncoder:
    """Encodes batches of rows: a message for each stretch of rows of a journal, unless the stretch is large."""

    def __init__(self, message_type: RowType, framing: Framing) -> None:
        self.content_type = message_type.content_type
        self._type = message_type
        self._framing = framing

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the messages of each stretch of rows, and how many they are."""
        rows = in_order(rows, order)
        pieces = [cut_rows(rows.slice(begin, end - begin)) for begin, end in stretches]
        messages = [len(each) for each in pieces]
        stamped = (uuid.tobytes() for uuid in stamper.stamp_messages(sum(messages)))
        contents: list[bytes] = []
        for (begin, _), each in zip(stretches, pieces, strict=True):
            frames: list[bytes] = []
            place = begin
            for piece in each:
                with given_rows(order, place):
                    frames.append(self._framed(piece, next(stamped)))
                place += piece.num_rows
            contents.append(b"".join(frames))
        return Encoded(contents, messages)

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a framed acknowledgement."""
        message = self._type.new_acknowledgement("")
        self._type.set_uuid(message, uuid)
        return self._framing.frame(self._type.encode(message))

    def _framed(self, rows: pa.RecordBatch, uuid: bytes) -> bytes:
        message = self._type.message_of(rows)
        self._type.set_uuid(message, uuid)
        payload = self._type.encode(message)
        try:
            return self._framing.frame(payload)
        except ValueError as error:
            sizes = zip(rows.columns, rows.schema.names, strict=True)
            _, name = max((column.nbytes, name) for column, name in sizes)
            raise RowValueError(name, 0, str(error)) from error


def content_of_rows(content: ContentType) -> SparkContent:
    """Return the record of a content type that is read and written row by row."""
    return SparkContent(
        uuid_of=partial(_uuid_of, content),
        decoder=partial(_decoder, content),
        encoder=partial(_encoder, content),
        inference=partial(_inference, content),
    )


def _row_type(content: ContentType, labels: LabelSet, *, option: str = "messageType") -> RowType:
    try:
        # Content types without readers and writers in columns have message types of rows.
        return cast("RowType", content.message_type(labels, None))
    except ValueError as error:
        raise OptionError(option, str(error), got=None) from error


def _uuid_of(content: ContentType, journal: str, options: ReadOptions) -> UuidOf:
    del journal, options
    return _row_type(content, LabelSet()).uuid_of


def _decoder(
    content: ContentType, journal: str, options: ReadOptions, columns: RowColumns
) -> RowDecoder:
    del journal, options
    return RowsDecoder(columns, _row_type(content, LabelSet()), content.framing)


def _encoder(
    content: ContentType, schema: StructType, options: WriteOptions, labels: LabelSet
) -> Encoder:
    check_arrow_columns(schema)
    message_type = _row_type(content, labels, option="selector")
    try:
        columns = message_type.columns()
    except ValueError as error:
        raise OptionError("selector", str(error), got=options.selector) from error
    for name in schema.names:
        if name not in columns.names:
            raise PublishError(
                f"column {name}: messages of {content.name} have no such field; there are "
                f"{', '.join(columns.names)}"
            )
    for field in columns:
        if field.name not in schema.names and not field.nullable:
            raise PublishError(f"column {field.name}: expected one, for its field must not be null")
    return RowsEncoder(message_type, content.framing)


def _inference(content: ContentType, journal: str, options: ReadOptions) -> Inference:
    del journal, options
    return partial(_infer, content)


def _infer(content: ContentType, samples: list[bytes], strict: bool) -> StructType:
    message_type = _row_type(content, LabelSet())
    for sample in samples:
        frames = content.framing.unframer(journal="", offset=0).feed(sample)
        for payload in frames.payloads:
            try:
                found = message_type.schema_of(message_type.decode(payload))
            except ValueError:
                if strict:
                    raise
                continue
            if found is not None:
                return from_arrow_schema(found)
    return from_arrow_schema(pa.schema([]))
