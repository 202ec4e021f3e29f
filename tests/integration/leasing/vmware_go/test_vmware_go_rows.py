"""Rows of vmware-go-kcl: to the letter what its workers write, and what they can read.

Origins are in vmware/vmware-go-kcl-v2, `clientlibrary/checkpoint/dynamodb-checkpointer_test.go`, rewritten; tests
that name none show that we do not have what is wrong there.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from broadsheet.leases.errors import InvalidStateError, SequenceIdNotFoundError, ShutdownError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.facades.vmware_go import ShardCheckpointer, SyncShardCheckpointer
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout, WallClockExpiry
from tests.support.dynamodb_stores import DynamoSubject
from tests.support.lease_histories import run_history
from tests.support.stepping_clock import SteppingClock
from tests.support.vmware_go_peer import VmwareGoPeer, vmware_moment

pytestmark = pytest.mark.moto

SHARD = "shardId-000000000000"
NOW_SECONDS = 1_700_000_000.0


async def test_row_of_theirs_is_read_taken_and_checkpointed(
    subject: DynamoSubject, ours: ShardCheckpointer
) -> None:
    """`TestGetLeaseAquired`: to the letter of their types, an unknown attribute kept, and the moment's nanoseconds."""
    moment = "2023-11-14T22:13:09.123456789Z"
    subject.put(
        {
            "ShardID": {"S": SHARD},
            "AssignedTo": {"S": "dead"},
            "LeaseTimeout": {"S": moment},
            "Checkpoint": {"S": "49587497311274533994574834252742144236107130636007899138"},
            "ParentShardId": {"S": "shardId-1"},
            "Region": {"S": "eu"},
        }
    )
    found = await subject.store.get(SHARD)
    assert found is not None
    assert found.record.attrs == {"LeaseTimeout": f'"{moment}"', "Region": '"eu"'}
    assert (found.record.owner, found.record.parents) == ("dead", frozenset({"shardId-1"}))

    held = await ours.get_lease(SHARD, "w1")
    held = await ours.checkpoint_sequence(
        held, Position("49587497311274533994574834252742144236107130636007899139")
    )

    row = subject.row(SHARD)
    del row["rev"], row["epoch"], row["broadsheet"]
    assert row == {
        "ShardID": {"S": SHARD},
        "AssignedTo": {"S": "w1"},
        "LeaseTimeout": vmware_moment(NOW_SECONDS + 10),
        "Checkpoint": {"S": "49587497311274533994574834252742144236107130636007899139"},
        "ParentShardId": {"S": "shardId-1"},
        "Region": {"S": "eu"},
    }
    await ours.remove_lease_owner(held)
    after = subject.row(SHARD)
    assert "AssignedTo" not in after
    assert after.items() >= {name: row[name] for name in row if name != "AssignedTo"}.items()


async def test_checkpoint_between_reading_and_taking_is_not_undone(
    subject: DynamoSubject, peer: VmwareGoPeer
) -> None:
    """Theirs puts back the checkpoint that a taker read; ours gives up, for the row is not what was seen."""
    manager = LeaseManager(subject.store)
    peer.acquire()
    peer.commit("5")
    seen = await manager.get_lease(SHARD)
    assert seen is not None
    peer.commit("9")

    assert await manager.take(seen, "w1") is None

    assert subject.row(SHARD)["Checkpoint"] == {"S": "9"}
    seen = await manager.get_lease(SHARD)
    assert seen is not None
    taken = await manager.take(seen, "w1")
    assert taken is not None
    assert taken.record.checkpoint == Position("9")


async def test_blind_write_of_theirs_is_noticed(
    subject: DynamoSubject, ours: ShardCheckpointer, peer: VmwareGoPeer, clock: SteppingClock
) -> None:
    """A zombie of theirs overwrites whoever holds the lease; we cannot keep it from that, but we stop."""
    peer.acquire()
    peer.commit("5")
    clock.now_seconds += 20
    held = await ours.get_lease(SHARD, "w1")

    peer.commit("6")

    assert "rev" not in subject.row(SHARD)
    with pytest.raises(ShutdownError):
        await ours.checkpoint_sequence(held, Position("7"))
    assert subject.row(SHARD)["Checkpoint"] == {"S": "6"}
    clock.now_seconds += 20
    again = await ours.get_lease(SHARD, "w1")
    assert again.record.epoch >= held.record.epoch + 2


async def test_epochs_go_on_after_a_foreign_write_that_nobody_saw(
    subject: DynamoSubject, peer: VmwareGoPeer, clock: SteppingClock
) -> None:
    """A process that knows no last epoch begins beyond any that was: a sink would refuse its worker else."""
    held = None
    for _ in range(3):
        await subject.store.delete(SHARD)
        peer.acquire()
        fresh = DynamoRecordStore(
            subject.client, subject.table_name, layout=VmwareGoLayout(), clock=clock
        )
        seen = await fresh.get(SHARD)
        assert seen is not None
        taken = await LeaseManager(fresh).take(seen, "w1")
        assert taken is not None
        assert held is None or taken.record.epoch > held.record.epoch
        assert taken.record.epoch < 2**63
        held = taken
        clock.now_seconds += 11


