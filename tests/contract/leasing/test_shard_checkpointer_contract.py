"""The shard checkpointer over every backend: what vmware-go-kcl tests of its own, and what it should.

Origins are in vmware/vmware-go-kcl-v2, `clientlibrary/checkpoint/dynamodb-checkpointer_test.go`. Rewritten; those
that rest on the moments in its table are in the tests of that table.
"""

from __future__ import annotations

import pytest

from broadsheet.leases.errors import (
    InvalidPositionError,
    LeaseNotAcquiredError,
    SequenceIdNotFoundError,
    ShardClaimedError,
    ShardNotAssignedError,
    ShutdownError,
)
from broadsheet.leases.facades.vmware_go import (
    CLAIM_TIMEOUT_SECONDS,
    LISTING_SECONDS,
    ShardCheckpointer,
)
from broadsheet.leases.position import SHARD_END, Position
from tests.support.lease_stores import LeaseSubject
from tests.support.stepping_clock import SteppingClock


@pytest.fixture
def clock() -> SteppingClock:
    """That of both processes."""
    return SteppingClock(1_000.0)


@pytest.fixture
def first(subject: LeaseSubject, clock: SteppingClock) -> ShardCheckpointer:
    """In w1's process."""
    return ShardCheckpointer(subject.store, clock=clock)


@pytest.fixture
def second(subject: LeaseSubject, clock: SteppingClock) -> ShardCheckpointer:
    """In the process of w2 and w3."""
    return ShardCheckpointer(subject.rival, clock=clock)


async def test_lease_is_acquired_once_and_renewed(
    subject: LeaseSubject, first: ShardCheckpointer, second: ShardCheckpointer
) -> None:
    """`TestGetLeaseNotAcquired`: made where it is not, refused to others, renewed under one fence."""
    await first.init()  # Again: no error.
    held = await first.get_lease("a", "w1", parents=frozenset({"p"}))

    with pytest.raises(LeaseNotAcquiredError, match="held by w1") as refused:
        await second.get_lease("a", "w2")
    renewed = await first.get_lease("a", "w1")

    assert not isinstance(refused.value, ShardClaimedError)
    assert held.record.parents == {"p"}
    assert renewed.fence == held.fence
    assert (renewed.version != held.version) == (not subject.store.tells_who_lives)
    assert await second.get_lease_owner("a") == "w1"


async def test_free_lease_takes_no_checkpoint(
    first: ShardCheckpointer, second: ShardCheckpointer
) -> None:
    """Who let a lease go has no say in where the next holder begins, before that one comes and after."""
    released = await first.remove_lease_owner(await first.get_lease("a", "w1"))

    with pytest.raises(ShutdownError, match="lease a"):
        await first.checkpoint_sequence(released, Position("7"))

    with pytest.raises(SequenceIdNotFoundError):
        await second.fetch_checkpoint("a")


async def test_released_lease_keeps_all_but_its_owner(
    first: ShardCheckpointer, second: ShardCheckpointer
) -> None:
    """`TestGetLeaseAquired`: the next worker goes on at the checkpoint; who let go has nothing to let go any more."""
    with pytest.raises(SequenceIdNotFoundError):
        await first.fetch_checkpoint("a")
    held = await first.get_lease("a", "w1")
    with pytest.raises(SequenceIdNotFoundError):
        await first.fetch_checkpoint("a")
    held = await first.checkpoint_sequence(held, Position("11"))

    await first.remove_lease_owner(held)

    with pytest.raises(ShutdownError):
        await first.remove_lease_owner(held)
    with pytest.raises(ShardNotAssignedError):
        await first.get_lease_owner("a")
    assert await second.fetch_checkpoint("a") == Position("11")
    taken = await second.get_lease("a", "w2")
    assert taken.record.checkpoint == Position("11")
    assert taken.record.epoch == held.record.epoch + 1
    await second.remove_lease_info("a")
    await second.remove_lease_info("a")
    with pytest.raises(ShardNotAssignedError):
        await second.get_lease_owner("a")


async def test_zombie_writes_nothing(
    first: ShardCheckpointer, second: ShardCheckpointer, subject: LeaseSubject
) -> None:
    """Upstream a worker that lost its lease overwrites its heir with its next checkpoint; here it learns of it."""
    zombie = await first.get_lease("a", "w1")
    await second.remove_lease_owner(zombie)  # An operator: whoever knows the record may.
    heir = await second.get_lease("a", "w2")

    with pytest.raises(ShutdownError):
        await first.checkpoint_sequence(zombie, Position("99"))
    with pytest.raises(ShutdownError):
        await first.remove_lease_owner(zombie)
    with pytest.raises(LeaseNotAcquiredError):
        await first.get_lease("a", "w1")

    assert await subject.store.get("a") == heir
    heir = await second.checkpoint_sequence(heir, Position("7"))
    with pytest.raises(InvalidPositionError):
        await second.checkpoint_sequence(heir, Position("6"))


