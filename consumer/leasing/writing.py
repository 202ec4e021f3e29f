"""Change, swap, and judge what came of it: the one loop in which every operation on a record runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from consumer.errors import DependencyError
from consumer.leasing.core.conflict import RecordConflictError
from consumer.leasing.core.record import LeaseRecord, Versioned
from consumer.leasing.core.verdict import Attempt, Verdict
from consumer.leasing.store import RecordStore

ATTEMPTS_MAX = 4
"""How often a change is tried: its rivals are few, and each may win a few times."""


def stamped(before: LeaseRecord, after: LeaseRecord) -> tuple[LeaseRecord, str | None]:
    """Return a change with a name of its own if it moves the counter, and that name."""
    if after.counter == before.counter:
        return after, None
    write_id = uuid4().hex
    return replace(after, write_id=write_id), write_id


async def swap(
    store: RecordStore,
    seen: Versioned,
    change: Callable[[LeaseRecord], LeaseRecord],
    judge: Callable[[Attempt, Versioned], Verdict],
) -> Versioned | None:
    """Make a change, on top of what others changed meanwhile if the judge allows it.

    A write whose answer was lost is looked for before anything else is done, so that it is neither lost nor made twice.

    Args:
        store: Where the record is.
        seen: What the caller believes to be there.
        change: A rule of `consumer.leasing.core.rules`; what it raises is raised here.
        judge: One of `consumer.leasing.core.verdict`: whose write this is.

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
        attempt = Attempt(seen=seen, written=written, write_id=write_id)
        verdict = judge(attempt, current)
        if verdict is Verdict.LANDED:
            return current
        if verdict is Verdict.LOST:
            return None
        at = current
    raise DependencyError(f"lease {seen.record.key}: others were faster {ATTEMPTS_MAX} times")
