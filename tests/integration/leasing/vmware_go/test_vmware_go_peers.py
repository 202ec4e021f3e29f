"""Tables of vmware-go-kcl, with its own workers in them: who waits for whom, who asks, and who is fenced.

Origins are in vmware/vmware-go-kcl-v2, `clientlibrary/checkpoint/dynamodb-checkpointer_test.go`, rewritten; tests
that name none show that we do not have what is wrong there.
"""

from __future__ import annotations

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import LeaseNotAcquiredError, ShardClaimedError, ShutdownError
from broadsheet.leases.expiry import LeaseObserver
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.facades.vmware_go import CLAIM_TIMEOUT_SECONDS, ShardCheckpointer
from broadsheet.leases.position import Position
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from broadsheet.leases.stores.dynamodb.vmware_go import SKEW_SECONDS, VmwareGoLayout
from tests.support.dynamodb_stores import DynamoSubject
from tests.support.stepping_clock import SteppingClock
from tests.support.vmware_go_peer import VmwareGoPeer, vmware_moment

pytestmark = pytest.mark.moto

SHARD = "shardId-000000000000"
NOW_SECONDS = 1_700_000_000.0


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
    assert subject.row(SHARD)["LeaseTimeout"] == vmware_moment(NOW_SECONDS + 10)
    held = await ours.get_lease(SHARD, "w1")
    assert subject.row(SHARD)["LeaseTimeout"] == vmware_moment(NOW_SECONDS + 15)

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


async def test_holder_that_renewed_since_is_claimed_all_the_same(
    subject: DynamoSubject, ours: ShardCheckpointer, peer: VmwareGoPeer, clock: SteppingClock
) -> None:
    """`TestFetchCheckpointWithStealing`: theirs must read the moment again, for its claim asks for it."""
    peer.acquire()
    peer.commit("5")
    seen = await subject.store.get(SHARD)
    assert seen is not None
    clock.now_seconds += 5
    peer.acquire(expects=subject.row(SHARD))
    peer.commit("6")

    claimed = await ours.claim_shard(seen, "w1")

    assert claimed.record.checkpoint == Position("6")
    row = subject.row(SHARD)
    assert (row["ClaimRequest"], row["Checkpoint"]) == ({"S": "w1"}, {"S": "6"})
    assert row["LeaseTimeout"] == {"S": peer.timeout}


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
