"""Since when bytes of a log are known to be dead: what a prune remembers for the next one.

    /broadsheet.v1{root}/prune/{log}    spans of bytes, and when a prune first found them dead

A span that is needed again drops out, and starts anew if it dies again. The record belongs to one incarnation of the
journal: a log that was deleted and made anew has other bytes at the same offsets.

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from allocator.documents import DocumentError, decode_json

SPANS_MAX: Final = 10_000
"""Spans kept for a log: etcd takes 1.5 MiB in a value. Those that died last are forgotten first, and wait longer."""

Span = tuple[int, int, int]
"""Begin and end, bytes, and the Unix second at which it was first found dead."""


class QuarantineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The dead bytes of one log."""

    create_revision: int = 0
    """Of the journal, which tells its incarnations apart."""
    spans: tuple[Span, ...] = ()
    """Ascending, apart from each other."""

    def dead_since(self, begin: int, end: int) -> int | None:
        """Return the Unix second since which all of [begin, end) is known to be dead; None if some is not."""
        since = 0
        # The last span that begins no later, and those that follow as long as they touch.
        first = bisect_right(self.spans, begin, key=lambda span: span[0]) - 1
        for index in range(max(first, 0), len(self.spans)):
            span_begin, span_end, span_since = self.spans[index]
            if not span_begin <= begin < span_end:
                return None
            since = max(since, span_since)
            begin = span_end
            if begin >= end:
                return since
        return None


def quarantine_record(create_revision: int, spans: Iterable[Span]) -> QuarantineRecord:
    """Return a record of spans in ascending order: those that touch and died together are joined."""
    joined: list[Span] = []
    for begin, end, since in spans:
        if joined and joined[-1][1] == begin and joined[-1][2] == since:
            joined[-1] = (joined[-1][0], end, since)
        else:
            joined.append((begin, end, since))
    return QuarantineRecord(create_revision=create_revision, spans=tuple(_longest_dead(joined)))


def encode_quarantine(record: QuarantineRecord) -> bytes:
    """Return a record as it is stored."""
    return msgspec.json.encode(record)


def decode_quarantine(value: bytes) -> QuarantineRecord:
    """Return a stored record; one that cannot be read knows nothing, so everything waits anew."""
    try:
        return decode_json(value, QuarantineRecord)
    except DocumentError:
        return QuarantineRecord()


def _longest_dead(spans: Sequence[Span]) -> Sequence[Span]:
    if len(spans) <= SPANS_MAX:
        return spans
    return sorted(sorted(spans, key=lambda span: span[2])[:SPANS_MAX])
