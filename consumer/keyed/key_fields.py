"""Fields of keys from JSON, in the form of `broadsheet.consumer.keyed.plain_values`.

Numbers and truth values may be text, too, as they are on a command line.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from broadsheet.consumer.keyed.plain_values import EXACT_MAX
from broadsheet.runtime.errors import ValidationError

_DIGITS: Final = re.compile(r"-?[0-9]{1,20}")
_TRUTHS: Final = {"true": True, "false": False}
_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def fields_of(values: Sequence[Any], schema: pa.Schema, path: str) -> list[Any]:
    """Return the fields of a key, or its leading ones, from JSON.

    Args:
        values: As JSON has them.
        schema: Of the key.
        path: For errors.

    Raises:
        ValidationError: a field is of another type. Whether there are as many as there should be is not checked.
    """
    known = list(schema)[: len(values)]
    fields = []
    for field, value in zip(known, values, strict=False):
        try:
            fields.append(None if value is None else _READERS[_kind(field.type)](value, field.type))
        except (TypeError, ValueError, OverflowError, InvalidOperation) as error:
            expected = _EXPECTED[_kind(field.type)]
            raise ValidationError(
                f"{path}.{field.name}",
                f"expected {field.type}, as {expected}; got {value!r:.80}",
            ) from error
    return [*fields, *values[len(known) :]]


def _kind(type_: pa.DataType) -> str:
    types = pa.types
    for kind, matches in _KINDS:
        if matches(type_):
            return kind
    assert types.is_string(type_) or types.is_large_string(type_), "as `KeyCodec` has keys"
    return "text"


_KINDS: Final[Sequence[tuple[str, Callable[[pa.DataType], bool]]]] = (
    ("bool", pa.types.is_boolean),
    ("int", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("bytes", lambda type_: pa.types.is_binary(type_) or pa.types.is_large_binary(type_)),
    ("date", pa.types.is_date32),
    ("time", pa.types.is_timestamp),
    ("decimal", pa.types.is_decimal),
)


def _text(value: Any, _: pa.DataType) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _bool(value: Any, _: pa.DataType) -> bool:
    if isinstance(value, str) and value in _TRUTHS:
        return _TRUTHS[value]
    if not isinstance(value, bool):
        raise TypeError("no truth value")
    return value


def _int(value: Any, type_: pa.DataType) -> int:
    if isinstance(value, bool):
        raise TypeError("a truth value")
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value):
            raise ValueError("no digits")
        return int(value)
    if isinstance(value, float) and (not value.is_integer() or abs(value) > EXACT_MAX):
        raise ValueError("no integer that a number of JSON is exact for")
    del type_
    return int(value)


def _float(value: Any, _: pa.DataType) -> float:
    if isinstance(value, bool):
        raise TypeError("a truth value")
    if isinstance(value, str):
        return _NUMBERS[value] if value in _NUMBERS else float(value)
    if not isinstance(value, int | float):
        raise TypeError("no number")
    return float(value)


def _bytes(value: Any, type_: pa.DataType) -> bytes:
    try:
        return base64.b64decode(_text(value, type_), validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error


def _date(value: Any, type_: pa.DataType) -> date:
    return date.fromisoformat(_text(value, type_))


def _time(value: Any, type_: pa.DataType) -> datetime:
    time = datetime.fromisoformat(_text(value, type_))
    if type_.tz is None:
        return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _decimal(value: Any, _: pa.DataType) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("no number")
    return Decimal(str(value))


_READERS: Final[dict[str, Callable[[Any, pa.DataType], Any]]] = {
    "text": _text,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "bytes": _bytes,
    "date": _date,
    "time": _time,
    "decimal": _decimal,
}
_EXPECTED: Final = {
    "text": "text",
    "bool": "true or false",
    "int": "a number, or text of digits beyond 2^53",
    "float": 'a number, "NaN", "Infinity" or "-Infinity"',
    "bytes": "text in base64",
    "date": 'text such as "2030-01-31"',
    "time": 'text such as "2030-01-31T12:00:00+00:00"',
    "decimal": "text of digits, or a number",
}
