"""The lease manager over every backend: what the Kinesis Client Library tests of its own, each named after its origin.

Origins are in awslabs/amazon-kinesis-client, package `leases.dynamodb`: `DynamoDBLeaseRefresherIntegrationTest` unless
a test says otherwise. Written anew; where we differ on purpose, the docstring says so.
"""

from __future__ import annotations

from dataclasses import replace

from consumer.leasing.core import rules
from consumer.leasing.core.position import Position
from consumer.leasing.core.record import HashRange, LeaseRecord, Versioned
from consumer.leasing.manager import LeaseManager
from tests.support.lease_stores import LeaseSubject


async def _created(manager: LeaseManager, record: LeaseRecord | None = None) -> Versioned:
    record = record or LeaseRecord(key="a", checkpoint=Position("TRIM_HORIZON"))
    assert await manager.create_lease(record)
    found = await manager.get_lease(record.key)
    assert found is not None
    return found


async def _held(manager: LeaseManager, owner: str = "w1", key: str = "a") -> Versioned:
    record = LeaseRecord(key=key, checkpoint=Position("TRIM_HORIZON"))
    held = await manager.take(await _created(manager, record), owner)
    assert held is not None
    return held


async def _now(manager: LeaseManager, key: str = "a") -> Versioned:
    found = await manager.get_lease(key)
    assert found is not None
    return found


