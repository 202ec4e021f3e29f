"""Arrow IPC streams: written in frames, and read from untrusted bytes.

Arrow verifies the flatbuffers of a stream, but not their values: after a flipped bit in a length, an offset or a type
it reads memory outside the message, or crashes. So each batch is checked against bounds before Arrow allocates memory,
and validated in full before any of its values is used.

Needs pyarrow (`broadsheet[spark]`), which is imported at first use. Versions before 23.0.1 crash on damaged streams
even with these checks.

Source: Apache Arrow format/Message.fbs (tables and field ids), columnar format "Compressed Buffers" (length prefix).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from broadsheet.journals.message.framing import FIXED_HEADER_BYTES, FRAME_BYTES_MAX, FixedFraming
from broadsheet.journals.message.row_errors import RowValueError, named_value_error

if TYPE_CHECKING:
    import pyarrow as pa

FRAME_BYTES_AIM: Final = FRAME_BYTES_MAX // 8
"""Size of rows beyond which they are cut in two, because readers hold a whole message in memory."""
EXPANDED_BYTES_MAX: Final = 4 * FRAME_BYTES_MAX
"""Decompressed size of a compressed batch: a few bytes can ask for any amount of memory."""
FREE_ROWS_MAX: Final = 1 << 20
"""Rows that take no bytes in the body, such as nulls and runs: a single number can ask for any amount of them."""
_ROWS_A_BYTE: Final = 8
"""Booleans are the shortest values that take space in the body."""

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_HEADER_TYPE, _HEADER = 1, 2
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_DATA_OF_DICTIONARY = 1
_NODE = struct.Struct("<qq")
_BUFFER = struct.Struct("<qq")
_NOT_COMPRESSED = -1


def cut_rows(rows: pa.RecordBatch, first: int = 0) -> list[pa.RecordBatch]:
    """Cut rows into pieces that readers take as a message each, unless a single row is too long.

    Args:
        rows: N of them.
        first: Index of the first row, for errors.

    Raises:
        RowValueError: a row's lists hold more values without bytes, such as nulls, than readers take.
    """
    if rows.num_rows <= 1:
        try:
            check_values(rows)
        except RowValueError as error:
            raise error.at(first) from error
        return [rows]
    if rows.nbytes <= FRAME_BYTES_AIM and not _is_sparse(rows):
        return [rows]
    half = rows.num_rows // 2
    return [*cut_rows(rows.slice(0, half), first), *cut_rows(rows.slice(half), first + half)]


def check_values(rows: pa.RecordBatch) -> None:
    """Refuse rows of more values than readers take in one message.

    Raises:
        RowValueError: values without bytes, such as nulls, are too many.
    """
    if _is_sparse(rows):
        values, name = _most_values(rows)
        reason = f"{values} values without bytes, such as nulls; readers take {FREE_ROWS_MAX}"
        raise RowValueError(name or "of nulls", 0, reason)


def _is_sparse(rows: pa.RecordBatch) -> bool:
    values, _ = _most_values(rows)
    return values > FREE_ROWS_MAX and values > rows.nbytes * _ROWS_A_BYTE


def _most_values(rows: pa.RecordBatch) -> tuple[int, str]:
    """Return the greatest number of values at any level of lists, and the column that has them."""
    import pyarrow as pa

    most, longest = rows.num_rows, ""
    waiting = [
        (name, column)
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        if pa.types.is_nested(column.type)
    ]
    while waiting:
        name, values = waiting.pop()
        if len(values) > most:
            most, longest = len(values), name
        waiting += [(name, inner) for inner in _inner(values)]
    return most, longest


def _inner(values: Any) -> list[Any]:
    """Return the values within nested ones, of these alone and not of those that they were cut out of."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_struct(kind):
        found: list[Any] = values.flatten()
        return found
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [values.flatten()]
    if pa.types.is_map(kind):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return [each.slice(first, last - first) for each in (values.keys, values.items)]
    return []


