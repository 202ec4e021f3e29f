"""Values of columns as JSON has them: the form of `KEYED_ENCODING_ROWS`.

integers                 numbers up to 2^53, else text
floating-point numbers   numbers; "NaN", "Infinity", "-Infinity"
decimals                 text
dates, timestamps        text, ISO 8601; a time without a zone is in UTC where the column has one
bytes                    text, base64
lists, structs, maps     lists, objects, lists of objects with `key` and `value`
"""

from __future__ import annotations

import base64
import math
from datetime import date
from decimal import Decimal
from typing import Any, Final

EXACT_MAX: Final = 1 << 53
"""Largest integer up to which JSON's numbers, which are doubles, are exact."""


def plain(value: Any) -> Any:
    """Return a value of Arrow's `to_pylist` as JSON has it."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if abs(value) <= EXACT_MAX else str(value)
        case float():
            return value if math.isfinite(value) else _named(value)
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case date():
            return value.isoformat()
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list():
            return [
                # Entries of maps are the only tuples.
                {"key": plain(each[0]), "value": plain(each[1])}
                if isinstance(each, tuple)
                else plain(each)
                for each in value
            ]
        case _:
            return str(value)


def _named(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain_rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table as JSON has them."""
    rows: list[dict[str, Any]] = plain(table.to_pylist())
    return rows
