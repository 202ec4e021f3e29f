"""Metadata of a Read.

    client → broker   `broadsheet-tail`     "brief": content that continues the open fragment, and reaches the write
                                            head, may come without a message that describes the fragment again
                      `broadsheet-linger`   "50": once something is appended, wait this many milliseconds for more
                                            before it is sent, if the reader is at the write head; 0 to 250

Brokers that do not know the first describe the fragment before each content; then a tailing reader is woken twice for
each append. Content that comes alone ends at the end of the fragment and at the write head. Brokers that do not know
the second send appended content at once.

Source: Kafka's `fetch.max.wait.ms` (a reader that can wait is sent more at a time).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from broadsheet.runtime.errors import ValidationError

TAIL: Final = "broadsheet-tail"
BRIEF: Final = "brief"
BRIEF_TAIL: Final = (TAIL, BRIEF)
"""Metadata of a reader that accepts brief messages at the tail."""
LINGER: Final = "broadsheet-linger"
LINGER_SECONDS_MAX: Final = 0.25
"""Longest time for which the end of a stream may have to wait."""
Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]] | None"


def takes_brief_tail(metadata: Metadata) -> bool:
    """Tell whether a call carries `BRIEF_TAIL`."""
    return BRIEF_TAIL in (metadata or ())


def check_linger(seconds: float) -> float:
    """Return a valid linger time, seconds.

    Raises:
        ValidationError: it is not from 0 to `LINGER_SECONDS_MAX`.
    """
    if not 0 <= seconds <= LINGER_SECONDS_MAX:
        raise ValidationError(
            "linger_seconds", f"expected 0 to {LINGER_SECONDS_MAX:g} seconds, got {seconds:g}"
        )
    return seconds


def metadata_of_linger(seconds: float) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a reader that lingers this long, in whole milliseconds; none for zero."""
    milliseconds = round(check_linger(seconds) * 1000)
    return ((LINGER, str(milliseconds)),) if milliseconds else ()


def linger_seconds_of(metadata: Metadata) -> float:
    """Return the linger time of a call, seconds.

    Raises:
        ValidationError: the call says something else than whole milliseconds up to the maximum.
    """
    for key, value in metadata or ():
        if key == LINGER:
            if not isinstance(value, str) or not value.isascii() or not value.isdecimal():
                raise ValidationError(LINGER, f"expected whole milliseconds, got {value!r}")
            return check_linger(int(value) / 1000)
    return 0.0
