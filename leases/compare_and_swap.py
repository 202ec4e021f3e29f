"""The compare-and-swap loop of every operation on a record: change, swap, judge the outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from uuid import uuid4

from broadsheet.leases.errors import DependencyError
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.store import RecordStore

ATTEMPTS_MAX = 4
"""Attempts at one change: its rivals are few, and each may win a few times."""


# Retry rules: what a writer may do that found another record than it expected.


class SwapOutcome(Enum):
    """Outcome of a write whose answer was lost, or that met another record."""

    LANDED = "landed"
    """It was applied, and its answer was lost."""
    APPLY_AGAIN = "apply again"
    """It was not applied; it may be, to the record as it is now."""
    LOST = "lost"
    """It was not applied, and must not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapAttempt:
    """A write whose outcome is to be judged."""

    seen: Versioned
    """What its writer believed when it began."""
    written: LeaseRecord
    """What it wrote, or tried to."""
    write_id: str | None
    """The write id of this write, if it moved the counter."""

    def has_landed(self, current: Versioned) -> bool:
        """Tell whether the last write that moved the counter was this one."""
        return self.write_id is not None and current.record.write_id == self.write_id


def verdict_of_holder(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a write that only the holder may make.

    It is applied again only if just those fields changed that anybody may change: same fence, same holder, same
    counter. Anything else means that the lease is lost, or was lost meanwhile. The latter counts even if the same
    worker took it again, because other workers may have done the same work in between.
    """
    if attempt.has_landed(current):
        return SwapOutcome.LANDED
    seen, record = attempt.seen, current.record
    if record.handoff_from is not None and record.handoff_from == record.owner:
        return SwapOutcome.LOST  # Corrupt: a worker does not hand a lease to itself.
    unchanged = (
        current.fence == seen.fence
        and record.epoch == seen.record.epoch
        and record.holder == seen.record.holder
        and record.counter == seen.record.counter
    )
    return SwapOutcome.APPLY_AGAIN if unchanged else SwapOutcome.LOST


def verdict_of_taker(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge an acquisition. It rests on the whole record, so any change requires a new decision."""
    if attempt.has_landed(current):
        return SwapOutcome.LANDED
    seen = attempt.seen
    unchanged = current.version == seen.version and current.fence == seen.fence
    return SwapOutcome.APPLY_AGAIN if unchanged else SwapOutcome.LOST


def verdict_of_overseer(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a change of owner by another worker: it may be made however often the holder renews."""
    if attempt.has_landed(current):
        return SwapOutcome.LANDED
    owners = _owners(current.record)
    if attempt.write_id is None and owners == _owners(attempt.written):
        return SwapOutcome.LANDED
    return SwapOutcome.APPLY_AGAIN if owners == _owners(attempt.seen.record) else SwapOutcome.LOST


def verdict_of_claimant(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a claim: it may be made whatever the holder wrote meanwhile, as long as the holder is the same.

    A claim moves no counter, so an applied one is recognised by its presence: claiming twice changes nothing.
    """
    seen = attempt.seen.record
    is_same = (current.record.holder, current.record.epoch) == (seen.holder, seen.epoch)
    return SwapOutcome.APPLY_AGAIN if is_same else SwapOutcome.LOST


def verdict_of_anybody(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge an idempotent write of fields that anybody may change: it may be made on any record."""
    del attempt, current
    return SwapOutcome.APPLY_AGAIN


def _owners(record: LeaseRecord) -> tuple[str | None, str | None, int]:
    return record.owner, record.handoff_from, record.epoch


def stamped(before: LeaseRecord, after: LeaseRecord) -> tuple[LeaseRecord, str | None]:
    """Return the changed record with a fresh write id, if the change moved the counter, and that id."""
    if after.counter == before.counter:
        return after, None
    write_id = uuid4().hex
    return replace(after, write_id=write_id), write_id


async def compare_and_swap(
    store: RecordStore,
    seen: Versioned,
    change: Callable[[LeaseRecord], LeaseRecord],
    judge: Callable[[SwapAttempt, Versioned], SwapOutcome],
) -> Versioned | None:
    """Apply a change to a record, on top of concurrent changes if the judge allows it.

    A write whose answer was lost is looked for first, so that it is neither lost nor made twice.

    Args:
        store: Where the record is.
        seen: What the caller believes to be there.
        change: A rule of `broadsheet.leases.rules`; what it raises is raised here.
        judge: One of `broadsheet.leases.compare_and_swap`: whose write this is.

    Returns:
        The record as written; None if it is gone, or the judge says that the write must not be made.

    Raises:
        DependencyError: the store did not answer, also not when asked what became of the write; or others were faster
            every time.
    """
    at = seen
    for _ in range(ATTEMPTS_MAX):
        written, write_id = stamped(at.record, change(at.record))
        if written == at.record:
            return at
        try:
            return await store.replace(written, at)
        except RecordConflictError as conflict:
            current = conflict.current
        except DependencyError as error:
            if not error.outcome_unknown:
                raise
            current = await store.get(seen.record.key)
        if current is None:
            return None
        attempt = SwapAttempt(seen=seen, written=written, write_id=write_id)
        verdict = judge(attempt, current)
        if verdict is SwapOutcome.LANDED:
            return current
        if verdict is SwapOutcome.LOST:
            return None
        at = current
    raise DependencyError(
        f"lease {seen.record.key}: lost the compare-and-swap {ATTEMPTS_MAX} times in a row"
    )
