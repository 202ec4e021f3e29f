"""The watermark: the event time up to which rows are taken to have come.

    W = the least, over the sources that count, of (latest event time seen − delay); it never goes back

It is made by the rows of earlier transactions, and frozen when a transaction begins. A row is late if its event time is
at or below the watermark of the transaction before: so rows are judged one transaction behind, as Spark does. A source
of which no row was seen counts as 0, so it holds the watermark; one that was silent for the idle time-out does not
count. Times that are further ahead of the clock than a bound do not move the watermark: an event time is what a message
claims, and one wrong message would make all others late.

Source: Spark's WatermarkTracker and WatermarkPropagator (minimum, 0 without rows, one batch behind); the idle time-out
and the bound are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

MAX_FUTURE_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkRules:
    """Settings of the watermark. Times are milliseconds."""

    delay_ms: int = 0
    idle_ms: int | None = None
    """A source without rows for so long does not hold the watermark; None: it does for ever, as in Spark."""
    max_future_ms: int = MAX_FUTURE_MS
    """Event times further ahead of the clock do not move the watermark."""


class SourceTime(msgspec.Struct):
    """The part of one source in the watermark."""

    seen_ms: int
    """Clock of the transaction that last had rows of it, or that first knew of it."""
    latest_ms: int | None = None
    """Latest event time; None: no rows yet."""


def current_watermark(sources: Mapping[str, SourceTime], rules: WatermarkRules, now_ms: int) -> int:
    """Return the watermark that the sources make at a time; 0 if none of them counts.

    It may lie before an earlier one: the caller keeps the later.
    """
    counting = [
        0 if source.latest_ms is None else max(0, source.latest_ms - rules.delay_ms)
        for source in sources.values()
        if not _is_idle(source, rules, now_ms)
    ]
    return min(counting, default=0)


def next_idle_ms(
    sources: Mapping[str, SourceTime], rules: WatermarkRules, watermark_ms: int, now_ms: int
) -> int | None:
    """Return when a source next becomes idle such that the watermark advances, epoch ms; None: never."""
    if rules.idle_ms is None:
        return None
    ends = sorted(
        source.seen_ms + rules.idle_ms
        for source in sources.values()
        if not _is_idle(source, rules, now_ms)
    )
    for end in ends:
        if current_watermark(sources, rules, end) > watermark_ms:
            return end
    return None


def _is_idle(source: SourceTime, rules: WatermarkRules, now_ms: int) -> bool:
    return rules.idle_ms is not None and now_ms >= source.seen_ms + rules.idle_ms
