"""The plan of a prune: the fate of each fragment of one log.

    needed        some hints need a byte of it, or it is the newest persisted one, which tells where the log ends
    unpersisted   dead, but the broker may still add to it
    elsewhere     dead, in a store that the broker does not remove from for us
    quarantined   dead, but not for long enough
    dead          dead for long enough: it is removed

Long enough means a delay after the first prune that found it dead. By then every playback from older hints has ended,
and a mistake in the hints has been noticed. A fragment that is itself older than the delay need not wait if every shard
of the log has a backup of its hints (`LogNeeds.based`).

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

from broadsheet.consumer.recoverylog.liveness import LogNeeds
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format, LaterFormatError
from broadsheet.wire.journal_pb2 import Fragment

QUARANTINE: Final = Format("the record of a log's dead bytes", "prune by a member of that release")
SPANS_MAX: Final = 10_000
"""Spans kept for a log: etcd takes 1.5 MiB in a value. Those that died last are forgotten first, and wait longer."""
Span = tuple[int, int, int]
"""Begin and end, bytes, and the Unix second at which it was first found dead."""


class QuarantineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The dead bytes of one log, as a prune records them for the next one.

        /broadsheet.v1{root}/prune/{log}    spans of bytes, and when a prune first found them dead

    A span that is needed again is dropped, and its time starts over if it dies again. The record belongs to one
    incarnation of the journal, because a log that was deleted and created again has other bytes at the same offsets.
    """

    create_revision: int = 0
    """Create revision of the journal, which distinguishes its incarnations."""
    spans: tuple[Span, ...] = ()
    """Ascending and disjoint."""

    def dead_since(self, begin: int, end: int) -> int | None:
        """Return the Unix second since which all of [begin, end) is known to be dead; None if a part is not."""
        since = 0
        # Start at the last span that begins at or before `begin`, and follow the next ones as long as they touch.
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
    """Return a record of ascending spans; spans that touch and died at the same time are joined."""
    joined: list[Span] = []
    for begin, end, since in spans:
        if joined and joined[-1][1] == begin and joined[-1][2] == since:
            joined[-1] = (joined[-1][0], end, since)
        else:
            joined.append((begin, end, since))
    return QuarantineRecord(create_revision=create_revision, spans=tuple(_longest_dead(joined)))


def encode_quarantine(record: QuarantineRecord) -> bytes:
    """Encode a record for storage."""
    return msgspec.json.encode(record)


def decode_quarantine(value: bytes) -> QuarantineRecord:
    """Decode a stored record; an unreadable one counts as empty, so every span waits again.

    Raises:
        LaterFormatError: a later release wrote it.
    """
    try:
        return QUARANTINE.decode_json(value, QuarantineRecord)
    except LaterFormatError:
        raise
    except DocumentError:
        return QuarantineRecord()


def _longest_dead(spans: Sequence[Span]) -> Sequence[Span]:
    if len(spans) <= SPANS_MAX:
        return spans
    return sorted(sorted(spans, key=lambda span: span[2])[:SPANS_MAX])


@dataclass(frozen=True, slots=True)
class LogListing:
    """A log as the broker lists it."""

    create_revision: int
    """Create revision of the journal."""
    fragments: Sequence[Fragment]
    """Ascending by begin."""


class SegmentFate(Enum):
    """The fate of a fragment in a prune."""

    NEEDED = "needed"
    UNPERSISTED = "unpersisted"
    ELSEWHERE = "elsewhere"
    QUARANTINED = "quarantined"
    DEAD = "dead"


