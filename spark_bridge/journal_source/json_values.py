"""JSON values as Spark's types, one by one: for what Arrow's JSON reader cannot read, or would not take.

Pure.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import msgspec
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
