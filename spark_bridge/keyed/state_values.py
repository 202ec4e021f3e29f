"""Values of state as Spark's workers and JVM convert them: what a handler writes, and what it reads back.

    handler's value ─ positions, NumPy scalars ─ fields of the declared types ─► row         StateValues.stored
    row ─► tuple (nested structs as Row, timestamps naive)                                   StateValues.shown

Spark stores null where a value has another type, and says nothing. So do we, but every such value is told to
`ValueLosses`, which counts, or raises. Converters are made once for each schema.

Source: PySpark's stateful_processor_api_client.py (normalisation, `toInternal`) and Spark's EvaluatePython.scala
(makeFromJava: what the JVM takes of a pickled value of another type).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any, Final

import numpy as np
from pyspark.errors import PySparkRuntimeError, PySparkValueError
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
    Row,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

Convert = Callable[[Any], Any]
Lost = Callable[[str, Any, DataType, Any], Any]
"""Takes the path of a field, a value, the declared type and what is stored instead; returns that, or raises."""
_BITS: Final[Mapping[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}
_PLAIN: Final = frozenset({bool, int, float, str, bytes, datetime, type(None)})
_FLOAT: Final = struct.Struct("<f")
_WHOLE: Final = 10_000_000.0
_DECIMAL: Final = Context(prec=76, rounding=ROUND_HALF_UP)
_ZEROS: Final[Mapping[type[DataType], Any]] = {
    BooleanType: False,
    FloatType: 0.0,
    DoubleType: 0.0,
    DateType: date(1970, 1, 1),
    TimestampType: datetime(1970, 1, 1, tzinfo=UTC),
    TimestampNTZType: datetime(1970, 1, 1),  # noqa: DTZ001 - of a type without a zone
    DecimalType: None,
    **dict.fromkeys(_BITS, 0),
}
"""The value as which a null reads back in a field that may not be null; in other fields it ends Spark's query."""


class StateValues:
    """Converts the values of one schema."""

    def __init__(self, schema: StructType, zone: tzinfo, lost: Lost) -> None:
        """Make the converters.

        Args:
            schema: Of the values.
            zone: Of timestamps without one.
            lost: Is told of values that are not stored as they are.
        """
        self.row: Callable[[Sequence[Any]], Row] = partial(_row_of, Row(*schema.names))
        """Makes a named Row of the fields of a value."""
        self._writers = [
            _writer(each.dataType, each.name, zone, lost)
            if each.nullable
            else _required(
                _writer(each.dataType, each.name, zone, lost), each.dataType, each.name, lost
            )
            for each in schema.fields
        ]
        readers = [_reader(each.dataType, zone) for each in schema.fields]
        self._readers = readers if any(readers) else None

    def stored(self, value: Iterable[Any]) -> tuple[Any, ...]:
        """Return the fields to store of a value that a handler writes: a tuple, list or Row, by position.

        Raises:
            TypeError: it cannot be iterated over.
            PySparkRuntimeError: it has another number of fields.
        """
        writers = self._writers
        fields = value if type(value) is tuple else tuple(value)
        if len(fields) != len(writers):
            raise LengthMismatchError(len(fields), len(writers))
        return tuple([write(field) for write, field in zip(writers, fields, strict=True)])

    def shown(self, fields: Sequence[Any]) -> tuple[Any, ...]:
        """Return stored fields as a handler reads them."""
        if self._readers is None:
            return tuple(fields)
        return tuple(
            field if read is None or field is None else read(field)
            for read, field in zip(self._readers, fields, strict=True)
        )


def _row_of(make: Row, fields: Sequence[Any]) -> Row:
    return make(*fields)


class LengthMismatchError(PySparkRuntimeError):
    """A value has another number of fields than its schema."""

    def __init__(self, given: int, expected: int) -> None:
        super().__init__(
            f"[STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values required by the schema. "
            f"{expected} fields are required while {given} values are provided. SQLSTATE: 2201E"
        )