def framed_streams(messages: Sequence[tuple[bytes, pa.RecordBatch]]) -> memoryview:
    """Return the frames of Arrow messages, one after the other; values are copied once, to their place in a frame.

    Args:
        messages: The UUID, 16 bytes, and the rows of each, as `cut_rows` cuts them.

    Raises:
        RowValueError: a row is longer than readers take; rows are counted over all messages.
        pyarrow.ArrowException: a column cannot be written.
    """
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    bounds = [0]
    for uuid, rows in messages:
        sink.write(bytes(FIXED_HEADER_BYTES) + uuid)
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows)
        bounds.append(sink.tell())
    frames = memoryview(sink.getvalue()).cast("B")
    # Last, because only now are the lengths known.
    for begin, end in itertools.pairwise(bounds):
        try:
            FixedFraming.write_header(frames[begin:end])
        except ValueError as error:
            raise _long_row_error([rows for _, rows in messages], error) from error
    return frames


def _long_row_error(pieces: Sequence[pa.RecordBatch], error: ValueError) -> RowValueError:
    """Return the error of the longest piece, which is one row, and names its longest column."""
    longest = max(range(len(pieces)), key=lambda index: pieces[index].nbytes)
    sizes = zip(pieces[longest].columns, pieces[longest].schema.names, strict=True)
    _, name = max((column.nbytes, name) for column, name in sizes)
    return RowValueError(name, sum(piece.num_rows for piece in pieces[:longest]), str(error))


