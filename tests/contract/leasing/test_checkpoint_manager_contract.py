"""Checkpoints as Event Processor Host manages them, on one backend of each kind.

Origins are in Azure/azure-event-hubs-node `processor/tests`. Rewritten, over records instead of blobs.
"""

from __future__ import annotations

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import InvalidPositionError, ShutdownError
from broadsheet.leases.facades.eph import CheckpointManager
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from tests.support.lease_stores import LeaseSubject

pytestmark = pytest.mark.parametrize(
    "subject",
    [
        pytest.param("etcd", marks=pytest.mark.etcd),
        "sqlite",
        pytest.param("azurite", marks=pytest.mark.azurite),
    ],
    indirect=True,
)
"""One backend of each kind: what they promise is tested elsewhere, on all."""

FIRST = Position("0", offset="0")
SECOND = Position("7", offset="opaque")


@pytest.fixture
def checkpoints(subject: LeaseSubject) -> CheckpointManager:
    """Those of w1's process."""
    return CheckpointManager(subject.store)


async def _held(manager: LeaseManager, worker: str = "w1") -> Versioned:
    await manager.create_lease(LeaseRecord(key="0"))
    seen = await manager.get_lease("0")
    assert seen is not None
    held = await manager.take(seen, worker)
    assert held is not None
    return held


async def test_store_exists_is_created_and_deleted(
    checkpoints: CheckpointManager, subject: LeaseSubject
) -> None:
    """`eph.spec`: what a host does at its start, as often as it starts; deleting what is not there is no error."""
    assert await checkpoints.checkpoint_store_exists()
    await checkpoints.create_checkpoint_store_if_not_exists()
    await checkpoints.delete_checkpoint_store()
    await checkpoints.delete_checkpoint_store()

    assert not await checkpoints.checkpoint_store_exists()

    await checkpoints.create_checkpoint_store_if_not_exists()
    assert await CheckpointManager(subject.rival).checkpoint_store_exists()


async def test_holders_are_no_checkpoints(
    checkpoints: CheckpointManager, manager: LeaseManager
) -> None:
    """A host that starts again makes them again: those that are there keep their lease and their checkpoint."""
    await checkpoints.create_all_checkpoints_if_not_exists(["0", "1"])
    assert await checkpoints.get_checkpoint("0") is None
    assert await checkpoints.get_checkpoint("9") is None
    held = await checkpoints.update_checkpoint(await _held(manager), FIRST)

    await checkpoints.create_all_checkpoints_if_not_exists(["0", "1", "2"])

    assert await manager.get_lease("0") == held
    assert [each.record.key for each in await manager.list_leases()] == ["0", "1", "2"]


async def test_checkpoint_messages_in_order(
    checkpoints: CheckpointManager, manager: LeaseManager
) -> None:
    """`should checkpoint messages in order`; zero is as good a number as any, and the offset comes back as it was."""
    first = await checkpoints.update_checkpoint(await _held(manager), FIRST)
    assert await checkpoints.get_checkpoint("0") == FIRST

    second = await checkpoints.update_checkpoint(first, SECOND)

    found = await checkpoints.get_checkpoint("0")
    assert (found, found and found.offset) == (SECOND, "opaque")
    with pytest.raises(InvalidPositionError, match="expected 7 or later"):
        await checkpoints.update_checkpoint(second, FIRST)
    again = await checkpoints.update_checkpoint(second, SECOND)
    assert again.record.checkpoint == SECOND


async def test_repeated_checkpoint_may_be_refused(
    subject: LeaseSubject, manager: LeaseManager
) -> None:
    """As `context.checkpoint()` of a host does; whatever the offset says."""
    strict = CheckpointManager(subject.store, refuse_repeated=True)
    held = await strict.update_checkpoint(await _held(manager), SECOND)

    with pytest.raises(InvalidPositionError, match="expected one beyond 7"):
        await strict.update_checkpoint(held, Position("7", offset="another"))

    assert await manager.get_lease("0") == held


async def test_update_under_a_lost_lease_raises(
    checkpoints: CheckpointManager, manager: LeaseManager, rival: LeaseManager
) -> None:
    """A host only tells its error handler, and its caller believes that the checkpoint is stored."""
    held = await _held(manager)
    taken = await rival.take(held, "w2")

    with pytest.raises(ShutdownError, match="stop processing"):
        await checkpoints.update_checkpoint(held, FIRST)

    assert await manager.get_lease("0") == taken


async def test_update_without_a_lease_raises(
    checkpoints: CheckpointManager, manager: LeaseManager
) -> None:
    """A holder that nobody leases takes no checkpoint."""
    await checkpoints.create_all_checkpoints_if_not_exists(["0"])
    free = await manager.get_lease("0")
    assert free is not None

    with pytest.raises(ShutdownError):
        await checkpoints.update_checkpoint(free, FIRST)

    assert await manager.get_lease("0") == free


async def test_update_ends_what_was_pending(
    checkpoints: CheckpointManager, manager: LeaseManager
) -> None:
    """Ours: a commit by who knows nothing of pending positions clears them, as any does."""
    held = await manager.update(
        await _held(manager), lambda record: rules.prepare(record, FIRST, b"note")
    )
    assert held is not None

    updated = await checkpoints.update_checkpoint(held, SECOND)

    assert (updated.record.pending, updated.record.pending_state) == (None, None)


async def test_delete_checkpoint_keeps_the_lease(
    checkpoints: CheckpointManager, manager: LeaseManager
) -> None:
    """`deleteCheckpoint`: absent is success; the holder's next write is not disturbed."""
    held = await checkpoints.update_checkpoint(await _held(manager), SECOND)

    await checkpoints.delete_checkpoint("0")
    await checkpoints.delete_checkpoint("0")
    await checkpoints.delete_checkpoint("9")

    assert await checkpoints.get_checkpoint("0") is None
    updated = await checkpoints.update_checkpoint(held, Position("8", offset="8"))
    assert updated.record.owner == "w1"
    assert await checkpoints.get_checkpoint("0") == Position("8", offset="8")


async def test_missing_holders_are_made_whatever_else_is_there(
    checkpoints: CheckpointManager, subject: LeaseSubject
) -> None:
    """A host makes none if there are as many blobs as partitions; here each partition is looked for by its name."""
    await checkpoints.create_all_checkpoints_if_not_exists(["0", "elsewhere"])

    await checkpoints.make_ready(["0", "1"])

    assert await subject.store.get("1") is not None
    assert await checkpoints.get_checkpoint("1") is None
