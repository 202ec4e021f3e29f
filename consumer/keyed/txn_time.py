"""The times of a transaction, which are frozen when it begins, and what the next one is due for.

    batch time   the shard's clock, never before an earlier transaction's
    W            the watermark that the rows of earlier transactions made
    W late       the watermark of the transaction before: rows at or below it are late

They are committed with the state, so that a successor judges rows and timers as this primary would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from broadsheet.consumer.keyed.watermark import (
    SourceTime,
    WatermarkRules,
    current_watermark,
    next_idle_ms,
)

TIMES: Final = b"times"
"""Name under which the times are kept with the state."""
PURGE_REST_MS: Final = 20
"""Between two transactions without rows that remove rows of keys which a split has given away."""


class TimeMode(Enum):
    """The kind of time that timers are of."""

    NONE = "none"
    PROCESSING = "processing"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class TxnTime:
    """The times that a handler sees, milliseconds since the Unix epoch."""

    batch_ms: int
    watermark_ms: int


class TimeState(msgspec.Struct):
    """The times as they are committed with each transaction. Milliseconds since the Unix epoch."""

    batch_ms: int = 0
    watermark_ms: int = 0
    late_ms: int = 0
    sources: dict[str, SourceTime] = {}
    storm_ms: int | None = None
    """Due bound of timers that the last transaction did not finish with; the next goes on with it."""
    floor_ms: int = 0
    """Least watermark of the next transaction, of a state that was imported."""


def begun(
    before: TimeState, rules: WatermarkRules, journals: Sequence[str], now_ms: int
) -> TimeState:
    """Return the times of a transaction that begins.

    Args:
        before: Of the transaction before it.
        rules: Of the watermark.
        journals: The shard's sources; none: those that had rows, of a shard whose messages are no journals'.
        now_ms: The clock.
    """
    batch_ms = max(before.batch_ms, now_ms)
    sources = {
        journal: msgspec.structs.replace(before.sources[journal])
        if journal in before.sources
        else SourceTime(batch_ms)
        for journal in journals or before.sources
    }
    watermark = max(
        before.watermark_ms, before.floor_ms, current_watermark(sources, rules, batch_ms)
    )
    return TimeState(batch_ms, watermark, before.watermark_ms, sources, before.storm_ms)


def merged(ours: TimeState, theirs: TimeState) -> TimeState:
    """Return the times of a shard that took the keys of another one over, both behind the same rows.

    The watermarks are the lesser ones: neither shard's rows become late by the other's. The next transaction makes the
    watermark of all these rows, as each of the two would have.
    """
    sources = dict(ours.sources)
    for journal, other in theirs.sources.items():
        own = sources.get(journal)
        if own is not None:
            latest = [each.latest_ms for each in (own, other) if each.latest_ms is not None]
            other = SourceTime(max(own.seen_ms, other.seen_ms), min(latest, default=None))
        sources[journal] = other
    return TimeState(
        max(ours.batch_ms, theirs.batch_ms),
        min(ours.watermark_ms, theirs.watermark_ms),
        min(ours.late_ms, theirs.late_ms),
        sources,
        ours.storm_ms,
        min(ours.floor_ms, theirs.floor_ms),
    )


def observe(state: TimeState, journal: str, latest_ms: int | None) -> None:
    """Note that a source had rows in a transaction.

    Args:
        state: Of the transaction; is changed.
        journal: The source.
        latest_ms: The latest event time among the rows that may move the watermark; None: there is none.
    """
    source = state.sources.setdefault(journal, SourceTime(state.batch_ms))
    source.seen_ms = state.batch_ms
    if latest_ms is not None and (source.latest_ms is None or latest_ms > source.latest_ms):
        source.latest_ms = latest_ms


def due_bound(state: TimeState, mode: TimeMode) -> int | None:
    """Return up to when timers are due in a transaction; None: the mode has none."""
    if mode is TimeMode.NONE:
        return None
    if state.storm_ms is not None:
        return (
            state.storm_ms
        )  # Of the first piece, so that the list of due timers stays what it was.
    return state.watermark_ms if mode is TimeMode.EVENT else state.batch_ms


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work that a transaction leaves."""

    next_due_ms: int | None
    """The earliest timer; None: there is none."""
    has_expired: bool
    """Expired rows are left, because the transaction's budget of removals is used up."""
    is_purging: bool = False
    """Rows are left that a split has given away."""


def next_txn_after_ms(
    state: TimeState, mode: TimeMode, rules: WatermarkRules, backlog: Backlog, now_ms: int
) -> int | None:
    """Return after how long a transaction is due though no row comes, ms; None: only with rows."""
    after = _time_due_after_ms(state, mode, rules, backlog, now_ms)
    if not backlog.is_purging:
        return after
    # No caller waits for it, so rows that come should not wait for it either.
    return PURGE_REST_MS if after is None else min(after, PURGE_REST_MS)


def _time_due_after_ms(
    state: TimeState, mode: TimeMode, rules: WatermarkRules, backlog: Backlog, now_ms: int
) -> int | None:
    """Return after how long time asks for a transaction, ms; None: never.

    One is due at once if a storm of timers goes on, if expired rows are left, if the rows moved the watermark (also
    those of this transaction, so that its timers need no further row), or if a timer is due that was registered in the
    past while timers fired.
    """
    if state.storm_ms is not None or backlog.has_expired:
        return 0
    if mode is TimeMode.PROCESSING:
        due = backlog.next_due_ms
        if due is None or due <= state.batch_ms:
            return None if due is None else 0
        # By the clock alone: where it was set back, batch times stand still until it is past them, and timers wait.
        return max(0, due - now_ms)
    if mode is TimeMode.NONE:
        return None
    batch_ms = max(now_ms, state.batch_ms)
    if state.floor_ms > state.watermark_ms:
        return 0
    if current_watermark(state.sources, rules, batch_ms) > state.watermark_ms:
        return 0
    if backlog.next_due_ms is not None and backlog.next_due_ms <= state.watermark_ms:
        return 0
    idle = next_idle_ms(state.sources, rules, state.watermark_ms, batch_ms)
    return None if idle is None else max(0, idle - now_ms)
