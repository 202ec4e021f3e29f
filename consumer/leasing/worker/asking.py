"""Asks a holder for its lease, in the way that all workers of the application agreed on."""

from __future__ import annotations

from consumer.errors import LeaseNotAcquiredError
from consumer.leasing import rules
from consumer.leasing.compare_and_swap import swap, verdict_of_claimant
from consumer.leasing.facades.kcl import LeaseManager
from consumer.leasing.record import Versioned
from consumer.leasing.store import RecordStore
from consumer.leasing.worker.settings import StealWay


async def claim(store: RecordStore, seen: Versioned, worker: str) -> Versioned | None:
    """Put a worker's claim on a lease.

    Returns:
        The lease; None if it changed hands, was claimed by another, or is free or finished.
    """
    try:
        return await swap(
            store, seen, lambda record: rules.claim(record, worker), verdict_of_claimant
        )
    except LeaseNotAcquiredError:
        return None


async def ask_for(
    store: RecordStore, seen: Versioned, worker: str, way: StealWay
) -> Versioned | None:
    """Ask for a lease. None if there is nobody to ask, or another asked before."""
    if way is StealWay.HAND_OFF:
        return await LeaseManager(store).assign(seen, worker, graceful=True)
    return await claim(store, seen, worker)
