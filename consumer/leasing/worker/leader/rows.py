"""What is in the store of a fleet, beside which its leases are elsewhere: who leads, and who is there.

    leader           held by the worker that leads
    worker-{name}    held by the worker, as long as it lives: so that one without a lease is known too

Rows are lease records, so any record store will do, and those that know who lives are believed. They are never in the
store of the leases: whoever reads those, also programs of others, finds leases only.
"""

from __future__ import annotations

from typing import Final

from consumer.errors import InvalidStateError
from consumer.leasing.facades.kcl import LeaseManager
from consumer.leasing.record import LeaseRecord, Versioned

LEADER_KEY: Final = "leader"
WORKER_PREFIX: Final = "worker-"


def worker_key(name: str) -> str:
    """Return the key of a worker's row."""
    return f"{WORKER_PREFIX}{name}"


def check_rows(found: tuple[Versioned, ...]) -> None:
    """Find out early if this is no store of a fleet.

    Raises:
        InvalidStateError: there is something else in it.
    """
    for each in found:
        key = each.record.key
        if key != LEADER_KEY and not key.startswith(WORKER_PREFIX):
            raise InvalidStateError(
                f"the fleet's store holds {key}: expected {LEADER_KEY} and {WORKER_PREFIX}… only; give workers a store"
                " for their fleet that is not that of the leases"
            )


async def taken_row(manager: LeaseManager, key: str, worker: str) -> Versioned | None:
    """Make a row a worker's, whoever had it; None if another was faster."""
    seen = await manager.get_lease(key)
    if seen is None:
        await manager.create_lease(LeaseRecord(key=key))
        seen = await manager.get_lease(key)
    return None if seen is None else await manager.take(seen, worker)
