"""Leases and what their holders write, over every backend: what the Kinesis Client Library tests of its own.

Origins are in awslabs/amazon-kinesis-client, package `leases.dynamodb`: `DynamoDBLeaseRefresherIntegrationTest` unless
a test says otherwise. Rewritten; where we differ on purpose, the docstring says so.
"""

from __future__ import annotations

from dataclasses import replace

from broadsheet.leases import rules
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange, LeaseRecord
from tests.support.lease_stores import LeaseSubject
from tests.support.leases_at_hand import created_lease, held_lease, lease_now


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
        mine, handed = await held_lease(manager, key="a"), await held_lease(manager, key="b")
        theirs = await held_lease(rival, "w2", key="c")
        await manager.assign(handed, "w2", graceful=True)

        assert await manager.list_leases_of("w1") == (mine,)
        assert [found.record.key for found in await manager.list_leases_of("w2")] == ["b", "c"]
        assert theirs in await manager.list_leases()

    async def test_get_lease(self, manager: LeaseManager) -> None:
        """`testGetLease`, `testGetNull`: a round trip, and none where there is none."""
        created = await created_lease(manager)

        assert created.record == replace(
            LeaseRecord(key="a", checkpoint=Position("TRIM_HORIZON")),
            write_id=created.record.write_id,
        )
        assert await manager.get_lease("b") is None

    async def test_create_lease_if_not_exists(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`createLeaseIfNotExists`: the second is told, and the first one's stays."""
        first = await created_lease(manager)

        assert not await rival.create_lease(LeaseRecord(key="a", checkpoint=Position("7")))
        assert await rival.get_lease("a") == first


class TestRenew:
    """The holder's sign of life."""

    async def test_renew_lease(self, subject: LeaseSubject, manager: LeaseManager) -> None:
        """`testRenewLease`: the counter grows by one, there and in what is returned; not on etcd, which knows."""
        held = await held_lease(manager)

        renewed = await manager.renew(held)

        assert renewed is not None
        beats = 0 if subject.store.tells_who_lives else 1
        assert renewed.record.counter == held.record.counter + beats
        assert await manager.get_lease("a") == renewed

    async def test_hold_updated_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testHoldUpdatedLease`: after another took it, the old holder's copy renews nothing."""
        held = await held_lease(manager)
        taken = await rival.take(await lease_now(rival), "w2")

        assert await manager.renew(held) is None
        assert await manager.get_lease("a") == taken

    async def test_renew_regained_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testUpdateRegainedLease` (DynamoDBLeaseRenewerIntegrationTest): what was lost between stays lost."""
        held = await held_lease(manager)
        taken = await rival.take(held, "w2")
        assert taken is not None
        assert await manager.take(taken, "w1")

        assert await manager.renew(held) is None
        assert (
            await manager.update(held, lambda record: rules.commit(record, Position("1"))) is None
        )
        assert (await lease_now(manager)).record.checkpoint == Position("TRIM_HORIZON")

    async def test_renew_of_lease_nobody_holds(self, manager: LeaseManager) -> None:
        """Ours: only who holds a lease can show that it lives."""
        assert await manager.renew(await created_lease(manager)) is None

    async def test_renew_after_delete(self, manager: LeaseManager) -> None:
        """`renewLease_testGracefulShutdown` (no row): gone is lost, and nothing is written."""
        held = await held_lease(manager)
        assert await manager.delete("a")

        assert await manager.renew(held) is None
        assert await manager.is_empty()


class TestUpdate:
    """What the holder writes."""

    async def test_update_lease(self, manager: LeaseManager) -> None:
        """`testUpdateLease`: checkpoint and children are stored, counter + 1; key and owner cannot be touched."""
        held = await held_lease(manager)

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
        held = await held_lease(manager)

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
        held = await held_lease(manager)
        moved = await manager.update(held, lambda record: record)

        assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None
        assert await manager.get_lease("a") == moved

    async def test_update_lost_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testUpdateLostLease` (DynamoDBLeaseRenewerIntegrationTest): a zombie's checkpoint changes nothing."""
        held = await held_lease(manager)
        taken = await rival.take(held, "w2")

        assert await manager.update(held, lambda r: rules.commit(r, Position("1"))) is None
        assert await manager.get_lease("a") == taken

    async def test_claim_survives_commit(
        self, subject: LeaseSubject, manager: LeaseManager
    ) -> None:
        """Ours: a defect of vmware-go-kcl, whose victim erases the claim with its next checkpoint."""
        held = await held_lease(manager)
        await subject.rival.replace(rules.claim(held.record, "w2"), held)

        committed = await manager.update(held, lambda r: rules.commit(r, Position("1")))

        assert committed is not None
        assert committed.record.claim == "w2"
        assert (await lease_now(manager)).record.claim == "w2"

    async def test_update_lease_with_meta_info(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`testUpdateLeaseWithMetaInfo`: hash range and children, with no move of the counter: the holder goes on."""
        held = await held_lease(manager)
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
        await created_lease(manager)
        await manager.delete("a")

        assert await manager.note_children("a", children=frozenset({"b"})) is None
        assert await manager.is_empty()


class TestDelete:
    """Removing leases."""

    async def test_delete_lease(self, manager: LeaseManager) -> None:
        """`testDeleteLease`, `testDeleteNonexistentLease`: gone, and no error when repeated."""
        await created_lease(manager)

        assert await manager.delete("a")
        assert not await manager.delete("a")
        assert await manager.get_lease("a") is None

    async def test_delete_all(self, manager: LeaseManager) -> None:
        """`deleteAll`: all of them, held or not; the store stays."""
        await held_lease(manager, key="a")
        await created_lease(manager, LeaseRecord(key="b"))

        await manager.delete_all()

        assert await manager.is_empty()
        assert await manager.store_exists()


async def test_pending_checkpoint_survives_two_owners(
    manager: LeaseManager, rival: LeaseManager
) -> None:
    """Ours: announced and not committed, it is there for whoever comes; the first commit ends it."""
    held = await held_lease(manager)
    await manager.update(held, lambda r: rules.prepare(r, Position("SHARD_END"), b""))
    second = await rival.take(await lease_now(rival), "w2")
    assert second is not None
    third = await manager.take(second, "w1")
    assert third is not None

    assert (third.record.pending, third.record.pending_state) == (Position("SHARD_END"), b"")
    assert third.record.owner_switches == 2
    committed = await manager.update(third, lambda r: rules.commit(r, Position("1")))
    assert committed is not None
    assert (committed.record.pending, committed.record.owner_switches) == (None, 0)
