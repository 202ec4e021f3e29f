"""What a Read carries beside its messages.

    client → broker   `broadsheet-tail`     "brief": content that goes on in the open fragment, and reaches the write
                                            head, may come without a message that describes the fragment again
                      `broadsheet-linger`   "50": once something is appended, wait so many milliseconds for more before
                                            it is sent, if the reader is at the write head; 0 to 250

Brokers that do not know the first describe the fragment before each content; then a tailing reader is woken twice for
each append. Where content comes alone, the fragment ends, and the write head is, where the content ends. Brokers that
do not know the second send what was appended at once.

Source: Kafka's `fetch.max.wait.ms` (a reader that is in no hurry is sent more at a time).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from allocator.errors import ValidationError

TAIL: Final = "broadsheet-tail"
BRIEF: Final = "brief"
BRIEF_TAIL: Final = (TAIL, BRIEF)
"""The metadata of a reader that takes it."""
LINGER: Final = "broadsheet-linger"
LINGER_SECONDS_MAX: Final = 0.25
"""So long the end of a stream may have to wait."""

Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]] | None"


def takes_brief_tail(metadata: Metadata) -> bool:
    """Tell whether a call carries `BRIEF_TAIL`."""
    return BRIEF_TAIL in (metadata or ())


def check_linger(seconds: float) -> float:
    """Return how long a reader may linger, seconds.

    Raises:
        ValidationError: it is not from 0 to `LINGER_SECONDS_MAX`.
    """
    if not 0 <= seconds <= LINGER_SECONDS_MAX:
        raise ValidationError(
            "linger_seconds", f"expected 0 to {LINGER_SECONDS_MAX:g} seconds, got {seconds:g}"
        )
    return seconds


def metadata_of_linger(seconds: float) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a reader that lingers so long, in whole milliseconds; none, if it does not."""
    milliseconds = round(check_linger(seconds) * 1000)
    return ((LINGER, str(milliseconds)),) if milliseconds else ()


def linger_seconds_of(metadata: Metadata) -> float:
    """Return how long a call lingers, seconds.

    Raises:
        ValidationError: the call says something else than whole milliseconds up to the maximum.
    """
    for key, value in metadata or ():
        if key == LINGER:
            if not isinstance(value, str) or not value.isascii() or not value.isdecimal():
                raise ValidationError(LINGER, f"expected whole milliseconds, got {value!r}")
            return check_linger(int(value) / 1000)
    return 0.0
