"""Decodes JSON lines into Arrow batches.

Arrow's reader decodes numbers, strings, booleans, times, lists and structs at some hundred MB/s. It knows neither maps
nor binaries, and refuses a number where a string is expected. Such a batch is decoded value by value, which either
succeeds or names the invalid value.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
from pyspark.sql.pandas.types import from_arrow_type
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from broadsheet.journals.content.json import json_uuid_of
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.json_columns import doubles_of, read_lines
from broadsheet.journals.message.json_errors import why_not_json
from broadsheet.journals.message.json_tables import may_be_rounded, rounded_integer
from broadsheet.spark_bridge.arrow_schema import arrow_schema_of
from broadsheet.spark_bridge.content.frames import is_message
from broadsheet.spark_bridge.content.json_lines import JsonLines
from broadsheet.spark_bridge.content.registry import Inference, SparkContent, Tables
from broadsheet.spark_bridge.content.spark_texts import (
    date_of,
    decimal_of,
    floating_of_name,
    local_timestamp_of,
    timestamp_of,
    timestamps_of,
)
from broadsheet.spark_bridge.content.time_zones import session_zone
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.columns import RowColumns, metadata_columns
from broadsheet.spark_bridge.journal_source.damage import corrupt_column
from broadsheet.spark_bridge.journal_source.line_tables import (
    LineTables,
    LineTablesAroundDamage,
    bounds_of_lines,
    uuids_of_lines,
)
from broadsheet.spark_bridge.journal_source.options import ReadMode, ReadOptions

if TYPE_CHECKING:
    from broadsheet.spark_bridge.journal_sink.options import WriteOptions
    from broadsheet.spark_bridge.journal_source.message_table import UuidOf
    from broadsheet.wire.journal_pb2 import LabelSet

# ---- Single values: what Arrow's JSON reader cannot read, or refuses -------------------------------

Convert: TypeAlias = Callable[[bytes], Any]
"""Returns the Python value of a JSON text that is not null; raises ValueError."""
_INT_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}
_BEYOND: Final = 1 << 64
"""Bound of exponents of whole numbers, because 1e999999999 must not be expanded."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_text = msgspec.json.Decoder(str).decode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_boolean = msgspec.json.Decoder(bool).decode


def fields_of(payload: bytes) -> dict[str, msgspec.Raw]:
    """Return the undecoded values of a JSON object by name.

    Raises:
        ValueError: the text is not a JSON object.
    """
    return _object(payload)


def converter(data_type: DataType, zone: tzinfo = UTC) -> Convert:
    """Return the converter of JSON texts to values of a type.

    Args:
        data_type: Spark's.
        zone: Of timestamps that name none.

    Raises:
        TypeError: JSON cannot represent this type.
    """
    match data_type:
        case StructType():
            return _struct(data_type, zone)
        case ArrayType():
            element = nullable(converter(data_type.elementType, zone))
            return lambda text: [element(raw) for raw in _array(text)]
        case MapType(keyType=StringType()):
            value = nullable(converter(data_type.valueType, zone))
            return lambda text: [(key, value(raw)) for key, raw in _object(text).items()]
        case DecimalType():
            return _decimal(data_type)
        case TimestampType():
            return _timestamp(zone)
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


def _struct(data_type: StructType, zone: tzinfo) -> Convert:
    members = [(f.name, nullable(converter(f.dataType, zone))) for f in data_type]

    def converted(text: bytes) -> Any:
        values = _object(text)
        return {name: convert(values.get(name)) for name, convert in members}

    return converted


def _string(text: bytes) -> str:
    """Return a string, or the JSON text of any other value, as Spark does."""
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
    precision, scale = data_type.precision, data_type.scale

    def converted(text: bytes) -> Decimal:
        # Spark leaves out commas in texts, which group thousands where it is set up for the United States.
        number = _text(text).replace(",", "") if text[:1] == b'"' else text.decode()
        return decimal_of(number, precision=precision, scale=scale)

    return converted


def _floating(text: bytes) -> float:
    if text[:1] == b'"':
        return floating_of_name(_text(text))
    if text[:1] in b"tf[{":
        raise ValueError(f"expected a number, got {_shown(text)}")
    return float(text)


def _timestamp(zone: tzinfo) -> Convert:
    def converted(text: bytes) -> datetime:
        # Seconds since 1970, as for Spark.
        if text.lstrip(b"-").isdigit():
            return _EPOCH + timedelta(seconds=int(text))
        return timestamp_of(_text(text), zone)

    return converted


def _local_timestamp(text: bytes) -> datetime:
    return local_timestamp_of(_text(text))


def _date(text: bytes) -> date:
    return date_of(_text(text))


def _binary(text: bytes) -> bytes:
    return b64decode(_text(text), validate=True)


def _shown(text: bytes) -> str:
    return text[:60].decode(errors="replace")


_SCALARS: Final[dict[type[DataType], Convert]] = {
    BooleanType: _boolean,
    StringType: _string,
    FloatType: _floating,
    DoubleType: _floating,
    TimestampNTZType: _local_timestamp,
    DateType: _date,
    BinaryType: _binary,
}


