"""Change, swap, and judge what came of it: the one loop in which every operation on a record runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from uuid import uuid4

from broadsheet.consumer.errors import DependencyError
from broadsheet.consumer.leasing.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.consumer.leasing.store import RecordStore

ATTEMPTS_MAX = 4
"""How often a change is tried: its rivals are few, and each may win a few times."""


# What a writer that met another record than expected may do: the rules of trying again.
#
# A holder's write is applied again only if all that changed is what anybody may change: same fence,
# same holder, same counter. Then its change is made on top of theirs. Anything else means that the
# lease is lost, or was: even if the same worker took it again meanwhile, for what it did in between
# may have been done by others too.


class SwapOutcome(Enum):
    """What became of a write."""

    LANDED = "landed"
    """It was applied, and its answer was lost."""
    APPLY_AGAIN = "apply again"
    """It was not applied; it may be, to the record as it is now."""
    LOST = "lost"
    """It was not applied, and must not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapAttempt:
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


def verdict_of_holder(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a write that only the holder may make."""
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
    """Judge an acquisition. It rests on all that was seen, so whatever changed, it must be decided anew."""
    if attempt.has_landed(current):
        return SwapOutcome.LANDED
    seen = attempt.seen
    unchanged = current.version == seen.version and current.fence == seen.fence
    return SwapOutcome.APPLY_AGAIN if unchanged else SwapOutcome.LOST


def verdict_of_overseer(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a write about the owner by somebody else: however often the holder renews, it may be made."""
    if attempt.has_landed(current):
        return SwapOutcome.LANDED
    owners = _owners(current.record)
    if attempt.write_id is None and owners == _owners(attempt.written):
        return SwapOutcome.LANDED
    return SwapOutcome.APPLY_AGAIN if owners == _owners(attempt.seen.record) else SwapOutcome.LOST


def verdict_of_claimant(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a claim: whatever the holder wrote meanwhile, it is made, as long as it is the same holder.

    It moves no counter, so one that was applied is known by being there: to claim twice changes nothing.
    """
    seen = attempt.seen.record
    is_same = (current.record.holder, current.record.epoch) == (seen.holder, seen.epoch)
    return SwapOutcome.APPLY_AGAIN if is_same else SwapOutcome.LOST


def verdict_of_anybody(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a write of what anybody may change, and twice without harm: it may be made on any record."""
    del attempt, current
    return SwapOutcome.APPLY_AGAIN


def _owners(record: LeaseRecord) -> tuple[str | None, str | None, int]:
    return record.owner, record.handoff_from, record.epoch


def stamped(before: LeaseRecord, after: LeaseRecord) -> tuple[LeaseRecord, str | None]:
    """Return a change with a name of its own if it moves the counter, and that name."""
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
    """Make a change, on top of what others changed meanwhile if the judge allows it.

    A write whose answer was lost is looked for before anything else is done, so that it is neither lost nor made twice.

    Args:
        store: Where the record is.
        seen: What the caller believes to be there.
        change: A rule of `broadsheet.consumer.leasing.rules`; what it raises is raised here.
        judge: One of `broadsheet.consumer.leasing.compare_and_swap`: whose write this is.

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
    raise DependencyError(f"lease {seen.record.key}: others were faster {ATTEMPTS_MAX} times")
