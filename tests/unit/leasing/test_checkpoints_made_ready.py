"""The start of a host: each step is tried again, at once, and for the last time it raises.

Origins are in Azure/azure-event-hubs-node, `processor/tests/retry.spec.ts`; rewritten.
"""

from __future__ import annotations

import pytest

from broadsheet.leases.errors import (
    DependencyError,
    InvalidStateError,
    LeasingError,
    ThrottlingError,
)
from broadsheet.leases.facades.eph import START_ATTEMPTS, CheckpointManager
from tests.support.failing_records import FailingRecords
from tests.support.memory_records import MemoryRecords, MemoryRecordStore

PARTITIONS = ["0", "1", "2"]


class World:
    """A store that fails now and then, and a host at its start."""

    def __init__(self) -> None:
        self.records = MemoryRecords()
        self.store = FailingRecords(MemoryRecordStore(self.records))
        self.checkpoints = CheckpointManager(self.store)


@pytest.fixture
def world() -> World:
    """No store is there."""
    return World()


@pytest.mark.parametrize("operation", ["create_store", "create"])
@pytest.mark.parametrize("failures", [0, 1, START_ATTEMPTS - 1])
async def test_succeeds_in_the_end(world: World, operation: str, failures: int) -> None:
    """Retry: at the first attempt, at a later one, at the last; holders that were made before stay."""
    world.store.failures[operation] = [ThrottlingError("busy")] * failures

    await world.checkpoints.make_ready(PARTITIONS)

    assert world.records.readable() == PARTITIONS
    assert not world.store.failures[operation]


@pytest.mark.parametrize("operation", ["create_store", "create"])
async def test_never_succeeds(world: World, operation: str) -> None:
    """Retry: the last attempt's error is raised, and there is no sixth."""
    world.store.failures[operation] = [DependencyError(f"no answer {n}") for n in range(9)]

    with pytest.raises(DependencyError, match=f"no answer {START_ATTEMPTS - 1}"):
        await world.checkpoints.make_ready(PARTITIONS)

    assert len(world.store.failures[operation]) == 9 - START_ATTEMPTS


async def test_what_is_not_to_be_tried_again_is_not(world: World) -> None:
    """Theirs tries anything five times; a refusal stays one."""
    failures: list[LeasingError] = [InvalidStateError("refused")] * 2
    world.store.failures["create_store"] = failures

    with pytest.raises(InvalidStateError):
        await world.checkpoints.make_ready(PARTITIONS)

    assert len(failures) == 1


async def test_start_again_changes_nothing(world: World) -> None:
    """A host that comes back finds what it made."""
    await world.checkpoints.make_ready(PARTITIONS)
    before = [world.records.current(key) for key in PARTITIONS]

    await world.checkpoints.make_ready(iter(PARTITIONS))

    assert [world.records.current(key) for key in PARTITIONS] == before