def check_texts(rows: pa.RecordBatch) -> None:
    """Refuse rows that `read_stream` would refuse because of what they hold.

    Raises:
        RowValueError: a text is not UTF-8, which Arrow does not check when it takes bytes for text.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            _check_texts(column)
        # Extension types are the application's code.
        except Exception as error:
            raise named_value_error(name, column, _check_texts, error) from error


def _check_texts(column: Any) -> None:
    import pyarrow as pa

    from broadsheet.journals.message.column_texts import check_utf8

    waiting = [column]
    while waiting:
        values = waiting.pop()
        kind = values.type
        if pa.types.is_string(kind):
            check_utf8(values)
        elif inner := _inner(values):
            waiting += inner
        elif not (pa.types.is_primitive(kind) or pa.types.is_null(kind)):
            values.validate(full=True)


def read_stream(content: Any) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Return the schema and the batches of a whole stream; they share its memory.

    Args:
        content: A `pyarrow.Buffer`, or bytes.

    Raises:
        ValueError: the content is not a stream, or a batch is invalid or asks for more memory than it may.
    """
    import pyarrow as pa

    try:
        _check_bounds(content)
        with pa.ipc.open_stream(content) as stream:
            _check_fields(stream.schema)
            return stream.schema, [validated(batch) for batch in stream]
    # Arrow raises OSError, its own errors, and those of extension types, which are the application's code.
    except Exception as error:
        raise ValueError(f"not a valid Arrow stream: {error}") from error


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch after a check of all its offsets, indices, lengths and texts.

    Raises:
        pyarrow.ArrowInvalid: one of them is invalid.
    """
    batch.validate(full=True)
    return batch


def _check_fields(fields: Iterable[pa.Field]) -> None:
    """Refuse fields that fail only at access: names that are not UTF-8, and types without a Python class.

    Raises:
        UnicodeDecodeError: a name is not UTF-8.
        ValueError: a type cannot be read.
    """
    from pyarrow.lib import Type_INTERVAL_DAY_TIME, Type_INTERVAL_MONTHS

    for field in fields:
        name = field.name
        if field.type.id in {Type_INTERVAL_MONTHS, Type_INTERVAL_DAY_TIME}:
            raise ValueError(
                f"field {name!r}: pyarrow cannot read {field.type}, expected month_day_nano_interval"
            )
        if field.type.num_fields:
            _check_fields(field.type.field(n) for n in range(field.type.num_fields))


def _check_bounds(content: Any) -> None:
    """Check the sizes that a stream's batches declare, before memory is allocated for them.

    Raises:
        ValueError: a batch exceeds the bounds.
    """
    import pyarrow as pa

    for message in pa.ipc.MessageReader.open_stream(content):
        try:
            check_message(memoryview(message.metadata), memoryview(message.body or b""))
        except struct.error as error:
            raise ValueError(f"the metadata of a batch points beyond its end: {error}") from error


def check_message(metadata: memoryview, body: memoryview) -> None:
    """Refuse a stream message that declares more memory than the bounds allow.

    Args:
        metadata: Its flatbuffer.
        body: Its buffers.

    Raises:
        ValueError: it declares more.
        struct.error: the flatbuffer points beyond its end.
    """
    root = _Table.root(metadata)
    kind, header = root.uint8(_HEADER_TYPE), root.table(_HEADER)
    if header is not None and kind == _DICTIONARY_BATCH:
        header = header.table(_DATA_OF_DICTIONARY)
    elif kind != _RECORD_BATCH:
        return
    if header is None:
        return
    size = len(body)
    if header.table(_COMPRESSION) is not None:
        size = _expanded_bytes(header, body)
        if size > EXPANDED_BYTES_MAX:
            raise ValueError(
                f"a batch of {size} bytes; the largest allowed is {EXPANDED_BYTES_MAX}"
            )
    rows = max([header.int64(_LENGTH), *(n for n, _ in header.structs(_NODES, _NODE))])
    if rows > max(FREE_ROWS_MAX, size * _ROWS_A_BYTE):
        raise ValueError(f"a batch of {rows} values in {size} bytes")


def _expanded_bytes(batch: _Table, body: memoryview) -> int:
    total = 0
    for offset, length in batch.structs(_BUFFERS, _BUFFER):
        if length > 0:
            (expanded,) = struct.unpack_from("<q", body, offset)
            total += length if expanded == _NOT_COMPRESSED else max(expanded, 0)
    return total


class _Table:
    """A table of a flatbuffer. A read beyond its end raises `struct.error`."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._int32(at)
        (self._fields_bytes,) = struct.unpack_from("<H", data, _position(self._fields))

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        (at,) = struct.unpack_from("<I", data)
        return cls(data, at)

    def uint8(self, field: int) -> int:
        at = self._place(field)
        return int(struct.unpack_from("<B", self._data, at)[0]) if at else 0

    def int64(self, field: int) -> int:
        at = self._place(field)
        return int(struct.unpack_from("<q", self._data, at)[0]) if at else 0

    def table(self, field: int) -> _Table | None:
        at = self._place(field)
        return _Table(self._data, self._target(at)) if at else None

    def structs(self, field: int, form: struct.Struct) -> list[tuple[int, ...]]:
        """Return the structs of a vector."""
        at = self._place(field)
        if not at:
            return []
        vector = self._target(at)
        (count,) = struct.unpack_from("<I", self._data, vector)
        end = vector + 4 + count * form.size
        if end > len(self._data):
            raise struct.error(f"a vector of {count} structs")
        return list(form.iter_unpack(self._data[vector + 4 : end]))

    def _place(self, field: int) -> int:
        """Return the position of a field's value, 0 if it has the default."""
        slot = 4 + 2 * field
        if slot + 2 > self._fields_bytes:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, self._fields + slot)
        return self._at + offset if offset else 0

    def _target(self, at: int) -> int:
        (offset,) = struct.unpack_from("<I", self._data, at)
        return at + int(offset)

    def _int32(self, at: int) -> int:
        return int(struct.unpack_from("<i", self._data, _position(at))[0])


def _position(at: int) -> int:
    """Return an offset that does not count from the end, as a negative one would."""
    if at < 0:
        raise struct.error(f"an offset of {at}")
    return at
