"""Leases in a state from which a test of a lease manager begins."""

from __future__ import annotations

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned


async def created_lease(manager: LeaseManager, record: LeaseRecord | None = None) -> Versioned:
    """Create a lease; by default `a`, that begins at the oldest record."""
    record = record or LeaseRecord(key="a", checkpoint=Position("TRIM_HORIZON"))
    assert await manager.create_lease(record)
    return await lease_now(manager, record.key)


async def held_lease(manager: LeaseManager, owner: str = "w1", key: str = "a") -> Versioned:
    """Create a lease, and take it."""
    await created_lease(manager, LeaseRecord(key=key, checkpoint=Position("TRIM_HORIZON")))
    return await taken_lease(manager, owner, key)


async def taken_lease(manager: LeaseManager, owner: str = "w1", key: str = "a") -> Versioned:
    """Take a lease as it is."""
    held = await manager.take(await lease_now(manager, key), owner)
    assert held is not None
    return held


async def lease_now(manager: LeaseManager, key: str = "a") -> Versioned:
    """Read a lease, which is there."""
    found = await manager.get_lease(key)
    assert found is not None
    return found
