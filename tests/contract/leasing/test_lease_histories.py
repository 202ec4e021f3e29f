"""Random histories on every backend: workers that act on what they last saw, however old that is."""

from __future__ import annotations

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from tests.support.lease_histories import run_history
from tests.support.lease_stores import LeaseSubject


@pytest.mark.parametrize("seed", [0, 3, 4, 6])
async def test_only_the_present_holder_commits(
    subject: LeaseSubject, manager: LeaseManager, rival: LeaseManager, seed: int
) -> None:
    """In any history a commit succeeds if, and only if, the fence under which it is made is that of the record."""
    await run_history(manager, rival, seed=seed, steps=subject.history_steps)


async def test_stale_holder_cannot_bring_a_checkpoint_back(
    manager: LeaseManager, rival: LeaseManager
) -> None:
    """Also the present holder: the record itself says how far it has come."""
    await manager.create_lease(LeaseRecord(key="a", checkpoint=Position("10")))
    seen = await manager.get_lease("a")
    assert seen is not None
    held = await rival.take(seen, "w2")
    assert held is not None

    with pytest.raises(InvalidPositionError, match="expected 10 or later"):
        await rival.update(held, lambda record: rules.commit(record, Position("9")))

    assert await manager.get_lease("a") == held