@dataclass(slots=True)
class PruneCounts:
    """The number of fragments, and their total length."""

    fragments: int = 0
    bytes: int = 0

    def add(self, fragment: Fragment) -> None:
        """Count one more."""
        self.fragments += 1
        self.bytes += fragment.end - fragment.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """The plan of a prune for one log."""

    log: str
    shards: tuple[str, ...]
    spared: str = ""
    """Reason why the log is left alone; empty if it is pruned."""
    tallies: Mapping[SegmentFate, PruneCounts] = field(
        default_factory=lambda: {fate: PruneCounts() for fate in SegmentFate}
    )
    dead: Sequence[Fragment] = ()
    """Fragments to remove, ascending."""
    quarantined_until: int = 0
    """Time at which the first quarantined fragment may be removed, Unix seconds; 0 if there is none."""
    create_revision: int = 0
    """Create revision of the journal."""
    spans: Sequence[Span] = ()
    """Spans of the quarantined and the dead fragments with the time since which they are known to be dead; one per
    fragment, ascending."""

    def quarantine_after(self, removed: Collection[tuple[int, int]]) -> QuarantineRecord:
        """Return the record for the next prune, after the fragments at `removed`, as (begin, end), are gone."""
        left = (span for span in self.spans if span[:2] not in removed)
        return quarantine_record(self.create_revision, left)


def spared_log(needs: LogNeeds, reason: str) -> LogPlan:
    """Return the plan of a log that is left alone."""
    return LogPlan(log=needs.log, shards=needs.shards, spared=reason)


def plan_log(
    needs: LogNeeds,
    listing: LogListing,
    known: QuarantineRecord,
    *,
    now: int,
    delay_seconds: float,
) -> LogPlan:
    """Decide about each fragment of a log that is not spared.

    Args:
        needs: The bytes that must stay.
        listing: The log's fragments.
        known: Record of what earlier prunes have found dead.
        now: Unix seconds.
        delay_seconds: Time for which a fragment must have been dead.
    """
    assert not needs.spared, "a spared log is not planned"
    fragments, create_revision = listing.fragments, listing.create_revision
    # Another incarnation of the journal has other bytes at the same offsets.
    if known.create_revision != create_revision:
        known = QuarantineRecord(create_revision=create_revision)
    tallies = {fate: PruneCounts() for fate in SegmentFate}
    dead: list[Fragment] = []
    spans: list[Span] = []
    until: list[int] = []
    newest = max((each.begin for each in fragments if each.mod_time), default=0)
    for fragment in fragments:
        since = known.dead_since(fragment.begin, fragment.end)
        due = _due(needs, fragment, now if since is None else since, delay_seconds)
        fate = _fate(needs, fragment, is_newest=fragment.begin == newest, is_due=due <= now)
        tallies[fate].add(fragment)
        if fate in (SegmentFate.QUARANTINED, SegmentFate.DEAD):
            spans.append((fragment.begin, fragment.end, now if since is None else since))
        if fate is SegmentFate.DEAD:
            dead.append(fragment)
        elif fate is SegmentFate.QUARANTINED:
            until.append(due)
    return LogPlan(
        log=needs.log,
        shards=needs.shards,
        tallies=tallies,
        dead=dead,
        quarantined_until=min(until, default=0),
        create_revision=create_revision,
        spans=spans,
    )


def _fate(needs: LogNeeds, fragment: Fragment, *, is_newest: bool, is_due: bool) -> SegmentFate:
    if needs.needs(fragment.begin, fragment.end):
        return SegmentFate.NEEDED
    # Not persisted yet, so the broker may still add to it.
    if not fragment.mod_time:
        return SegmentFate.UNPERSISTED
    # Without the newest persisted fragment a broker could not tell where the log ends.
    if is_newest:
        return SegmentFate.NEEDED
    if fragment.backing_store:
        return SegmentFate.ELSEWHERE
    return SegmentFate.DEAD if is_due else SegmentFate.QUARANTINED


def _due(needs: LogNeeds, fragment: Fragment, since: int, delay_seconds: float) -> int:
    """Return the time at which a dead fragment may be removed, Unix seconds."""
    # With a backup for every shard no player can be reading it, so the fragment's own age counts.
    return int((min(since, fragment.mod_time) if needs.based else since) + delay_seconds)
