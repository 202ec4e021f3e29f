"""A worker's view of one lease scan: live holders, pending transfers, and the leases due to itself.

A worker that wants a lease asks for it, by a claim or a hand-off, and for a while no other worker takes it. Each
observer measures that time from when it *saw* the request, by its own clock, as it does for deaths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from broadsheet.leases.expiry import LastSeen, is_free, sighted
from broadsheet.leases.record import LeaseRecord, Versioned


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseScan:
    """All leases, as one scan showed them, by the worker's clock."""

    found: tuple[Versioned, ...]
    began_seconds: float
    ended_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """An observer, and the parameters by which it judges."""

    me: str
    lease_seconds: float
    """Time without a move after which a holder counts as dead."""
    asking_seconds: float
    """Time for which no other worker takes a lease that was asked for."""
    store_tells_who_lives: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A lease of an unfinished shard, as an observer sees it after a scan."""

    key: str
    bound_for: str | None
    """The worker that has it, or will get it by a claim or a hand-off; None: none."""
    held_by: str | None
    """The worker that processes it and lives; None: it is free."""
    free_seconds: float = 0.0
    """Time for which it has been free, as far as the observer knows."""
    next_owner: str | None = None
    """During a hand-off: the worker that gets it, even if that takes too long."""
    is_overdue: bool = False
    """True if a hand-off timed out, and its holder lives."""
    last_holder: str | None = None
    """The worker that was last seen with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A worker's memory of a lease."""

    sighting: LastSeen
    free_since_seconds: float | None
    """When it was first seen free; None: it is not free."""
    asker: str | None
    """The worker that asked for it."""
    asked_since_seconds: float
    """When the request was first seen."""
    last_holder: str | None = None
    """The last worker that was seen with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker's view of a scan, as input of its plan."""

    leases: tuple[LeaseView, ...]
    """Leases of unfinished shards."""
    due: tuple[str, ...]
    """Leases to take regardless of the share: those that it asked for and may take now, and those assigned to it."""
    is_asking: bool
    """True while it waits for a lease that it asked for."""
    memory: Mapping[str, Memory]
    """Memory for the next scan."""


def outlook(
    before: Mapping[str, Memory], look: LeaseScan, observer: Viewer, *, held: Collection[str]
) -> WorkerView:
    """Derive a worker's view from a scan.

    Args:
        before: What the worker remembers.
        look: The look.
        observer: The worker.
        held: Keys of the leases that it processes.
    """
    memory = {
        found.record.key: _remembered(before.get(found.record.key), found, look, observer)
        for found in look.found
    }
    records = [found.record for found in look.found if not found.record.is_finished]
    due = tuple(record.key for record in records if _is_due(record, memory, look, observer, held))
    views = (_view(record, memory, look, observer) for record in records)
    return WorkerView(
        leases=tuple(
            replace(view, bound_for=observer.me, held_by=observer.me) if view.key in due else view
            for view in views
        ),
        due=due,
        is_asking=any(
            memory[record.key].asker == observer.me and record.key not in due for record in records
        ),
        memory=memory,
    )


def _remembered(
    before: Memory | None, found: Versioned, look: LeaseScan, observer: Viewer
) -> Memory:
    sighting = sighted(
        None if before is None else before.sighting, found.record, now_seconds=look.ended_seconds
    )
    if observer.store_tells_who_lives:
        free = not found.fence
    else:
        free = is_free(
            found,
            sighting,
            now_seconds=look.began_seconds,
            lease_seconds=observer.lease_seconds,
        )
    asker = _asker(found.record)
    was_free = None if before is None else before.free_since_seconds
    is_same_asker = before is not None and before.asker == asker
    return Memory(
        sighting=sighting,
        free_since_seconds=_first(was_free, look.began_seconds) if free else None,
        asker=asker,
        asked_since_seconds=(
            before.asked_since_seconds
            if before is not None and is_same_asker
            else look.ended_seconds
        ),
        last_holder=found.record.holder or (None if before is None else before.last_holder),
    )


def _asker(record: LeaseRecord) -> str | None:
    return record.owner if record.handoff_from is not None else record.claim


def _first(before: float | None, now: float) -> float:
    return now if before is None else before


def _is_due(
    record: LeaseRecord,
    memory: Mapping[str, Memory],
    look: LeaseScan,
    observer: Viewer,
    held: Collection[str],
) -> bool:
    known = memory[record.key]
    # Assigned to this worker, or left from its earlier life.
    if record.owner == observer.me and record.handoff_from is None:
        return record.key not in held
    if known.asker != observer.me:
        return False
    return known.free_since_seconds is not None or _has_lapsed(known, look, observer)


def _has_lapsed(known: Memory, look: LeaseScan, observer: Viewer) -> bool:
    """Tell whether the time of the holder that was asked has run out."""
    return look.began_seconds - known.asked_since_seconds > observer.asking_seconds


def _view(
    record: LeaseRecord, memory: Mapping[str, Memory], look: LeaseScan, observer: Viewer
) -> LeaseView:
    known = memory[record.key]
    lapsed = _has_lapsed(known, look, observer)
    asker = None if lapsed else known.asker
    next_owner = record.owner if record.handoff_from is not None else None
    if known.free_since_seconds is not None:
        return LeaseView(
            key=record.key,
            bound_for=asker,
            held_by=None,
            free_seconds=look.began_seconds - known.free_since_seconds,
            next_owner=next_owner,
            last_holder=known.last_holder,
        )
    return LeaseView(
        key=record.key,
        bound_for=asker or record.holder,
        held_by=record.holder,
        next_owner=next_owner,
        is_overdue=next_owner is not None and lapsed,
        last_holder=known.last_holder,
    )
