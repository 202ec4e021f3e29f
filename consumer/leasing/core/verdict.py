"""What a writer that met another record than expected may do: the rules of trying again.

A holder's write is applied again only if all that changed is what anybody may change: same fence, same holder, same
counter. Then its change is made on top of theirs. Anything else means that the lease is lost, or was: even if the same
worker took it again meanwhile, for what it did in between may have been done by others too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from consumer.leasing.core.record import LeaseRecord, Versioned


class Verdict(Enum):
    """What became of a write."""

    LANDED = "landed"
    """It was applied, and its answer was lost."""
    APPLY_AGAIN = "apply again"
    """It was not applied; it may be, to the record as it is now."""
    LOST = "lost"
    """It was not applied, and must not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A write whose outcome is in question."""

    seen: Versioned
    """What its writer believed when it began."""
    written: LeaseRecord
    """What it wrote, or tried to."""
    write_id: str | None
    """Its own, if it moved the counter."""

    def has_landed(self, current: Versioned) -> bool:
        """Tell whether the last write that moved the counter was this one."""
        return self.write_id is not None and current.record.write_id == self.write_id


def verdict_of_holder(attempt: Attempt, current: Versioned) -> Verdict:
    """Judge a write that only the holder may make."""
    if attempt.has_landed(current):
        return Verdict.LANDED
    seen, record = attempt.seen, current.record
    if record.handoff_from is not None and record.handoff_from == record.owner:
        return Verdict.LOST  # Corrupt: a worker does not hand a lease to itself.
    unchanged = (
        current.fence == seen.fence
        and record.epoch == seen.record.epoch
        and record.holder == seen.record.holder
        and record.counter == seen.record.counter
    )
    return Verdict.APPLY_AGAIN if unchanged else Verdict.LOST


def verdict_of_taker(attempt: Attempt, current: Versioned) -> Verdict:
    """Judge an acquisition. It rests on all that was seen, so whatever changed, it must be decided anew."""
    if attempt.has_landed(current):
        return Verdict.LANDED
    seen = attempt.seen
    unchanged = current.version == seen.version and current.fence == seen.fence
    return Verdict.APPLY_AGAIN if unchanged else Verdict.LOST


def verdict_of_overseer(attempt: Attempt, current: Versioned) -> Verdict:
    """Judge a write about the owner by somebody else: however often the holder renews, it may be made."""
    if attempt.has_landed(current):
        return Verdict.LANDED
    owners = _owners(current.record)
    if attempt.write_id is None and owners == _owners(attempt.written):
        return Verdict.LANDED
    return Verdict.APPLY_AGAIN if owners == _owners(attempt.seen.record) else Verdict.LOST


def verdict_of_claimant(attempt: Attempt, current: Versioned) -> Verdict:
    """Judge a claim: whatever the holder wrote meanwhile, it is made, as long as it is the same holder.

    It moves no counter, so one that was applied is known by being there: to claim twice changes nothing.
    """
    seen = attempt.seen.record
    is_same = (current.record.holder, current.record.epoch) == (seen.holder, seen.epoch)
    return Verdict.APPLY_AGAIN if is_same else Verdict.LOST


def verdict_of_anybody(attempt: Attempt, current: Versioned) -> Verdict:
    """Judge a write of what anybody may change, and twice without harm: it may be made on any record."""
    del attempt, current
    return Verdict.APPLY_AGAIN


def _owners(record: LeaseRecord) -> tuple[str | None, str | None, int]:
    return record.owner, record.handoff_from, record.epoch
