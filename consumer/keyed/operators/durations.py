"""Lengths of time as text: `10m`, `250 ms`, `1h30m`, `2 hours`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from broadsheet.runtime.errors import ValidationError

Duration = int | str | timedelta
"""Milliseconds, text such as `10m`, or a timedelta."""
_PART: Final = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.IGNORECASE)
_MS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400_000),
}
_MS_MAX: Final = 1 << 60
"""Sums of a time and a length must fit into 64 bits."""
_SHOWN: Final = (
    ("w", 604_800_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
)


def duration_ms(field: str, given: Duration, *, least: int | None = None) -> int:
    """Return a length of time in milliseconds.

    Args:
        field: What errors name.
        given: The length.
        least: Milliseconds at least; None: it may be negative.

    Raises:
        ValidationError: it is none, has a fraction of a millisecond, or is shorter than `least`.
    """
    found = _parsed(field, given)
    if found != int(found):
        raise ValidationError(field, f"expected whole milliseconds, got {given!r}")
    if least is not None and found < least:
        raise ValidationError(field, f"expected at least {shown_duration(least)}, got {given!r}")
    if abs(found) > _MS_MAX:
        raise ValidationError(field, f"expected at most {_MS_MAX} ms, got {given!r}")
    return int(found)


def shown_duration(ms: int) -> str:
    """Return a length of time as short text."""
    rest, parts = abs(ms), []
    for unit, size in _SHOWN:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if ms < 0 else "") + ("".join(parts) or "0s")


def _parsed(field: str, given: Duration) -> float:
    if isinstance(given, timedelta):
        return given / timedelta(milliseconds=1)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    wrong = ValidationError(
        field, f"expected a length of time such as '10m', '1h30m' or 250 (ms), got {given!r}"
    )
    if not isinstance(given, str):
        raise wrong
    total, at, sign = 0.0, 0, 1
    text = given.strip()
    if text.startswith("-"):
        sign, text = -1, text[1:]
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match[2].lower() not in _MS:
            raise wrong
        total += float(match[1]) * _MS[match[2].lower()]
        at = match.end()
    if not text:
        raise wrong
    return sign * total
