"""JSON lines into Arrow: a whole batch by Arrow's reader, or value by value where that cannot.

Arrow reads numbers, strings, booleans, times, lists and structs at some hundred MB/s. Maps, binaries and the like it
does not know, and a number where a string is due it refuses; such a batch is read by `json_values`, which either reads
it or says where the culprit stands.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from consumer.errors import FramingError
from spark_bridge.format_options import OptionError
from spark_bridge.journal_source.byte_runs import Content
from spark_bridge.journal_source.columns import Columns, metadata_columns
from spark_bridge.journal_source.damage import corrupt_column
from spark_bridge.journal_source.line_tables import bounds_of_lines, uuids_of_lines

# JSON values as Spark's types, one by one: for what Arrow's JSON reader cannot read, or would not
# take.
#
# Pure.

Convert: TypeAlias = Callable[[bytes], Any]
"""Returns the Python value of a JSON text that is not null; raises ValueError."""
_INT_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}
_BEYOND: Final = 1 << 64
"""Of whole numbers; 1e999999999 is not to be written out."""
_NOT_FINITE: Final = {b'"NaN"': "nan", b'"Infinity"': "inf", b'"-Infinity"': "-inf"}
"""As Spark's JSON writer writes them."""
_text = msgspec.json.Decoder(str).decode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_boolean = msgspec.json.Decoder(bool).decode


def fields_of(payload: bytes) -> dict[str, msgspec.Raw]:
    """Return the undecoded values of a JSON object by name.

    Raises:
        ValueError: it is none.
    """
    return _object(payload)


def converter(data_type: DataType) -> Convert:
    """Return what makes values of a type of JSON texts.

    Raises:
        TypeError: JSON has nothing for this type.
    """
    match data_type:
        case StructType():
            return _struct(data_type)
        case ArrayType():
            element = nullable(converter(data_type.elementType))
            return lambda text: [element(raw) for raw in _array(text)]
        case MapType(keyType=StringType()):
            value = nullable(converter(data_type.valueType))
            return lambda text: [(key, value(raw)) for key, raw in _object(text).items()]
        case DecimalType():
            return _decimal(data_type)
        case ByteType() | ShortType() | IntegerType() | LongType():
            return _integer(_INT_BITS[type(data_type)])
    convert = _SCALARS.get(type(data_type))
    if convert is None:
        raise TypeError(f"JSON has nothing for {data_type.simpleString()}")
    return convert


def nullable(convert: Convert) -> Callable[[msgspec.Raw | bytes | None], Any]:
    """Return the converter for texts that may be absent or null."""

    def converted(raw: msgspec.Raw | bytes | None) -> Any:
        if raw is None:
            return None
        text = bytes(raw)
        return None if text == b"null" else convert(text)

    return converted


def _struct(data_type: StructType) -> Convert:
    members = [(f.name, nullable(converter(f.dataType))) for f in data_type]

    def converted(text: bytes) -> Any:
        values = _object(text)
        return {name: convert(values.get(name)) for name, convert in members}

    return converted


def _string(text: bytes) -> str:
    """Return a string, or any other value as it is written: so does Spark."""
    return _text(text) if text.startswith(b'"') else text.decode()


def _integer(bits: int) -> Convert:
    bound = 1 << (bits - 1)

    def converted(text: bytes) -> int:
        number = _whole(text)
        if not -bound <= number < bound:
            raise ValueError(f"expected a whole number of {bits} bits, got {_shown(text)}")
        return number

    return converted


def _whole(text: bytes) -> int:
    if text.lstrip(b"-").isdigit():
        return int(text)
    try:
        number = Decimal(text.decode())  # 12.0 or 1e3
    except InvalidOperation as error:
        raise ValueError(f"expected a whole number, got {_shown(text)}") from error
    if not -_BEYOND < number < _BEYOND or number != number.to_integral_value():
        raise ValueError(f"expected a whole number, got {_shown(text)}")
    return int(number)


def _decimal(data_type: DecimalType) -> Convert:
    unit = Decimal(1).scaleb(-data_type.scale)
    bound = Decimal(10) ** (data_type.precision - data_type.scale)

    def converted(text: bytes) -> Decimal:
        try:
            number = Decimal(_string(text)).quantize(unit)
        except InvalidOperation as error:
            raise ValueError(f"expected a decimal number, got {_shown(text)}") from error
        if abs(number) >= bound:
            raise ValueError(f"expected {data_type.simpleString()}, got {_shown(text)}")
        return number

    return converted


def _floating(text: bytes) -> float:
    if text[:1] in b'"tf[{':
        if text not in _NOT_FINITE:
            raise ValueError(f"expected a number, got {_shown(text)}")
        return float(_NOT_FINITE[text])
    return float(text)


def _timestamp(text: bytes) -> datetime:
    time = datetime.fromisoformat(_text(text))
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _local_timestamp(text: bytes) -> datetime:
    return datetime.fromisoformat(_text(text)).replace(tzinfo=None)


def _date(text: bytes) -> date:
    return datetime.fromisoformat(_text(text)).date()


def _binary(text: bytes) -> bytes:
    return b64decode(_text(text), validate=True)


def _shown(text: bytes) -> str:
    return text[:60].decode(errors="replace")


_SCALARS: Final[dict[type[DataType], Convert]] = {
    BooleanType: _boolean,
    StringType: _string,
    FloatType: _floating,
    DoubleType: _floating,
    TimestampType: _timestamp,
    TimestampNTZType: _local_timestamp,
    DateType: _date,
    BinaryType: _binary,
}


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