class JsonDecoder:
    """Decodes one journal's JSON lines into Arrow batches."""

    def __init__(self, columns: RowColumns, *, permissive: bool, zone: tzinfo = UTC) -> None:
        """Select the columns.

        Args:
            columns: Of the batches.
            zone: Of timestamps that name none.
            permissive: Whether a value that does not fit its column becomes null instead of an error, and a message
                that is no JSON object a row of nulls.

        Raises:
            OptionError: JSON cannot represent a column.
        """
        self._columns = columns
        self._permissive = permissive
        self._zone = zone
        self._converters = {f.name: nullable(_converter(f, zone)) for f in columns.of_messages}
        self._readable = _readable_schema(columns.of_messages)
        self._arrow_fields = arrow_schema_of(columns.of_messages)

    @staticmethod
    def whole_bytes(data: bytes) -> int:
        """Return how many bytes are whole lines."""
        return data.rfind(b"\n") + 1

    def decode(self, content: FetchedContent) -> pa.RecordBatch:
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

    def _read(self, content: FetchedContent, starts: Any, stops: Any) -> dict[str, pa.Array]:
        if not self._columns.of_messages.fields:
            return {}
        if self._readable is not None:
            try:
                values = _read_at_once(content.data, self._readable, len(starts))
                return {
                    f.name: _typed(values[f.name], f.type, self._zone) for f in self._arrow_fields
                }
            except pa.ArrowInvalid:
                pass  # read value by value instead, which finds the invalid value
        return self._read_one_by_one(content, starts, stops)

    def _read_one_by_one(
        self, content: FetchedContent, starts: Any, stops: Any
    ) -> dict[str, pa.Array]:
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
                raise ValueError(why_not_json(payload, error)) from error
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


def _typed(values: Any, kind: pa.DataType, zone: tzinfo) -> Any:
    if pa.types.is_timestamp(kind):
        return timestamps_of(values, kind, zone)
    # Within structs and lists, a timestamp without a zone is refused here and found one by one.
    return values.cast(kind)


def _read_at_once(data: bytes, schema: pa.Schema, lines: int) -> dict[str, pa.Array]:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:  # Arrow's reader would pass the bytes on as text
            raise pa.ArrowInvalid(str(error)) from error
    table = read_lines(data, lines, schema)
    return {name: table.column(name).combine_chunks() for name in schema.names}


def _readable_schema(schema: StructType) -> pa.Schema | None:
    """Return the schema for Arrow's reader; None if it cannot read every column."""
    if not all(_is_readable(field.dataType) for field in schema):
        return None
    return pa.schema(
        pa.field(field.name, _as_read(field.type)) for field in arrow_schema_of(schema)
    )


def _as_read(kind: pa.DataType) -> pa.DataType:
    """Return the type to read a column as: times as texts, because Arrow's JSON reader drops zones or takes UTC."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _as_read(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_read(kind.value_type))
    return kind


def _is_readable(data_type: DataType) -> bool:
    match data_type:
        case StructType():
            return all(_is_readable(field.dataType) for field in data_type)
        case ArrayType():
            return _is_readable(data_type.elementType)
        case _:
            return not isinstance(data_type, (MapType, BinaryType))


def _converter(field: Any, zone: tzinfo) -> Any:
    try:
        return converter(field.dataType, zone)
    except TypeError as error:
        expected = "types that JSON messages can hold"
        raise OptionError("schema", expected, got=f"{field.name}: {error}") from error


# ---- The content type ------------------------------------------------------------------------------

_META: Final = "_meta"


def _uuid_of(journal: str, options: ReadOptions) -> UuidOf:
    del journal, options
    return json_uuid_of


def _decoder(journal: str, options: ReadOptions, columns: RowColumns) -> JsonDecoder:
    del journal
    permissive = options.mode is ReadMode.PERMISSIVE
    return JsonDecoder(columns, permissive=permissive, zone=session_zone(options.time_zone))


def _encoder(schema: StructType, options: WriteOptions, labels: LabelSet) -> JsonLines:
    del labels
    return JsonLines(schema, ignore_null_fields=options.ignore_null_fields)


def _inference(journal: str, options: ReadOptions) -> Inference:
    del journal, options
    return infer_json


def _tables(journal: str, read_around: bool) -> Tables:
    return LineTablesAroundDamage(journal) if read_around else LineTables(journal)


def infer_json(samples: list[bytes], strict: bool) -> StructType:
    """Return the columns of JSON messages; see `Inference`."""
    lines = b"".join(
        line + b"\n"
        for sample in samples
        # The last line may be cut off by the size of the sample.
        for line in sample.split(b"\n")[:-1]
        if is_message(line, json_uuid_of, strict=strict)
    )
    if not lines:
        return StructType([])
    try:
        sample = pa_json.read_json(pa.BufferReader(lines))
    except pa.ArrowInvalid as error:
        expected = f"columns as DDL, for the first messages do not agree ({error})"
        raise OptionError("schema", expected, got=None) from error
    found = sample.schema
    if any(map(may_be_rounded, doubles_of(sample))):
        _check_integers(lines, pa.struct(list(found)))
    return StructType(
        [StructField(f.name, from_arrow_type(_settled(f.type))) for f in found if f.name != _META]
    )


def _check_integers(lines: bytes, kind: pa.DataType) -> None:
    """Refuse integers that the inferred columns would round.

    Raises:
        OptionError: there is one.
    """
    for value in msgspec.json.Decoder().decode_lines(lines):
        if rounded := rounded_integer(value, kind):
            expected = f"columns as DDL, with DECIMAL(38, 0) or DOUBLE where {rounded}"
            raise OptionError("schema", expected, got=None)


def _settled(kind: pa.DataType) -> pa.DataType:
    """Return the column's type for an inferred one: times are strings, as in Spark's JSON source, and so are nulls."""
    if pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _settled(f.type)) for f in kind])
    return kind


CONTENT: Final = SparkContent(
    uuid_of=_uuid_of,
    decoder=_decoder,
    encoder=_encoder,
    inference=_inference,
    tables=_tables,
)
