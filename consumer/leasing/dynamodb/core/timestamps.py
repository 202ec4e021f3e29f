"""Moments in the notation of vmware-go-kcl: RFC 3339 in UTC, with up to nine digits of fractional seconds.

`datetime` keeps six digits, so moments are whole nanoseconds since the Unix epoch here. What a store compares is always
the text that was read: one moment has many texts.

Source: RFC 3339 §5.6; Go's `time.RFC3339Nano` drops trailing zeros.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

NANOSECONDS: Final = 1_000_000_000
"""In a second."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt](?P<time>\d\d:\d\d:\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))?(?P<zone>[Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)


def nanoseconds_of(moment: str) -> int:
    """Return nanoseconds since the Unix epoch; less than 0 before it.

    Raises:
        ValueError: this is no moment.
    """
    match = _MOMENT.fullmatch(moment)
    if match is None:
        raise ValueError(
            f"expected a moment such as 2026-01-31T12:00:00.5Z (RFC 3339), got {moment!r:.80}"
        )
    zone = match["zone"].upper().replace("Z", "+00:00")
    whole = datetime.fromisoformat(f"{match['date']}T{match['time']}{zone}") - _EPOCH
    seconds = whole.days * 86_400 + whole.seconds
    return seconds * NANOSECONDS + int((match["fraction"] or "").ljust(9, "0"))


def moment_of(nanoseconds: int) -> str:
    """Return the moment in UTC."""
    seconds, fraction = divmod(nanoseconds, NANOSECONDS)
    whole = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    digits = f".{fraction:09}".rstrip("0") if fraction else ""
    return f"{whole}{digits}Z"