class TestList:
    """Reading leases."""

    async def test_list_no_records(self, manager: LeaseManager) -> None:
        """`testListNoRecords`; `isLeaseTableEmpty`: an empty store is empty."""
        assert await manager.list_leases() == ()
        assert await manager.is_empty()

    async def test_list_with_records(self, manager: LeaseManager) -> None:
        """`testListWithRecords`: ten are found again."""
        for number in range(10):
            assert await manager.create_lease(LeaseRecord(key=str(number)))

        assert [found.record.key for found in await manager.list_leases()] == list("0123456789")
        assert not await manager.is_empty()

    async def test_list_leases_of_worker(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`listLeaseKeysForWorker`: a worker finds what is its own, and what is handed off to it."""
        mine, handed = await _held(manager, key="a"), await _held(manager, key="b")
        theirs = await _held(rival, "w2", key="c")
        await manager.assign(handed, "w2", graceful=True)

        assert await manager.list_leases_of("w1") == (mine,)
        assert [found.record.key for found in await manager.list_leases_of("w2")] == ["b", "c"]
        assert theirs in await manager.list_leases()

    async def test_get_lease(self, manager: LeaseManager) -> None:
        """`testGetLease`, `testGetNull`: a round trip, and none where there is none."""
        created = await _created(manager)

        assert created.record == replace(
            LeaseRecord(key="a", checkpoint=Position("TRIM_HORIZON")),
            write_id=created.record.write_id,
        )
        assert await manager.get_lease("b") is None

    async def test_create_lease_if_not_exists(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`createLeaseIfNotExists`: the second is told, and the first one's stays."""
        first = await _created(manager)

        assert not await rival.create_lease(LeaseRecord(key="a", checkpoint=Position("7")))
        assert await rival.get_lease("a") == first


class TestRenew:
    """The holder's sign of life."""

    async def test_renew_lease(self, subject: LeaseSubject, manager: LeaseManager) -> None:
        """`testRenewLease`: the counter grows by one, there and in what is returned; not on etcd, which knows."""
        held = await _held(manager)

        renewed = await manager.renew(held)

        assert renewed is not None
        beats = 0 if subject.store.tells_who_lives else 1
        assert renewed.record.counter == held.record.counter + beats
        assert await manager.get_lease("a") == renewed

    async def test_hold_updated_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testHoldUpdatedLease`: after another took it, the old holder's copy renews nothing."""
        held = await _held(manager)
        taken = await rival.take(await _now(rival), "w2")

        assert await manager.renew(held) is None
        assert await manager.get_lease("a") == taken

    async def test_renew_regained_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testUpdateRegainedLease` (DynamoDBLeaseRenewerIntegrationTest): what was lost between stays lost."""
        held = await _held(manager)
        taken = await rival.take(held, "w2")
        assert taken is not None
        assert await manager.take(taken, "w1")

        assert await manager.renew(held) is None
        assert (
            await manager.update(held, lambda record: rules.commit(record, Position("1"))) is None
        )
        assert (await _now(manager)).record.checkpoint == Position("TRIM_HORIZON")

    async def test_renew_of_lease_nobody_holds(self, manager: LeaseManager) -> None:
        """Ours: only who holds a lease can show that it lives."""
        assert await manager.renew(await _created(manager)) is None

    async def test_renew_after_delete(self, manager: LeaseManager) -> None:
        """`renewLease_testGracefulShutdown` (no row): gone is lost, and nothing is written."""
        held = await _held(manager)
        assert await manager.delete("a")

        assert await manager.renew(held) is None
        assert await manager.is_empty()


class TestTake:
    """Acquiring."""

    async def test_take_unowned_lease(self, manager: LeaseManager) -> None:
        """`testTakeUnownedLease`: counter + 1, no switch of owners, a new epoch."""
        seen = await _created(manager)

        taken = await manager.take(seen, "w1")

        assert taken is not None
        expected = replace(
            seen.record, owner="w1", counter=1, epoch=1, write_id=taken.record.write_id
        )
        # A table of vmware-go-kcl notes the time besides.
        assert replace(taken.record, attrs={}) == expected
        assert await manager.get_lease("a") == taken

    async def test_take_owned_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testTakeOwnedLease`: one switch of owners; what was pending stays for the successor."""
        held = await _held(manager)
        prepared = await manager.update(
            held, lambda record: rules.prepare(record, Position("5"), b"note")
        )
        assert prepared is not None

        taken = await rival.take(prepared, "w2")

        assert taken is not None
        assert (taken.record.owner, taken.record.owner_switches) == ("w2", 1)
        assert (taken.record.pending, taken.record.pending_state) == (Position("5"), b"note")
        assert taken.record.epoch == held.record.epoch + 1

    async def test_take_updated_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testTakeUpdatedLease`: a stale copy takes nothing."""
        seen = await _created(manager)
        taken = await rival.take(seen, "w2")

        assert await manager.take(seen, "w1") is None
        assert await manager.get_lease("a") == taken

    async def test_commit_before_take_is_not_rolled_back(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """Ours: a defect of vmware-go-kcl, whose taker writes back the checkpoint that it had read."""
        held = await _held(manager)
        committed = await manager.update(held, lambda r: rules.commit(r, Position("9")))

        assert await rival.take(held, "w2") is None
        assert await rival.get_lease("a") == committed

    async def test_take_lease_removes_checkpoint_owner(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`takeLease_removesCheckpointOwner` (DynamoDBLeaseRefresherTest): taking ends a hand-off and a claim."""
        handed = await manager.assign(await _held(manager), "w2", graceful=True)
        assert handed is not None

        taken = await rival.take(handed, "w2")

        assert taken is not None
        assert (taken.record.owner, taken.record.handoff_from) == ("w2", None)
        assert taken.record.owner_switches == 1


class TestEvict:
    """Taking a lease away."""

    async def test_evict_owned_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testEvictOwnedLease`: no owner, counter + 1; the epoch stays, the holder is fenced."""
        held = await _held(manager)

        evicted = await rival.evict(held)

        assert evicted is not None
        assert (evicted.record.owner, evicted.fence) == (None, 0)
        assert evicted.record.counter == held.record.counter + 1
        assert evicted.record.epoch == held.record.epoch
        assert await manager.renew(held) is None

    async def test_evict_renewed_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`evictLease` compares owners, not the counter: the holder's writes do not save it."""
        held = await _held(manager)
        assert await manager.update(held, lambda r: rules.commit(r, Position("1")))

        evicted = await rival.evict(held)

        assert evicted is not None
        assert evicted.record.owner is None
        assert evicted.record.checkpoint == Position("1")

    async def test_evict_changed_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testEvictChangedLease`: another owner by now keeps it."""
        held = await _held(manager)
        taken = await rival.take(held, "w2")

        assert await manager.evict(held) is None
        assert await manager.get_lease("a") == taken

    async def test_evict_lease_removes_checkpoint_owner(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`evictLease_removesCheckpointOwner`: it ends a hand-off by force; the next owner holds the lease."""
        held = await _held(manager)
        handed = await manager.assign(held, "w2", graceful=True)
        assert handed is not None

        evicted = await rival.evict(handed)

        assert evicted is not None
        assert (evicted.record.owner, evicted.record.handoff_from) == ("w2", None)
        assert evicted.fence not in (0, held.fence)
        assert await manager.renew(held) is None
        assert await manager.update(held, lambda record: record) is None
        assert await rival.renew(evicted)

    async def test_evict_lease_no_op_if_lease_not_exists(self, manager: LeaseManager) -> None:
        """`evictLease_noOpIfLeaseNotExists`: nothing appears."""
        held = await _held(manager)
        await manager.delete("a")

        assert await manager.evict(held) is None
        assert await manager.is_empty()


class TestUpdate:
    """What the holder writes."""

    async def test_update_lease(self, manager: LeaseManager) -> None:
        """`testUpdateLease`: checkpoint and children are stored, counter + 1; key and owner cannot be touched."""
        held = await _held(manager)

        updated = await manager.update(
            held,
            lambda record: replace(
                rules.note_children(rules.commit(record, Position("3")), children=frozenset("b")),
                key="b",
                owner="w9",
                epoch=99,
            ),
        )

        assert updated is not None
        assert (updated.record.key, updated.record.owner) == ("a", "w1")
        assert updated.record.epoch == held.record.epoch
        assert updated.record.counter == held.record.counter + 1
        assert updated.record.children == {"b"}
        assert await manager.get_lease("a") == updated

    async def test_update_checkpoint(self, manager: LeaseManager) -> None:
        """`testUpdateCheckpoint` (DynamoDBLeaseCoordinatorIntegrationTest): commit, prepare with state, commit."""
        held = await _held(manager)

        first = await manager.update(held, lambda r: rules.commit(r, Position("10")))
        assert first is not None
        second = await manager.update(first, lambda r: rules.prepare(r, Position("12", 1), b"s"))
        assert second is not None
        third = await manager.update(second, lambda r: rules.commit(r, Position("12", 1)))
        assert third is not None

        counters = [each.record.counter - held.record.counter for each in (first, second, third)]
        assert counters == [1, 2, 3]
        assert (second.record.checkpoint, second.record.pending) == (
            Position("10"),
            Position("12", 1),
        )
        assert (third.record.checkpoint, third.record.pending, third.record.pending_state) == (
            Position("12", 1),
            None,
            None,
        )

    async def test_update_checkpoint_lease_updated(self, manager: LeaseManager) -> None:
        """`testUpdateCheckpointLeaseUpdated`: the counter moved behind our back, so the checkpoint is not written."""
        held = await _held(manager)
        moved = await manager.update(held, lambda record: record)

        assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None
        assert await manager.get_lease("a") == moved

    async def test_update_lost_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testUpdateLostLease` (DynamoDBLeaseRenewerIntegrationTest): a zombie's checkpoint changes nothing."""
        held = await _held(manager)
        taken = await rival.take(held, "w2")

        assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None
        assert await manager.get_lease("a") == taken

    async def test_claim_survives_commit(
        self, subject: LeaseSubject, manager: LeaseManager
    ) -> None:
        """Ours: a defect of vmware-go-kcl, whose victim erases the claim with its next checkpoint."""
        held = await _held(manager)
        await subject.rival.replace(rules.claim(held.record, "w2"), held)

        committed = await manager.update(held, lambda r: rules.commit(r, Position("1")))

        assert committed is not None
        assert committed.record.claim == "w2"
        assert (await _now(manager)).record.claim == "w2"

    async def test_update_lease_with_meta_info(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`testUpdateLeaseWithMetaInfo`: hash range and children, with no move of the counter: the holder goes on."""
        held = await _held(manager)
        hash_range = HashRange(first="1", last="2")

        noted = await rival.note_children("a", children=frozenset({"b"}), hash_range=hash_range)

        assert noted is not None
        assert noted.record.counter == held.record.counter
        committed = await manager.update(held, lambda r: rules.commit(r, Position("1")))
        assert committed is not None
        assert committed.record.children == {"b"}
        assert committed.record.hash_range == hash_range

    async def test_delete_lease_then_update_lease_with_meta_info(
        self, manager: LeaseManager
    ) -> None:
        """`testDeleteLeaseThenUpdateLeaseWithMetaInfo`: it never comes back."""
        await _created(manager)
        await manager.delete("a")

        assert await manager.note_children("a", children=frozenset({"b"})) is None
        assert await manager.is_empty()


class TestAssign:
    """Giving leases to others (DynamoDBLeaseRefresherTest)."""

    async def test_assign_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`assignLease` (prev owner): however often the holder renewed, and every later write of it fails."""
        held = await _held(manager)
        moved = await manager.update(held, lambda record: record)
        assert moved is not None

        assigned = await manager.assign(held, "w2")

        assert assigned is not None
        assert (assigned.record.owner, assigned.record.owner_switches) == ("w2", 1)
        assert assigned.record.counter == moved.record.counter + 1
        assert await manager.renew(moved) is None
        assert await manager.update(moved, lambda record: record) is None
        assert await rival.renew(assigned)

    async def test_assign_lease_unassigned(self, manager: LeaseManager) -> None:
        """`assignLease` (unassigned): what nobody owns may be given."""
        assigned = await manager.assign(await _created(manager), "w2")

        assert assigned is not None
        assert assigned.fence
        assert assigned.record.owner_switches == 0

    async def test_assign_lease_deleted(self, manager: LeaseManager) -> None:
        """`assignLease` (deleted): it never comes back."""
        seen = await _created(manager)
        await manager.delete("a")

        assert await manager.assign(seen, "w2") is None
        assert await manager.is_empty()

    async def test_assign_lease_owner_changed(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`assignLease_conditionalFailure`: its owner, or its hand-off, is not the one that was seen."""
        held = await _held(manager)
        handed = await rival.assign(held, "w2", graceful=True)

        assert await manager.assign(held, "w3") is None
        assert await manager.get_lease("a") == handed

    async def test_initiate_graceful_lease_handoff(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`initiateGracefulLeaseHandoff_sanity`: next owner named, counter unmoved, holder goes on and passes it."""
        held = await _held(manager)

        handed = await rival.assign(held, "w2", graceful=True)

        assert handed is not None
        assert (handed.record.owner, handed.record.handoff_from) == ("w2", "w1")
        assert handed.record.counter == held.record.counter
        # `renewLease_testGracefulShutdown`: the holder learns of it by renewing, and renews on until it passes it.
        renewed = await manager.renew(held)
        assert renewed is not None
        assert renewed.record.handoff_from == "w1"
        passed = await manager.assign(renewed, "w2")
        assert passed is not None
        assert await manager.renew(renewed) is None
        assert await rival.renew(passed)

    async def test_initiate_graceful_lease_handoff_conditional_failure(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`initiateGracefulLeaseHandoff_conditionalFailure`: one hand-off at a time, by a fresh or a stale copy."""
        held = await _held(manager)
        handed = await manager.assign(held, "w2", graceful=True)
        assert handed is not None

        assert await rival.assign(held, "w3", graceful=True) is None
        assert await rival.assign(handed, "w3", graceful=True) is None
        assert await manager.get_lease("a") == handed


class TestDelete:
    """Removing leases."""

    async def test_delete_lease(self, manager: LeaseManager) -> None:
        """`testDeleteLease`, `testDeleteNonexistentLease`: gone, and no error when repeated."""
        await _created(manager)

        assert await manager.delete("a")
        assert not await manager.delete("a")
        assert await manager.get_lease("a") is None

    async def test_delete_all(self, manager: LeaseManager) -> None:
        """`deleteAll`: all of them, held or not; the store stays."""
        await _held(manager, key="a")
        await _created(manager, LeaseRecord(key="b"))

        await manager.delete_all()

        assert await manager.is_empty()
        assert await manager.store_exists()


async def test_pending_checkpoint_survives_two_owners(
    manager: LeaseManager, rival: LeaseManager
) -> None:
    """Ours: announced and not committed, it is there for whoever comes; the first commit ends it."""
    held = await _held(manager)
    await manager.update(held, lambda r: rules.prepare(r, Position("SHARD_END"), b""))
    second = await rival.take(await _now(rival), "w2")
    assert second is not None
    third = await manager.take(second, "w1")
    assert third is not None

    assert (third.record.pending, third.record.pending_state) == (Position("SHARD_END"), b"")
    assert third.record.owner_switches == 2
    committed = await manager.update(third, lambda r: rules.commit(r, Position("1")))
    assert committed is not None
    assert (committed.record.pending, committed.record.owner_switches) == (None, 0)
