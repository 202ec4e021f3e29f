"""Tables of vmware-go-kcl, with its own workers in them: to the letter what they write, and what they can read.

Origins are in vmware/vmware-go-kcl-v2, `clientlibrary/checkpoint/dynamodb-checkpointer_test.go`, written anew; tests
that name none show that we do not have what is wrong there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from consumer.errors import (
    InvalidStateError,
    LeaseNotAcquiredError,
    SequenceIdNotFoundError,
    ShardClaimedError,
    ShutdownError,
)
from consumer.leasing.core import rules
from consumer.leasing.core.position import Position
from consumer.leasing.core.record import LeaseRecord
from consumer.leasing.dynamodb.core.timestamps import NANOSECONDS, moment_of
from consumer.leasing.dynamodb.core.vmware_go import VmwareGoLayout
from consumer.leasing.dynamodb.store import DynamoRecordStore
from consumer.leasing.dynamodb.wall_clock import SKEW_SECONDS, WallClockExpiry
from consumer.leasing.manager import LeaseManager
from consumer.leasing.observer import LeaseObserver
from consumer.leasing.shard_checkpointer import CLAIM_TIMEOUT_SECONDS, ShardCheckpointer
from consumer.leasing.sync_shard_checkpointer import SyncShardCheckpointer
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject
from tests.support.lease_histories import run_history
from tests.support.stepping_clock import SteppingClock
from tests.support.vmware_go_peer import VmwareGoPeer

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

pytestmark = pytest.mark.moto

SHARD = "shardId-000000000000"
NOW_SECONDS = 1_700_000_000.0


@pytest.fixture
def clock() -> SteppingClock:
    """Everybody's."""
    return SteppingClock(NOW_SECONDS)


@pytest.fixture
async def subject(
    dynamodb_client: DynamoDBClient, clock: SteppingClock
) -> AsyncIterator[DynamoSubject]:
    """A table that is there."""
    async with dynamodb_subject(dynamodb_client, "vmware-go", clock=clock) as subject:
        await subject.store.create_store()
        yield subject


@pytest.fixture
def peer(subject: DynamoSubject, clock: SteppingClock) -> VmwareGoPeer:
    """A worker of theirs."""
    return VmwareGoPeer(subject, clock, "go-worker")


@pytest.fixture
def ours(subject: DynamoSubject, clock: SteppingClock) -> ShardCheckpointer:
    """The checkpointer of our worker."""
    return ShardCheckpointer(subject.store, expiry=WallClockExpiry(clock=clock), clock=clock)


def _moment(seconds: float) -> dict[str, Any]:
    return {"S": moment_of(int(seconds * NANOSECONDS))}


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
        "LeaseTimeout": _moment(NOW_SECONDS + 10),
        "Checkpoint": {"S": "49587497311274533994574834252742144236107130636007899139"},
        "ParentShardId": {"S": "shardId-1"},
        "Region": {"S": "eu"},
    }
    await ours.remove_lease_owner(held)
    after = subject.row(SHARD)
    assert "AssignedTo" not in after
    assert after.items() >= {name: row[name] for name in row if name != "AssignedTo"}.items()


async def test_they_wait_for_our_lease_and_take_it_over(
    subject: DynamoSubject, ours: ShardCheckpointer, peer: VmwareGoPeer, clock: SteppingClock
) -> None:
    """Our renewals move the moment that they go by; a checkpoint does not. When they take it, we are fenced."""
    held = await ours.get_lease(SHARD, "w1")
    held = await ours.checkpoint_sequence(held, Position("1"))
    with pytest.raises(subject.client.exceptions.ConditionalCheckFailedException):
        peer.acquire()
    clock.now_seconds += 5
    held = await ours.checkpoint_sequence(held, Position("2"))
    assert subject.row(SHARD)["LeaseTimeout"] == _moment(NOW_SECONDS + 10)
    held = await ours.get_lease(SHARD, "w1")
    assert subject.row(SHARD)["LeaseTimeout"] == _moment(NOW_SECONDS + 15)

    clock.now_seconds += 20
    peer.fetch()
    peer.acquire(expects=subject.row(SHARD))

    with pytest.raises(ShutdownError):
        await ours.checkpoint_sequence(held, Position("3"))
    with pytest.raises(LeaseNotAcquiredError, match="held by go-worker"):
        await ours.get_lease(SHARD, "w1")
    found = await subject.store.get(SHARD)
    assert found is not None
    assert found.record.epoch == held.record.epoch + 1
    assert found.record.checkpoint == Position("2")


async def test_lease_is_over_by_the_wall_clock_and_a_margin(
    ours: ShardCheckpointer, peer: VmwareGoPeer, clock: SteppingClock
) -> None:
    """`TestGetLeaseNotAcquired`: machines' clocks differ by up to the margin."""
    peer.acquire()
    clock.now_seconds += 10 + SKEW_SECONDS
    with pytest.raises(LeaseNotAcquiredError):
        await ours.get_lease(SHARD, "w1")

    clock.now_seconds += 0.1

    assert (await ours.get_lease(SHARD, "w1")).record.owner == "w1"


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


