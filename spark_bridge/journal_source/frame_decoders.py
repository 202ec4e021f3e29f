"""Length-prefixed messages into Arrow: of protobuf field by field, of Arrow batch by batch."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from consumer.errors import FramingError
from consumer.message.arrow_ipc import read_stream
from consumer.message.framing import FIXED_MAGIC, FixedFraming, Frames
from consumer.message.types import ProtobufType
from spark_bridge.journal_source.byte_runs import Content
from spark_bridge.journal_source.columns import Columns, metadata_columns
from spark_bridge.journal_source.message_types import TIMESTAMP, is_map

_HEADER: Final = struct.Struct("<4sI")
_UUID_BYTES: Final = 16


def whole_frames(data: bytes) -> int:
    """Return how many bytes are whole frames."""
    at, size = 0, len(data)
    while at + _HEADER.size <= size:
        magic, length = _HEADER.unpack_from(data, at)
        assert magic == FIXED_MAGIC, "partitions hold whole frames and nothing else"
        if at + _HEADER.size + length > size:
            break
        at += _HEADER.size + length
    return at


class ProtobufDecoder:
    """Decodes the messages of one journal, a row each."""

    whole_bytes = staticmethod(whole_frames)

    def __init__(self, columns: Columns, message_class: type[Message], *, uuid_field: str) -> None:
        """Say what is wanted; columns that no field fills are null."""
        self._columns = columns
        self._class = message_class
        self._type = ProtobufType(message_class, uuid_field=uuid_field)
        wanted = set(columns.of_messages.names)
        self._fields = [f for f in message_class.DESCRIPTOR.fields if f.name in wanted]

    def decode(self, content: Content) -> pa.RecordBatch:
        """Return the messages of whole frames.

        Raises:
            FramingError: a message is none of the class, or its fields do not fit the columns.
        """
        frames = _frames_of(content)
        begins, ends = _places_of(content, frames)
        try:
            messages = [self._class.FromString(payload) for payload in frames.payloads]
            arrow = self._columns.arrow_schema()
            values = {
                f.name: pa.array(_field_values(f, messages), arrow.field(f.name).type)
                for f in self._fields
            }
            uuids = None
            if self._columns.wants_uuids:
                uuids = b"".join(map(self._type.uuid_of, frames.payloads))
            values |= metadata_columns(content.journal, begins=begins, ends=ends, uuids=uuids)
            return self._columns.batch(values, len(messages))
        except (DecodeError, ValueError, TypeError, pa.ArrowException) as error:
            raise _error(content, error) from error


class ArrowDecoder:
    """Decodes the messages of one journal, each of which is a batch of rows."""

    whole_bytes = staticmethod(whole_frames)

    def __init__(self, columns: Columns) -> None:
        """Say what is wanted; columns that a batch has not are null."""
        self._columns = columns

    def decode(self, content: Content) -> pa.RecordBatch:
        """Return the rows of whole frames.

        Raises:
            FramingError: a message is no Arrow stream, or its columns have other types.
        """
        frames = _frames_of(content)
        begins, ends = _places_of(content, frames)
        try:
            tables = [read_arrow(payload) for payload in frames.payloads]
            rows = np.array([table.num_rows for table in tables])
            batches = [self._conformed(table) for table in tables]
            joined = pa.Table.from_batches(batches, self._wanted()).combine_chunks()
            values = {name: _only_chunk(joined.column(name)) for name in joined.schema.names}
            uuids = None
            if self._columns.wants_uuids:
                repeated = zip(frames.payloads, rows.tolist(), strict=True)
                uuids = b"".join(payload[:_UUID_BYTES] * count for payload, count in repeated)
            values |= metadata_columns(
                content.journal,
                begins=np.repeat(begins, rows),
                ends=np.repeat(ends, rows),
                uuids=uuids,
            )
            return self._columns.batch(values, int(rows.sum()))
        except (ValueError, pa.ArrowException) as error:
            raise _error(content, error) from error

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
    """Return the rows of a message, validated; none if it is an acknowledgement.

    Raises:
        ValueError: it is no Arrow stream, or not a valid one.
    """
    if len(payload) <= _UUID_BYTES:
        return pa.table({})
    schema, batches = read_stream(pa.py_buffer(payload)[_UUID_BYTES:])
    return pa.Table.from_batches(batches, schema)


def frames_in(data: bytes) -> Frames:
    """Return the whole frames of some content, offsets counted from its beginning."""
    return FixedFraming().unframer(journal="", offset=0).feed(data)


def _frames_of(content: Content) -> Frames:
    return frames_in(content.data)


def _places_of(content: Content, frames: Frames) -> tuple[Any, Any]:
    starts = np.array(frames.begins, dtype=np.int64)
    return content.offsets_of(starts, np.array(frames.ends, dtype=np.int64))


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)


def _error(content: Content, error: Exception) -> FramingError:
    detail = f"of a message there or after: {error}"
    return FramingError(content.journal, offset=int(content.piece_offsets[0]), detail=detail)


def _field_values(field: Any, messages: Iterable[Message]) -> Sequence[Any]:
    if not field.is_repeated and field.has_presence:
        return [
            _value_of(field, getattr(m, field.name)) if m.HasField(field.name) else None
            for m in messages
        ]
    if not field.is_repeated:
        return [_value_of(field, getattr(m, field.name)) for m in messages]
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return [
            [(key, _value_of(value, item)) for key, item in getattr(m, field.name).items()]
            for m in messages
        ]
    return [[_value_of(field, item) for item in getattr(m, field.name)] for m in messages]


def _value_of(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    if field.message_type is None:
        return value
    if field.message_type.full_name == TIMESTAMP:
        return value.ToDatetime(tzinfo=UTC)
    return {f.name: _field_values(f, (value,))[0] for f in field.message_type.fields}
