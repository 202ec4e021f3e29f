"""Intervals as Spark writes them, such as the delay of a watermark: "10 seconds", "1 hour 30 minutes"."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Final

from broadsheet.runtime.errors import ValidationError

_UNITS: Final = {
    "microsecond": Fraction(1, 1000),
    "millisecond": Fraction(1),
    "second": Fraction(1000),
    "minute": Fraction(60_000),
    "hour": Fraction(3_600_000),
    "day": Fraction(86_400_000),
    "week": Fraction(7 * 86_400_000),
}
_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?(?=\s|\d|$)", re.IGNORECASE)


def milliseconds_of(interval: str | int | timedelta, field: str) -> int:
    """Return an interval in milliseconds, rounded down.

    Args:
        interval: Text as Spark takes it, milliseconds, or a timedelta.
        field: Names it in errors.

    Raises:
        ValidationError: it is none, or is negative.
    """
    if isinstance(interval, timedelta):
        number = interval // timedelta(milliseconds=1)
    elif isinstance(interval, str):
        number = _parsed(interval, field)
    else:
        number = interval
    if type(number) is not int or number < 0:
        raise ValidationError(field, f"expected milliseconds, from 0 on, got {interval!r}")
    return number


def _parsed(text: str, field: str) -> int:
    rest = text.strip()
    if rest.lower().startswith("interval "):
        rest = rest[len("interval ") :].strip()
    total, at = Fraction(0), 0
    while at < len(rest):
        match = _PART.match(rest, at)
        unit = None if match is None else _UNITS.get(match[2].lower())
        if match is None or unit is None:
            break
        total += Fraction(match[1]) * unit
        at = match.end()
    if not rest or at < len(rest):
        raise ValidationError(
            field,
            f"expected an interval such as '10 seconds' or '1 hour 30 minutes', in {', '.join(_UNITS)}s; got {text!r}",
        )
    return int(total)
