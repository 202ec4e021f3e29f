"""Tables of the Kinesis Client Library for Java, with its own workers in them: who gets a lease, and who learns of it.

Origins, where a test names one, are in awslabs/amazon-kinesis-client, package `leases.dynamodb`; rewritten.
"""

from __future__ import annotations

from random import Random

import pytest

from broadsheet.leases import rules
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import Versioned
from tests.support.dynamodb_stores import DynamoSubject
from tests.support.kcl_peer import KclPeer
from tests.support.leases_at_hand import lease_now, taken_lease

pytestmark = pytest.mark.moto

SHARD = "shardId-000000000000"


async def test_they_take_from_us(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """`testHoldUpdatedLease`, `takeLease_removesCheckpointOwner`: we are fenced, and the epoch has moved on."""
    peer.create(SHARD)
    held = await taken_lease(manager, key=SHARD)

    assert peer.take(subject.row(SHARD))

    assert await manager.renew(held) is None
    assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None
    found = await lease_now(manager, SHARD)
    assert (found.record.owner, found.record.epoch) == ("java", held.record.epoch + 1)
    assert found.fence not in (0, held.fence)
    assert peer.renew(subject.row(SHARD))
    assert (await lease_now(manager, SHARD)).record.epoch == found.record.epoch
    again = await taken_lease(manager, key=SHARD)
    assert again.record.epoch == held.record.epoch + 2


async def test_we_take_from_them(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """Their holder's next write fails, so that it stops."""
    peer.create(SHARD)
    assert peer.take(subject.row(SHARD))
    stale = subject.row(SHARD)

    held = await taken_lease(manager, key=SHARD)

    assert not peer.renew(stale)
    assert not peer.commit(stale, "9")
    assert held.record.owner_switches == 1
    assert await manager.update(held, lambda r: rules.commit(r, Position("9")))


async def test_lease_that_they_gave_back_to_us_is_a_new_one(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """Their leader may assign to a worker of ours what that worker lost: the same owner, another epoch and fence."""
    peer.create(SHARD)
    held = await taken_lease(manager, key=SHARD)
    assert peer.take(subject.row(SHARD))
    assert KclPeer(subject, "w1").take(subject.row(SHARD))

    found = await lease_now(manager, SHARD)

    assert found.record.owner == "w1"
    assert found.record.epoch > held.record.epoch
    assert found.fence != held.fence
    assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None


async def test_they_evict_us(subject: DynamoSubject, manager: LeaseManager, peer: KclPeer) -> None:
    """`testEvictOwnedLease`: by the owner, whatever the counter; nobody holds it then."""
    peer.create(SHARD)
    held = await taken_lease(manager, key=SHARD)
    stale = subject.row(SHARD)
    held = await manager.renew(held) or held

    assert peer.evict(stale)

    assert await manager.renew(held) is None
    assert (await lease_now(manager, SHARD)).fence == 0


async def test_their_leader_hands_our_lease_off(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """`renewLease_testGracefulShutdown_*`: the counter stands, our next renewal shows it; we go on, and pass it on."""
    peer.create(SHARD)
    held = await taken_lease(manager, key=SHARD)
    assert peer.begin_hand_off(subject.row(SHARD), "java")

    renewed = await manager.renew(held)

    assert renewed is not None
    assert (renewed.record.owner, renewed.record.holder) == ("java", "w1")
    assert renewed.fence == held.fence
    done = await manager.update(renewed, lambda r: rules.commit(r, Position("5")))
    assert done is not None
    assert await manager.assign(done, "java")
    row = subject.row(SHARD)
    assert (row["leaseOwner"], "checkpointOwner" in row) == ({"S": "java"}, False)
    assert peer.renew(row)
    assert await manager.renew(done) is None


async def test_hand_off_is_noticed_though_no_counter_moves(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """What was decided before it is decided again: else we would take what their leader has given to another."""
    peer.create(SHARD)
    assert peer.take(subject.row(SHARD))
    seen = await lease_now(manager, SHARD)
    assert peer.begin_hand_off(subject.row(SHARD), "next")

    assert await manager.take(seen, "w1") is None
    assert await manager.evict(seen) is None

    row = subject.row(SHARD)
    assert (row["leaseOwner"], row["checkpointOwner"]) == ({"S": "next"}, {"S": "java"})


async def test_we_hand_their_lease_off(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """`initiateGracefulLeaseHandoff_sanity`: their holder's renewal fails once, which is how it learns of it."""
    peer.create(SHARD)
    assert peer.take(subject.row(SHARD))
    before = subject.row(SHARD)

    handed = await manager.assign(await lease_now(manager, SHARD), "w1", graceful=True)

    assert handed is not None
    row = subject.row(SHARD)
    assert row["leaseCounter"] == before["leaseCounter"]
    assert (row["leaseOwner"], row["checkpointOwner"]) == ({"S": "w1"}, {"S": "java"})
    assert not peer.renew(row)
    assert await manager.assign(handed, "w2", graceful=True) is None
    # `assignLease` by the holder: it passes the lease on.
    assert KclPeer(subject, "w1").take(row)
    assert (await lease_now(manager, SHARD)).record.handoff_from is None


async def test_mixed_history_only_goes_forward(
    subject: DynamoSubject, manager: LeaseManager, peer: KclPeer
) -> None:
    """Whatever workers of both kinds do in turn: no two acquisitions of ours share an epoch, and none goes back."""
    random = Random(7)
    peer.create(SHARD)
    held: Versioned | None = None
    epochs: list[int] = []
    for _ in range(40):
        action = random.choice(["take", "renew", "evict", "java", "java renews", "java evicts"])
        row = subject.row(SHARD)
        if action == "take":
            held = await taken_lease(manager, key=SHARD)
            epochs.append(held.record.epoch)
        elif action == "renew" and held is not None:
            held = await manager.renew(held)
        elif action == "evict":
            await manager.evict(await lease_now(manager, SHARD))
        elif action == "java":
            assert peer.take(row)
        elif action == "java renews" and row.get("leaseOwner") == {"S": "java"}:
            assert peer.renew(row)
        elif action == "java evicts" and "leaseOwner" in row:
            assert peer.evict(row)
        if held is not None and "java" in action and subject.row(SHARD) != row:
            assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None
    assert len(epochs) > 5
    assert epochs == sorted(set(epochs))