async def test_worker_that_starts_again_fences_its_past(
    subject: LeaseSubject, first: ShardCheckpointer, clock: SteppingClock
) -> None:
    """Of a fixed name: it has its leases at once, and what it was before can write no more."""
    past = await first.get_lease("a", "w1")

    present = await ShardCheckpointer(subject.store, clock=clock).get_lease("a", "w1")

    assert present.record.epoch == past.record.epoch + 1
    with pytest.raises(ShutdownError):
        await first.checkpoint_sequence(past, Position("1"))


async def test_lease_is_stolen_by_asking(
    subject: LeaseSubject, first: ShardCheckpointer, second: ShardCheckpointer
) -> None:
    """`TestGetLeaseShardClaimed`, `TestClaimShard`: everybody hears of the claim, only the claimant gets the lease.

    Upstream the victim's next checkpoint erases the claim, and a shard without a checkpoint cannot be claimed.
    """
    held = past = await first.get_lease("a", "w1")

    claimed = await second.claim_shard(held, "w2")

    assert (claimed.record.claim, claimed.record.owner) == ("w2", "w1")
    assert await second.claim_shard(held, "w2") == claimed  # It asked already.
    with pytest.raises(ShardClaimedError):
        await second.claim_shard(claimed, "w3")
    held = await first.checkpoint_sequence(held, Position("5"))
    assert held.record.claim == "w2"
    with pytest.raises(ShardClaimedError):
        await first.get_lease("a", "w1")
    with pytest.raises(LeaseNotAcquiredError, match="held by w1"):
        await second.get_lease("a", "w2")
    await first.remove_lease_owner(held)
    with pytest.raises(ShardClaimedError):
        await second.get_lease("a", "w3")
    with pytest.raises(ShardClaimedError):
        await first.get_lease("a", "w1")

    stolen = await second.get_lease("a", "w2")

    assert (stolen.record.owner, stolen.record.claim) == ("w2", None)
    assert stolen.record.checkpoint == Position("5")
    finished = await second.checkpoint_sequence(stolen, Position(SHARD_END))
    with pytest.raises(LeaseNotAcquiredError, match="finished"):
        await first.claim_shard(finished, "w1")
    with pytest.raises(LeaseNotAcquiredError, match="changed hands"):
        await first.claim_shard(past, "w3")


async def test_claim_of_a_dead_thief_ends(
    subject: LeaseSubject,
    first: ShardCheckpointer,
    second: ShardCheckpointer,
    clock: SteppingClock,
) -> None:
    """`TestGetLeaseClaimRequestExpired…`: it keeps others away for a while; without stealing, not at all."""
    held = await first.get_lease("a", "w1")
    await first.remove_lease_owner(await second.claim_shard(held, "thief"))
    with pytest.raises(ShardClaimedError):
        await first.get_lease("a", "w1")

    clock.now_seconds += CLAIM_TIMEOUT_SECONDS
    with pytest.raises(ShardClaimedError):
        await first.get_lease("a", "w1")
    clock.now_seconds += 11
    held = await first.get_lease("a", "w1")

    assert held.record.claim is None
    await second.claim_shard(held, "thief")
    careless = ShardCheckpointer(subject.store, claim_timeout_seconds=None, clock=clock)
    assert (await careless.get_lease("a", "w1")).record.owner == "w1"


async def test_list_active_workers(
    first: ShardCheckpointer, second: ShardCheckpointer, clock: SteppingClock
) -> None:
    """`TestListActiveWorkers`, `…ErrShardNotAssigned`: finished shards are left out, free ones make it an error."""
    held = {shard: await first.get_lease(shard, "w1") for shard in ("a", "b", "c")}
    await second.get_lease("d", "w2")
    await first.checkpoint_sequence(held["c"], Position(SHARD_END))

    expected = {"w1": ["a", "b"], "w2": ["d"]}
    assert await first.list_active_workers(["a", "b", "c", "d"]) == expected
    await first.remove_lease_owner(held["b"])
    assert await first.list_active_workers(["a", "b", "c", "d"]) == expected  # As it was read.
    clock.now_seconds += LISTING_SECONDS
    with pytest.raises(ShardNotAssignedError, match="shard b"):
        await first.list_active_workers(["a", "b", "c", "d"])
    with pytest.raises(ShardNotAssignedError, match="shard z"):
        await second.list_active_workers(["a", "z"])
