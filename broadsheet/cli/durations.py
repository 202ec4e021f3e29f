"""Durations as they are written in specs and options: `1s`, `250ms`, `1m30s`.

Source: the syntax is that of Go's `time.ParseDuration`, which Gazette's YAML uses.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

from google.protobuf.duration_pb2 import Duration

from broadsheet.runtime.errors import ValidationError

_NANOSECONDS_BY_UNIT = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_TERM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def parse_duration(text: str, field_path: str) -> Duration:
    """Return the duration that `text` denotes.

    Raises:
        ValidationError: `text` is no duration; the message names `field_path`.
    """
    unsigned = text.removeprefix("-")
    terms = list(_TERM.finditer(unsigned))
    if unsigned != "0" and (not terms or "".join(term.group() for term in terms) != unsigned):
        raise ValidationError(
            field_path, f"expected a duration such as 500ms, 1s or 1m30s, got {text!r}"
        )
    nanoseconds = sum(
        int(Decimal(term.group(1)) * _NANOSECONDS_BY_UNIT[term.group(2)]) for term in terms
    )
    duration = Duration()
    duration.FromNanoseconds(-nanoseconds if text.startswith("-") else nanoseconds)
    return duration


def format_duration(duration: Duration) -> str:
    """Return the shortest text that `parse_duration` reads back; empty for zero."""
    nanoseconds = duration.ToNanoseconds()
    if nanoseconds == 0:
        return ""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest < _NANOSECONDS_BY_UNIT["s"]:
        return sign + _below_a_second(rest)
    hours, rest = divmod(rest, _NANOSECONDS_BY_UNIT["h"])
    minutes, rest = divmod(rest, _NANOSECONDS_BY_UNIT["m"])
    seconds = Decimal(rest) / _NANOSECONDS_BY_UNIT["s"]
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    return sign + "".join(parts) + (f"{seconds.normalize():f}s" if seconds else "")


def _below_a_second(nanoseconds: int) -> str:
    for unit in ("ms", "us", "ns"):
        amount = Decimal(nanoseconds) / _NANOSECONDS_BY_UNIT[unit]
        if amount >= 1:
            return f"{amount.normalize():f}{unit}"
    raise AssertionError("a positive duration has at least one nanosecond")


def instant_before(age: str, option: str) -> datetime:
    """Return the time that was so long ago.

    Raises:
        ValidationError: `age` is no duration; the message names the option.
    """
    return datetime.now(UTC) - parse_duration(age, option).ToTimedelta()