async def test_row_of_which_nothing_is_left_is_free(
    subject: DynamoSubject, ours: ShardCheckpointer
) -> None:
    """A worker of theirs that wrote after it let go leaves empty texts: no owner, no claim, no checkpoint."""
    empty = {"S": ""}
    subject.put(
        {
            "ShardID": {"S": SHARD},
            "AssignedTo": empty,
            "LeaseTimeout": vmware_moment(NOW_SECONDS + 5),
            "Checkpoint": empty,
            "ClaimRequest": empty,
        }
    )
    found = await subject.store.get(SHARD)
    assert found is not None
    assert (found.record.owner, found.record.checkpoint, found.record.claim) == (None, None, None)
    assert found.fence == 0
    with pytest.raises(SequenceIdNotFoundError):
        await ours.fetch_checkpoint(SHARD)

    held = await ours.get_lease(SHARD, "w1")

    assert subject.row(SHARD)["AssignedTo"] == {"S": "w1"}
    committed = await ours.checkpoint_sequence(held, Position("1"))
    assert committed.record.checkpoint == Position("1")


async def test_owner_without_a_moment_has_none(
    subject: DynamoSubject, ours: ShardCheckpointer
) -> None:
    """Theirs asks then for a row without an owner, which this is not: nobody could ever take the shard."""
    subject.put(
        {"ShardID": {"S": SHARD}, "AssignedTo": {"S": "go-worker"}, "Checkpoint": {"S": "5"}}
    )

    held = await ours.get_lease(SHARD, "w1")

    assert (held.record.owner, held.record.checkpoint) == ("w1", Position("5"))


async def test_table_is_there_or_not(subject: DynamoSubject) -> None:
    """`TestDoesTableExist`: described, it is; not found, it is not, and nothing is made by asking."""
    other = DynamoRecordStore(subject.client, f"{subject.table_name}-2", layout=VmwareGoLayout())

    assert await subject.store.exists()
    assert not await other.exists()
    assert not await other.exists()


async def test_place_to_start_at_is_not_shown_to_them(subject: DynamoSubject) -> None:
    """They would take TRIM_HORIZON for a sequence number; without a checkpoint they start where they are told."""
    await LeaseManager(subject.store).create_lease(
        LeaseRecord(key=SHARD, checkpoint=Position("TRIM_HORIZON"))
    )

    assert "Checkpoint" not in subject.row(SHARD)
    found = await subject.rival.get(SHARD)
    assert found is not None
    assert found.record.checkpoint == Position("TRIM_HORIZON")


async def test_moment_that_is_none_is_told(subject: DynamoSubject, ours: ShardCheckpointer) -> None:
    """Nobody could tell whether such a lease is over."""
    subject.put(
        {"ShardID": {"S": SHARD}, "AssignedTo": {"S": "x"}, "LeaseTimeout": {"S": "yesterday"}}
    )

    with pytest.raises(InvalidStateError, match="RFC 3339"):
        await ours.get_lease(SHARD, "w1")


async def test_active_workers_are_listed_over_pages(
    subject: DynamoSubject, clock: SteppingClock
) -> None:
    """Theirs reads one page only."""
    small = DynamoRecordStore(
        subject.client, subject.table_name, layout=VmwareGoLayout(), page_rows=2
    )
    shards = [f"shardId-{number}" for number in range(7)]
    for shard in shards:
        VmwareGoPeer(subject, clock, f"go-{shard[-1]}", shard).acquire()

    workers = await ShardCheckpointer(small).list_active_workers(shards)

    assert workers == {f"go-{number}": [f"shardId-{number}"] for number in range(7)}


async def test_only_the_present_holder_commits(subject: DynamoSubject) -> None:
    """In a random history of workers of ours, as on other backends."""
    await run_history(
        LeaseManager(subject.store),
        LeaseManager(subject.rival),
        seed=3,
        steps=subject.history_steps,
    )


def test_without_an_event_loop(subject: DynamoSubject, clock: SteppingClock) -> None:
    """The same operations block."""
    with SyncShardCheckpointer(
        lambda: nullcontext(subject.rival), expiry=WallClockExpiry(clock=clock)
    ) as ours:
        ours.init()
        held = ours.get_lease(SHARD, "w1")
        held = ours.checkpoint_sequence(held, Position("5"))
        assert ours.claim_shard(held, "w2").record.claim == "w2"
        assert ours.list_active_workers([SHARD]) == {"w1": [SHARD]}
        assert (ours.fetch_checkpoint(SHARD), ours.get_lease_owner(SHARD)) == (Position("5"), "w1")
        ours.remove_lease_owner(held)
        ours.remove_lease_info(SHARD)
        with pytest.raises(SequenceIdNotFoundError):
            ours.fetch_checkpoint(SHARD)