async def test_they_steal_from_us_by_asking(
    subject: DynamoSubject, ours: ShardCheckpointer, peer: VmwareGoPeer, clock: SteppingClock
) -> None:
    """Their claim is a put that drops what is ours; the lease has not changed hands, and nothing is lost by it."""
    held = await ours.get_lease(SHARD, "w1")
    held = await ours.checkpoint_sequence(held, Position("5"))
    manager = LeaseManager(subject.store)
    prepared = await manager.update(held, lambda r: rules.prepare(r, Position("8"), b"note"))
    assert prepared is not None

    peer.claim()

    assert "epoch" not in subject.row(SHARD)
    with pytest.raises(ShardClaimedError):
        await ours.get_lease(SHARD, "w1")
    committed = await ours.checkpoint_sequence(prepared, Position("6"))
    assert committed.record.epoch == held.record.epoch
    assert subject.row(SHARD)["ClaimRequest"] == {"S": "go-worker"}
    await ours.remove_lease_owner(committed)
    peer.fetch()
    peer.acquire()
    assert subject.row(SHARD)["AssignedTo"] == {"S": "go-worker"}
    assert "ClaimRequest" not in subject.row(SHARD)
    assert peer.checkpoint == "6"


async def test_pending_checkpoint_survives_a_claim_of_theirs(
    subject: DynamoSubject, ours: ShardCheckpointer, peer: VmwareGoPeer
) -> None:
    """What a holder announced stays announced until it commits, and is written back with its next renewal."""
    held = await ours.get_lease(SHARD, "w1")
    held = await ours.checkpoint_sequence(held, Position("5"))
    manager = LeaseManager(subject.store)
    held = await manager.update(held, lambda r: rules.prepare(r, Position("8"), b"note")) or held
    peer.claim()

    renewed = await manager.renew(held)

    assert renewed is not None
    assert (renewed.record.pending, renewed.record.claim) == (Position("8"), "go-worker")
    assert (
        await DynamoRecordStore(subject.client, subject.table_name, layout=VmwareGoLayout()).get(
            SHARD
        )
        == renewed
    )


async def test_we_steal_from_them_by_asking(
    subject: DynamoSubject, ours: ShardCheckpointer, peer: VmwareGoPeer
) -> None:
    """`TestClaimShard`, `TestGetLeaseConditional`: owner and parent stay; also of a shard never checkpointed."""
    peer.parent = "shardId-1"
    peer.acquire()
    before = subject.row(SHARD)
    seen = await subject.store.get(SHARD)
    assert seen is not None

    await ours.claim_shard(seen, "w1")

    row = subject.row(SHARD)
    assert row["ClaimRequest"] == {"S": "w1"}
    assert row.items() >= before.items()
    with pytest.raises(LeaseNotAcquiredError, match="held by go-worker"):
        await ours.get_lease(SHARD, "w1")
    peer.release()
    stolen = await ours.get_lease(SHARD, "w1")
    assert "ClaimRequest" not in subject.row(SHARD)
    assert stolen.record.parents == {"shardId-1"}


async def test_lease_that_they_let_go_is_not_claimed(
    subject: DynamoSubject, ours: ShardCheckpointer, peer: VmwareGoPeer
) -> None:
    """Letting go changes the owner alone; a claim on a free lease would only keep everybody away."""
    peer.acquire()
    seen = await subject.store.get(SHARD)
    assert seen is not None
    peer.release()

    with pytest.raises(LeaseNotAcquiredError, match="changed hands"):
        await ours.claim_shard(seen, "w1")

    assert "ClaimRequest" not in subject.row(SHARD)


async def test_claim_on_a_dead_lease_ends(
    ours: ShardCheckpointer, subject: DynamoSubject, peer: VmwareGoPeer, clock: SteppingClock
) -> None:
    """`TestGetLeaseClaimRequestExpiredOwner`, `…Claimer`: until then the claimant alone may take it, after, anybody."""
    peer.acquire()
    seen = await subject.store.get(SHARD)
    assert seen is not None
    await ours.claim_shard(seen, "thief")
    ends = NOW_SECONDS + 10 + SKEW_SECONDS
    clock.now_seconds = ends - 1
    with pytest.raises(LeaseNotAcquiredError, match="held by go-worker"):
        await ours.get_lease(SHARD, "thief")
    clock.now_seconds = ends + CLAIM_TIMEOUT_SECONDS - 1
    with pytest.raises(ShardClaimedError):
        await ours.get_lease(SHARD, "w1")

    clock.now_seconds += 2

    assert (await ours.get_lease(SHARD, "w1")).record.claim is None


async def test_row_of_which_nothing_is_left_is_free(
    subject: DynamoSubject, ours: ShardCheckpointer
) -> None:
    """A worker of theirs that wrote after it let go leaves empty texts: no owner, no claim, no checkpoint."""
    empty = {"S": ""}
    subject.put(
        {
            "ShardID": {"S": SHARD},
            "AssignedTo": empty,
            "LeaseTimeout": _moment(NOW_SECONDS + 5),
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


async def test_observer_sees_them_renew(
    subject: DynamoSubject, peer: VmwareGoPeer, clock: SteppingClock
) -> None:
    """A worker of ours that goes by movement, not by clocks, does not take them for dead while they renew."""
    observer = LeaseObserver(subject.store, lease_seconds=10, clock=clock)
    peer.acquire()
    for _ in range(3):
        assert await observer.free_leases() == ()
        clock.now_seconds += 9
        peer.acquire(expects=subject.row(SHARD))
    assert await observer.free_leases() == ()

    clock.now_seconds += 11

    assert [each.record.key for each in await observer.free_leases()] == [SHARD]


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
