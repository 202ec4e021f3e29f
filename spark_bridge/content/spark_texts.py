"""Values of JSON texts as Spark's own JSON reader gives them, one by one and a column of them at once.

Both ways accept the same texts and give the same values, so that a value does not depend on the messages beside it.

Source: apache/spark sql/catalyst JacksonParser; DateTimeUtils (stringToTimestamp, stringToDate).
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.spark_bridge.content.time_zones import zone_of

_DATE: Final = r"(\d{4})(?:-(\d\d?)(?:-(\d\d?)"
# With colons as Spark has it; and without, as Arrow's parser of columns takes it, too.
_TIMES: Final = (
    r"(?:(\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d*))?)?|(\d\d)(?:(\d\d)(?:(\d\d)(?:\.(\d*))?)?)?)"
)
_TIMESTAMP: Final = re.compile(rf"\s*{_DATE}(?:[ T]{_TIMES}\s*([^\d\s:.].*?)?)?)?)?\s*", re.ASCII)
_DAY: Final = re.compile(rf"\s*{_DATE}(?:[ T].*)?)?)?\s*", re.ASCII | re.DOTALL)
_ZONED: Final = re.compile(r"[T ].*(?:Z|[+-]\d\d(?::?\d\d)?)$", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_TRANSITIONS_YEAR_MAX: Final = 2037
"""Arrow knows no summer time behind the last transition that the files of time zones list."""
_ROUNDING: Final = Context(prec=100, rounding=ROUND_HALF_UP)
_NOT_FINITE: Final = {
    "NaN": "nan",
    "Infinity": "inf",
    "+Infinity": "inf",
    "+INF": "inf",
    "-Infinity": "-inf",
    "-INF": "-inf",
}


def timestamp_of(text: str, zone: tzinfo) -> datetime:
    """Return an instant; a text without a zone is local time of `zone`.

    Raises:
        ValueError: it is no timestamp.
    """
    local, own = _local_time(text)
    # By UTC, because a datetime of a zone with a gap or an overlap compares and prints otherwise.
    return local.replace(tzinfo=own or zone).astimezone(UTC)


def local_timestamp_of(text: str) -> datetime:
    """Return a local time.

    Raises:
        ValueError: it is no timestamp, or has a zone, which would be lost.
    """
    local, own = _local_time(text)
    if own is not None:
        raise ValueError(f"expected a timestamp without a zone, got {text:.60}")
    return local


def date_of(text: str) -> date:
    """Return a day; a time after it is ignored.

    Raises:
        ValueError: it is no date.
    """
    found = _DAY.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a date, got {text:.60}")
    year, month, day = found.groups()
    return date(int(year), int(month or 1), int(day or 1))


def decimal_of(text: str, *, precision: int, scale: int) -> Decimal:
    """Return a decimal number, half a unit rounded away from zero.

    Raises:
        ValueError: it is no number, or has too many digits before the point.
    """
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"expected a decimal number, got {text:.60}")
    number = Decimal(text)
    whole = precision - scale
    # Judged first, because 1e999999999 must not be expanded.
    if number and number.adjusted() >= whole:
        raise ValueError(f"expected decimal({precision},{scale}), got {text:.60}")
    unit = Decimal(1).scaleb(-scale)
    rounded = _ROUNDING.quantize(number, unit)
    if abs(rounded) >= Decimal(10) ** whole:
        raise ValueError(f"expected decimal({precision},{scale}), got {text:.60}")
    return rounded


def floating_of_name(text: str) -> float:
    """Return the value of a name of a number that JSON has not.

    Raises:
        ValueError: it is none.
    """
    if text not in _NOT_FINITE:
        raise ValueError(f"expected a number, got {text:.60}")
    return float(_NOT_FINITE[text])


def timestamps_of(texts: Any, kind: pa.DataType, zone: tzinfo) -> Any:
    """Return a string column's timestamps of an Arrow type, by the rules above. `Any`: an Arrow array.

    Raises:
        pa.ArrowInvalid: a text is none, or its value must be found by itself.
    """
    # Arrow refuses a zone for a type without one, and its absence for a type with one. The first text says which it
    # will be, because a refusal takes a hundred times as long. If texts differ, they are read one by one.
    if kind.tz is None or _first_has_zone(texts):
        return texts.cast(kind)
    name = "UTC" if zone is UTC else getattr(zone, "key", None)
    if name is None:
        raise pa.ArrowInvalid(f"{zone} is no region")
    local = texts.cast(pa.timestamp(kind.unit))
    last = pc.max(local).as_py()
    if name != "UTC" and last is not None and last.year > _TRANSITIONS_YEAR_MAX:
        raise pa.ArrowInvalid(f"Arrow has no summer time of {last.year}")
    return pc.assume_timezone(local, name, ambiguous="raise", nonexistent="raise").cast(kind)


def _first_has_zone(texts: Any) -> bool:
    valid = texts.is_valid().index(True).as_py()
    return valid >= 0 and _ZONED.search(texts[valid].as_py()) is not None


def _local_time(text: str) -> tuple[datetime, tzinfo | None]:
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a timestamp, got {text:.60}")
    year, month, day, *times, zone = found.groups()
    hour, minute, second, fraction = times[:4] if times[0] else times[4:]
    # Digits beyond microseconds are dropped.
    microsecond = int((fraction or "")[:6].ljust(6, "0"))
    local = datetime(  # noqa: DTZ001 - its zone is the caller's, or there is none
        int(year),
        int(month or 1),
        int(day or 1),
        int(hour or 0),
        int(minute or 0),
        int(second or 0),
        microsecond,
    )
    return local, None if zone is None else zone_of(zone)
