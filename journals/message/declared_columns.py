"""JSON messages as columns of a declared schema, in the forms that publishers write.

JSON has texts and numbers. Publishers write bytes in base 64, dates as texts, decimals as texts or numbers, and numbers
that are not finite as the texts `NaN`, `Infinity` and `-Infinity`. Arrow's reader knows none of these texts.

Needs pyarrow, which is imported at first use.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broadsheet.journals.message.json_columns import read_lines

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_FINITE: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_exact = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode


def declared_table(
    content: bytes | memoryview, payloads: Sequence[bytes], schema: pa.Schema
) -> pa.Table:
    """Return JSON objects as the columns of a schema.

    Args:
        content: The objects, one a line.
        payloads: The same, one by one.
        schema: The columns.

    Raises:
        pyarrow.ArrowException: a value does not fit its column.
    """
    import pyarrow as pa

    read_as = pa.schema(
        [field.with_type(pa.string()) if _is_text(field.type) else field for field in schema]
    )
    by_value: list[str] = []
    try:
        table = read_lines(content, len(payloads), read_as)
    except pa.ArrowInvalid:
        by_value = [field.name for field in schema if _exact_value_of(field.type) is not None]
        if not by_value:
            raise
        others = pa.schema([field for field in read_as if field.name not in by_value])
        table = read_lines(content, len(payloads), others)
    columns = [
        _by_value(payloads, field)
        if field.name in by_value
        else _typed(table.column(field.name), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_date(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    )


def _typed(column: Any, kind: Any) -> Any:
    """Return texts as the values that they stand for."""
    import pyarrow as pa

    if not _is_text(kind):
        return column
    if pa.types.is_date(kind):
        return column.cast(kind)
    try:
        values = [
            None if text is None else base64.b64decode(text, validate=True)
            for text in column.to_pylist()
        ]
    except ValueError as error:
        raise pa.ArrowInvalid(f"a binary column takes base 64: {error}") from error
    return pa.array(values, kind)


def _by_value(payloads: Sequence[bytes], field: pa.Field) -> Any:
    """Return a column of numbers, some of which are texts."""
    import pyarrow as pa

    convert = _exact_value_of(field.type)
    assert convert is not None, "only such columns are read by value"
    try:
        values = [_exact(payload).get(field.name) for payload in payloads]
        return pa.array([None if each is None else convert(each) for each in values], field.type)
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise pa.ArrowInvalid(f"column {field.name}: {error}") from error


def _exact_value_of(kind: Any) -> Callable[[Any], Any] | None:
    """Return the conversion of a JSON value to a number of a type; None if Arrow's reader knows all of its forms."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return _decimal
    return _floating if pa.types.is_floating(kind) else None


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
        raise TypeError(f"expected a number or its text, got {value!r:.60}")
    return Decimal(value)


def _floating(value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(_NOT_FINITE[value])
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise TypeError(f"expected a number, got {value!r:.60}")
    return float(value)
