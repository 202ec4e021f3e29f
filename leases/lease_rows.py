"""The leases in a store as rows of texts, for commands and for the live page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from broadsheet.leases.expiry import LeaseObserver
from broadsheet.leases.migration.merge import said
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import RecordStore
from broadsheet.leases.stores.dynamodb.vmware_go import WallClockExpiry
from broadsheet.runtime.clock import SystemClock

LEASE_COLUMNS: Final = (
    *("KEY", "STATE", "OWNER", "EPOCH", "COUNTER"),
    *("CHECKPOINT", "PENDING", "PARENTS"),
)
LeaseState = tuple[Versioned, bool | None]
"""A lease, and whether it may be taken; None: it was not watched for long enough to know."""


async def lease_states(
    store: RecordStore,
    layout: str,
    *,
    watch_seconds: float | None = None,
    leases_max: int | None = None,
) -> Sequence[LeaseState]:
    """Return all leases in the order of their keys.

    Args:
        store: Where they are.
        layout: Of the store; in that of vmware-go-kcl leases say when they end.
        watch_seconds: Look twice, so far apart, where only movement tells who lives.
        leases_max: Return no more than these; None: all.
    """
    free: frozenset[str] | None = None
    if watch_seconds is not None and not store.tells_who_lives:
        free = await _still_keys(store, watch_seconds)
    found: list[Versioned] = []
    async for each in store.scan():
        if len(found) == leases_max:
            break
        found.append(each)
    if layout == "vmware-go":
        return [(each, _is_over(each)) for each in found]
    return [(each, _is_free(store, each, free)) for each in found]


async def _still_keys(store: RecordStore, watch_seconds: float) -> frozenset[str]:
    observer = LeaseObserver(store, lease_seconds=watch_seconds)
    await observer.free_leases()
    await asyncio.sleep(watch_seconds)
    return frozenset(each.record.key for each in await observer.free_leases())


def _is_free(store: RecordStore, found: Versioned, free: frozenset[str] | None) -> bool | None:
    if store.tells_who_lives or found.record.holder is None:
        return not found.fence
    return None if free is None else found.record.key in free


def _is_over(found: Versioned) -> bool:
    asked_seconds = SystemClock().monotonic_seconds()
    return WallClockExpiry().standing(found, asked_monotonic_seconds=asked_seconds).is_free


def state_of(found: Versioned, *, is_free: bool | None) -> str:
    """Return the state of a lease; `owned`: it has an owner, and it was not watched whether that is alive."""
    if found.record.is_finished:
        return "finished"
    if found.record.claim is not None and is_free is not True:
        return f"claimed by {found.record.claim}"
    return {True: "free", False: "held", None: "owned"}[is_free]


def lease_row(found: Versioned, *, is_free: bool | None) -> list[str]:
    """Return a lease's cells, of shape (len(LEASE_COLUMNS),)."""
    record = found.record
    return [
        record.key,
        state_of(found, is_free=is_free),
        _owner(record),
        str(record.epoch),
        str(record.counter),
        said(record.checkpoint),
        said(record.pending),
        " ".join(sorted(record.parents)) or "-",
    ]


def _owner(record: LeaseRecord) -> str:
    if record.handoff_from is None:
        return record.owner or "-"
    return f"{record.handoff_from} -> {record.owner}"
