"""Which leases are free, as far as somebody can tell who looks for a moment, or for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from allocator.runtime.clock import SystemClock
from consumer.leasing.core.record import Versioned
from consumer.leasing.dynamodb.wall_clock import WallClockExpiry
from consumer.leasing.migration.carrying_out import records_of
from consumer.leasing.observer import LeaseObserver
from consumer.leasing.store import RecordStore

LeaseState = tuple[Versioned, bool | None]
"""A lease, and whether it may be taken; None: nobody watched for long enough to know."""


async def lease_states(
    store: RecordStore, layout: str, *, watch_seconds: float | None
) -> Sequence[LeaseState]:
    """Return all leases in the order of their keys.

    Args:
        store: Where they are.
        layout: Of the store; in that of vmware-go-kcl leases say when they end.
        watch_seconds: Look twice, so far apart, where only movement tells who lives.
    """
    free: frozenset[str] | None = None
    if watch_seconds is not None and not store.tells_who_lives:
        free = await _still_keys(store, watch_seconds)
    found = await records_of(store)
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
