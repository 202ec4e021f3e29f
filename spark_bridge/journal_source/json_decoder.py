"""JSON lines into Arrow: a whole batch by Arrow's reader, or value by value where that cannot.

Arrow reads numbers, strings, booleans, times, lists and structs at some hundred MB/s. Maps, binaries and the like it
does not know, and a number where a string is due it refuses; such a batch is read by `json_values`, which either reads
it or says where the culprit stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    StructType,
)

from consumer.errors import FramingError
from spark_bridge.format_options import OptionError
from spark_bridge.journal_source.columns import Columns, metadata_columns
from spark_bridge.journal_source.content import Content
from spark_bridge.journal_source.damage import corrupt_column
from spark_bridge.journal_source.json_values import converter, fields_of, nullable
from spark_bridge.journal_source.line_tables import bounds_of_lines, uuids_of_lines


class JsonDecoder:
    """Decodes the lines of one journal."""

    def __init__(self, columns: Columns, *, permissive: bool) -> None:
        """Say what is wanted.

        Args:
            columns: Of the batches.
            permissive: Whether a value that does not fit its column becomes null, instead of an error; and a message
                that is no JSON object a row of nulls.

        Raises:
            OptionError: JSON has nothing for a column.
        """
        self._columns = columns
        self._permissive = permissive
        self._converters = {f.name: nullable(_converter(f)) for f in columns.of_messages}
        self._readable = _readable_schema(columns.of_messages)
        self._arrow_fields = to_arrow_schema(columns.of_messages, timezone="UTC")

    @staticmethod
    def whole_bytes(data: bytes) -> int:
        """Return how many bytes are whole lines."""
        return data.rfind(b"\n") + 1

    def decode(self, content: Content) -> pa.RecordBatch:
        """Return the messages of whole lines.

        Raises:
            FramingError: a message is no JSON object, or a value does not fit its column.
        """
        starts, stops = bounds_of_lines(content.data)
        values = self._read(content, starts, stops)
        if self._columns.wants_offsets or self._columns.wants_uuids:
            begins, ends = content.offsets_of(starts, stops + 1)
        else:
            begins = ends = starts
        uuids = None
        if self._columns.wants_uuids:
            uuids = uuids_of_lines(content.data, starts, stops)
        values |= metadata_columns(content.journal, begins=begins, ends=ends, uuids=uuids)
        try:
            return self._columns.batch(values, len(starts))
        except (ValueError, pa.ArrowInvalid) as error:
            first = int(content.piece_offsets[0])
            detail = f"of a message there or after: {error}"
            raise FramingError(content.journal, offset=first, detail=detail) from error

    def _read(self, content: Content, starts: Any, stops: Any) -> dict[str, pa.Array]:
        if not self._columns.of_messages.fields:
            return {}
        if self._readable is not None:
            try:
                values = _read_at_once(content.data, self._readable, len(starts))
                return {f.name: values[f.name].cast(f.type) for f in self._arrow_fields}
            except pa.ArrowInvalid:
                pass  # what Arrow refuses is read value by value, which tells where it is wrong
        return self._read_one_by_one(content, starts, stops)

    def _read_one_by_one(self, content: Content, starts: Any, stops: Any) -> dict[str, pa.Array]:
        values: dict[str, list[Any]] = {name: [] for name in self._converters}
        corrupt: list[bytes | None] = []
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            payload = content.data[start:stop]
            try:
                corrupt.append(None if self._read_message(payload, values) else payload)
            except ValueError as error:
                at, _ = content.offsets_of(np.array([start]), np.array([stop + 1]))
                detail = str(error)
                raise FramingError(content.journal, offset=int(at[0]), detail=detail) from error
        arrays = {f.name: pa.array(values[f.name], f.type) for f in self._arrow_fields}
        return arrays | corrupt_column(self._columns, corrupt)

    def _read_message(self, payload: bytes, values: dict[str, list[Any]]) -> bool:
        """Read the values of a message; return whether all of them fit."""
        fits = True
        try:
            raws = fields_of(payload)
        except (ValueError, RecursionError) as error:
            if not self._permissive:
                raise ValueError(str(error)) from error
            raws, fits = {}, False
        for name, convert in self._converters.items():
            try:
                value = convert(raws.get(name))
            except (ValueError, ArithmeticError, RecursionError) as error:
                if not self._permissive:
                    raise ValueError(f"column {name}: {error}") from error
                value, fits = None, False
            values[name].append(value)
        return fits


def _read_at_once(data: bytes, schema: pa.Schema, lines: int) -> dict[str, pa.Array]:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:  # Arrow's reader would hand the bytes on as a text
            raise pa.ArrowInvalid(str(error)) from error
    table = pa_json.read_json(
        pa.BufferReader(data),
        # One block, so that each column is one array. Spark runs a task a core: no further threads.
        read_options=pa_json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != lines:
        raise pa.ArrowInvalid(f"{table.num_rows} messages in {lines} lines")
    return {name: table.column(name).combine_chunks() for name in schema.names}


def _readable_schema(schema: StructType) -> pa.Schema | None:
    """Return the columns for Arrow's reader, None if it cannot read them all."""
    fields = []
    for field in schema:
        if isinstance(field.dataType, DateType):
            fields.append(pa.field(field.name, pa.string()))  # and cast
        elif _is_readable(field.dataType):
            fields.append(pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC")))
        else:
            return None
    return pa.schema(fields)


def _is_readable(data_type: DataType) -> bool:
    match data_type:
        case StructType():
            return all(_is_readable(field.dataType) for field in data_type)
        case ArrayType():
            return _is_readable(data_type.elementType)
        case _:
            return not isinstance(data_type, (MapType, BinaryType, DateType))


def _converter(field: Any) -> Any:
    try:
        return converter(field.dataType)
    except TypeError as error:
        expected = "types that JSON messages can hold"
        raise OptionError("schema", expected, got=f"{field.name}: {error}") from error
