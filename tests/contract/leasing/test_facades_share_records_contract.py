"""Several ways to one record: what a holder announced ends with a commit of any of them, on every backend."""

from __future__ import annotations

from broadsheet.leases import rules
from broadsheet.leases.facades.eph import CheckpointManager
from broadsheet.leases.facades.event_hubs import RecordCheckpointStore
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.facades.vmware_go import ShardCheckpointer
from broadsheet.leases.position import Position
from broadsheet.leases.record import Versioned
from tests.support.lease_stores import LeaseSubject
from tests.support.leases_at_hand import created_lease, lease_now

OWNERSHIP = {
    "fully_qualified_namespace": "n",
    "eventhub_name": "h",
    "consumer_group": "g",
    "partition_id": "0",
}


async def _announced(manager: LeaseManager, held: Versioned) -> Versioned:
    written = await manager.update(
        held, lambda record: rules.prepare(record, Position("9"), b"note")
    )
    assert written is not None
    assert written.record.pending_state == b"note"
    return written


async def test_commit_of_a_shard_checkpointer_ends_what_was_announced(
    subject: LeaseSubject, manager: LeaseManager
) -> None:
    """In vmware-go-kcl nothing can be announced: whoever commits by its operations has processed so far, no more."""
    shards = ShardCheckpointer(subject.store)
    held = await _announced(manager, await shards.get_lease("a", "w1"))

    committed = await shards.checkpoint_sequence(held, Position("7"))

    record = (await lease_now(manager)).record
    assert record == committed.record
    assert (record.pending, record.pending_state) == (None, None)


async def test_update_of_a_checkpoint_manager_ends_what_was_announced(
    subject: LeaseSubject, manager: LeaseManager
) -> None:
    """As in Event Processor Host."""
    held = await manager.take(await created_lease(manager), "w1")
    assert held is not None

    await CheckpointManager(subject.store).update_checkpoint(
        await _announced(manager, held), Position("7", offset="70")
    )

    record = (await lease_now(manager)).record
    assert (record.checkpoint, record.pending, record.pending_state) == (
        Position("7", offset="70"),
        None,
        None,
    )


async def test_checkpoint_of_an_event_processor_ends_what_was_announced(
    subject: LeaseSubject, manager: LeaseManager
) -> None:
    """And in Azure's event processors, whose claims do not."""
    checkpoints = RecordCheckpointStore(subject.store)
    [claimed] = await checkpoints.claim_ownership([OWNERSHIP | {"owner_id": "w1"}])
    [held] = await manager.list_leases()
    await _announced(manager, held)
    [seen] = await checkpoints.list_ownership("n", "h", "g")
    assert seen["etag"] != claimed["etag"]
    await checkpoints.claim_ownership([seen])
    [found] = await manager.list_leases()
    assert found.record.pending == Position("9")

    await checkpoints.update_checkpoint(OWNERSHIP | {"sequence_number": 7, "offset": "70"})

    [found] = await manager.list_leases()
    assert (found.record.pending, found.record.pending_state) == (None, None)
