"""What becomes of each fragment of one log in a prune.

    needed        some hints need a byte of it, or it is the newest persisted one, which tells where the log ends
    unpersisted   dead, but the broker may still add to it
    elsewhere     dead, in a store that the broker does not remove from for us
    quarantined   dead, but not for long enough
    dead          dead for long enough: it goes

Long enough is a delay after the first prune that found it dead. Whoever began to play older hints has ended by then,
and a mistake in the hints has been noticed. A fragment that is older than the delay by itself need not wait where
every shard of the log has a backup of its hints (`LogNeeds.based`).

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from consumer.protocol.journal_pb2 import Fragment
from consumer.recoverylog.liveness import LogNeeds
from consumer.recoverylog.quarantine import QuarantineRecord, Span, quarantine_record


class Fate(Enum):
    """What becomes of a fragment."""

    NEEDED = "needed"
    UNPERSISTED = "unpersisted"
    ELSEWHERE = "elsewhere"
    QUARANTINED = "quarantined"
    DEAD = "dead"


@dataclass(slots=True)
class Tally:
    """How many fragments, and how long they are together."""

    fragments: int = 0
    bytes: int = 0

    def add(self, fragment: Fragment) -> None:
        """Count one more."""
        self.fragments += 1
        self.bytes += fragment.end - fragment.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """What a prune would do to one log."""

    log: str
    shards: tuple[str, ...]
    spared: str = ""
    """Why the log is left alone; empty if it is not."""
    tallies: Mapping[Fate, Tally] = field(default_factory=lambda: {fate: Tally() for fate in Fate})
    dead: Sequence[Fragment] = ()
    """What goes, ascending."""
    quarantined_until: int = 0
    """When the first of the quarantined may go, Unix seconds; 0 if there are none."""
    create_revision: int = 0
    """Of the journal."""
    spans: Sequence[Span] = ()
    """Since when the quarantined and the dead are known to be dead; one a fragment, ascending."""

    def quarantine_after(self, removed: Collection[tuple[int, int]]) -> QuarantineRecord:
        """Return what the next prune should know, once the fragments at `removed`, as (begin, end), are gone."""
        left = (span for span in self.spans if span[:2] not in removed)
        return quarantine_record(self.create_revision, left)


def spared_log(needs: LogNeeds, reason: str) -> LogPlan:
    """Return the plan of a log that is left alone."""
    return LogPlan(log=needs.log, shards=needs.shards, spared=reason)


def plan_log(
    needs: LogNeeds,
    fragments: Sequence[Fragment],
    known: QuarantineRecord,
    *,
    create_revision: int,
    now: int,
    delay_seconds: float,
) -> LogPlan:
    """Decide about each fragment of a log that is not spared.

    Args:
        needs: What must stay.
        fragments: As the broker lists them, ascending by begin.
        known: What prunes before this one have found dead.
        create_revision: Of the journal.
        now: Unix seconds.
        delay_seconds: For how long a fragment must have been dead.
    """
    assert not needs.spared, "a spared log is not planned"
    if known.create_revision != create_revision:
        known = QuarantineRecord(create_revision=create_revision)
    tallies = {fate: Tally() for fate in Fate}
    dead: list[Fragment] = []
    spans: list[Span] = []
    until: list[int] = []
    newest = max((each.begin for each in fragments if each.mod_time), default=0)
    for fragment in fragments:
        since = known.dead_since(fragment.begin, fragment.end)
        due = _due(needs, fragment, now if since is None else since, delay_seconds)
        fate = _fate(needs, fragment, is_newest=fragment.begin == newest, is_due=due <= now)
        tallies[fate].add(fragment)
        if fate in (Fate.QUARANTINED, Fate.DEAD):
            spans.append((fragment.begin, fragment.end, now if since is None else since))
        if fate is Fate.DEAD:
            dead.append(fragment)
        elif fate is Fate.QUARANTINED:
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


def _fate(needs: LogNeeds, fragment: Fragment, *, is_newest: bool, is_due: bool) -> Fate:
    if needs.needs(fragment.begin, fragment.end):
        return Fate.NEEDED
    if not fragment.mod_time:
        return Fate.UNPERSISTED
    if is_newest:
        return Fate.NEEDED
    if fragment.backing_store:
        return Fate.ELSEWHERE
    return Fate.DEAD if is_due else Fate.QUARANTINED


def _due(needs: LogNeeds, fragment: Fragment, since: int, delay_seconds: float) -> int:
    """Return when a dead fragment may go, Unix seconds."""
    return int((min(since, fragment.mod_time) if needs.based else since) + delay_seconds)