def plain(value: Any) -> Any:
    """Return a value without NumPy's and pandas' scalars, as PySpark's worker does."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.tolist()
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    return value


# -- writing


def _writer(type_: DataType, path: str, zone: tzinfo, lost: Lost) -> Convert:
    bits = _BITS.get(type(type_))
    if bits is not None:
        return _integers(bits, type_, path, lost)
    if isinstance(type_, DoubleType | FloatType):
        return _floats(type_, path, lost)
    if isinstance(type_, StringType):
        return _texts(type_, path, lost)
    if isinstance(type_, BooleanType):
        return _of_type((bool,), type_, path, lost)
    if isinstance(type_, BinaryType):
        return _binary(type_, path, lost)
    if isinstance(type_, DecimalType):
        return _decimals(type_, path, lost)
    if isinstance(type_, DateType):
        return _dates
    if isinstance(type_, TimestampType):
        return _timestamps(zone)
    if isinstance(type_, TimestampNTZType):
        return _naive_times
    return _containers(type_, path, zone, lost)


def _containers(type_: DataType, path: str, zone: tzinfo, lost: Lost) -> Convert:
    if isinstance(type_, ArrayType):
        item = _writer(type_.elementType, f"{path}[]", zone, lost)
        make = _converted_arrays if type_.needConversion() else _arrays
        return make(type_, item, path, lost)
    if isinstance(type_, MapType):
        key = _writer(type_.keyType, f"{path}.key", zone, lost)
        value = _writer(type_.valueType, f"{path}.value", zone, lost)
        return _maps(type_, key, value, path, lost)
    assert isinstance(type_, StructType), "the schema was checked"
    fields = [
        (each.name, _writer(each.dataType, f"{path}.{each.name}", zone, lost))
        for each in type_.fields
    ]
    return _structs(fields)


def _required(write: Convert, type_: DataType, path: str, lost: Lost) -> Convert:
    zero, has_zero = _ZEROS.get(type(type_)), type(type_) in _ZEROS

    def required(value: Any) -> Any:
        stored = write(value)
        if stored is not None:
            return stored
        if not has_zero:
            raise PySparkRuntimeError(
                f"[NULL_IN_NOT_NULL_FIELD] state field {path}: expected {type_.simpleString()} that is not null"
            )
        # Told already, if it became null; a null itself is not.
        return lost(path, value, type_, zero) if value is None else zero

    return required


def _integers(bits: int, type_: DataType, path: str, lost: Lost) -> Convert:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def write(value: Any) -> Any:
        if type(value) is not int:
            value = plain(value)
            if value is None:
                return None
            if type(value) is not int:
                return lost(path, value, type_, None)
        if low <= value <= high:
            return value
        if not -(1 << 63) <= value < 1 << 63:
            return lost(path, value, type_, None)
        wrapped = value & ((1 << bits) - 1)
        return lost(path, value, type_, wrapped - (1 << bits) if wrapped > high else wrapped)

    return write


def _floats(type_: DataType, path: str, lost: Lost) -> Convert:
    is_single = isinstance(type_, FloatType)

    def write(value: Any) -> Any:
        if type(value) is not float:
            value = plain(value)
            if value is None:
                return None
            if isinstance(value, Decimal) and value.is_nan():
                # It reaches the JVM as a floating-point number.
                return math.nan
            if type(value) is not float:
                return lost(path, value, type_, None)
        return _single(value) if is_single else value

    return write


def _single(value: float) -> float:
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def _texts(type_: DataType, path: str, lost: Lost) -> Convert:
    def write(value: Any) -> Any:
        if type(value) is str:
            return value
        value = plain(value)
        if value is None or isinstance(value, str):
            return value
        return lost(path, value, type_, java_text(value))

    return write


def _of_type(types: tuple[type, ...], type_: DataType, path: str, lost: Lost) -> Convert:
    def write(value: Any) -> Any:
        value = plain(value)
        if value is None or isinstance(value, types):
            return value
        return lost(path, value, type_, None)

    return write


def _binary(type_: DataType, path: str, lost: Lost) -> Convert:
    def write(value: Any) -> Any:
        value = plain(value)
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if isinstance(value, str):
            return value.encode()
        return lost(path, value, type_, None)

    return write


def _decimals(type_: DecimalType, path: str, lost: Lost) -> Convert:
    unit = Decimal((0, (1,), -type_.scale))
    bound = Decimal(10) ** (type_.precision - type_.scale)

    def write(value: Any) -> Any:
        value = plain(value)
        if value is None:
            return None
        if not isinstance(value, Decimal):
            return lost(path, value, type_, None)
        try:
            rounded = value.quantize(unit, context=_DECIMAL)
        except InvalidOperation:
            return lost(path, value, type_, None)
        if not rounded.is_finite():
            return lost(path, value, type_, None)
        if abs(rounded) >= bound:
            raise PySparkRuntimeError(
                f"[NUMERIC_VALUE_OUT_OF_RANGE] state field {path}: {value} cannot be represented as "
                f"Decimal({type_.precision}, {type_.scale}). SQLSTATE: 22003"
            )
        return rounded

    return write


def _dates(value: Any) -> Any:
    value = plain(value)
    if value is None:
        return None
    # The error of a value that is no date is Python's, as in Spark.
    return date.fromordinal(value.toordinal())


def _timestamps(zone: tzinfo) -> Convert:
    def write(value: Any) -> Any:
        value = plain(value)
        if value is None:
            return None
        if value.tzinfo is None:
            value = value.replace(tzinfo=zone)
        return value.astimezone(UTC)

    return write


def _naive_times(value: Any) -> Any:
    value = plain(value)
    if value is None:
        return None
    # The fields of the clock, whatever the zone, because the type has none. Errors of other values are Spark's.
    year, month, day, hour, minute, second, *_ = value.timetuple()
    return datetime(year, month, day, hour, minute, second, value.microsecond)  # noqa: DTZ001


def _arrays(type_: DataType, item: Convert, path: str, lost: Lost) -> Convert:
    def write(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            raise PySparkRuntimeError(
                f"state field {path}: expected a list, got a NumPy array, which ends Spark's worker: use .tolist()"
            )
        if not isinstance(value, list | tuple | bytes | bytearray):
            return lost(path, value, type_, None)
        return [item(each) for each in value]

    return write


def _converted_arrays(type_: DataType, item: Convert, path: str, lost: Lost) -> Convert:
    """Return the writer of arrays whose elements Python converts: it iterates over anything, as PySpark does."""

    def write(value: Any) -> Any:
        value = plain(value)
        if value is None:
            return None
        if not value and not isinstance(value, list | tuple):
            return lost(path, value, type_, None)
        return [item(each) for each in value]

    return write


def _maps(type_: DataType, key: Convert, item: Convert, path: str, lost: Lost) -> Convert:
    def write(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            return lost(path, value, type_, None)
        return {key(name): item(each) for name, each in value.items()}

    return write


def _structs(fields: Sequence[tuple[str, Convert]]) -> Convert:
    def write(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            return {name: convert(value.get(name)) for name, convert in fields}
        value = plain(value)
        if not isinstance(value, list | tuple):
            raise PySparkValueError(
                errorClass="UNEXPECTED_TUPLE_WITH_STRUCT", messageParameters={"tuple": str(value)}
            )
        if len(value) != len(fields):
            raise LengthMismatchError(len(value), len(fields))
        return {name: convert(each) for (name, convert), each in zip(fields, value, strict=True)}

    return write


def java_text(value: Any) -> str:
    """Return the text that the JVM makes of a value in a field of text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(java_text, value))}]"
    if isinstance(value, dict):
        entries = (f"{java_text(key)}={java_text(each)}" for key, each in value.items())
        return f"{{{', '.join(entries)}}}"
    return str(value)


def _double_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < _WHOLE:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "it is finite"
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = exponent + len(digits) - 1
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{power}"


# -- reading


def _reader(type_: DataType, zone: tzinfo) -> Convert | None:
    """Return what makes of a stored value, not null, that of a handler; None: it is the same."""
    if isinstance(type_, TimestampType):
        return lambda value: value.astimezone(zone).replace(tzinfo=None)
    if isinstance(type_, ArrayType):
        item = _reader(type_.elementType, zone)
        if item is None:
            return None
        return lambda value: [None if each is None else item(each) for each in value]
    if isinstance(type_, MapType):
        return _map_reader(type_, zone)
    if isinstance(type_, StructType):
        make = Row(*type_.names)
        readers = [(each.name, _reader(each.dataType, zone)) for each in type_.fields]
        return lambda value: make(*(_read(read, value[name]) for name, read in readers))
    return None


def _map_reader(type_: MapType, zone: tzinfo) -> Convert | None:
    key, item = _reader(type_.keyType, zone), _reader(type_.valueType, zone)
    if key is None and item is None:
        return None
    return lambda value: {_read(key, name): _read(item, each) for name, each in value.items()}


def _read(read: Convert | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)
