"""Who gets a lease, over every backend: taking, evicting, assigning and handing off.

Origins are in awslabs/amazon-kinesis-client, package `leases.dynamodb`: `DynamoDBLeaseRefresherIntegrationTest` unless
a test says otherwise. Rewritten; where we differ on purpose, the docstring says so.
"""

from __future__ import annotations

from dataclasses import replace

from broadsheet.leases import rules
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from tests.support.leases_at_hand import created_lease, held_lease


class TestTake:
    """Acquiring."""

    async def test_take_unowned_lease(self, manager: LeaseManager) -> None:
        """`testTakeUnownedLease`: counter + 1, no switch of owners, a new epoch."""
        seen = await created_lease(manager)

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
        held = await held_lease(manager)
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
        seen = await created_lease(manager)
        taken = await rival.take(seen, "w2")

        assert await manager.take(seen, "w1") is None
        assert await manager.get_lease("a") == taken

    async def test_commit_before_take_is_not_rolled_back(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """Ours: a defect of vmware-go-kcl, whose taker writes back the checkpoint that it had read."""
        held = await held_lease(manager)
        committed = await manager.update(held, lambda r: rules.commit(r, Position("9")))

        assert await rival.take(held, "w2") is None
        assert await rival.get_lease("a") == committed

    async def test_take_lease_removes_checkpoint_owner(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`takeLease_removesCheckpointOwner` (DynamoDBLeaseRefresherTest): taking ends a hand-off and a claim."""
        handed = await manager.assign(await held_lease(manager), "w2", graceful=True)
        assert handed is not None

        taken = await rival.take(handed, "w2")

        assert taken is not None
        assert (taken.record.owner, taken.record.handoff_from) == ("w2", None)
        assert taken.record.owner_switches == 1


class TestEvict:
    """Taking a lease away."""

    async def test_evict_owned_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testEvictOwnedLease`: no owner, counter + 1; the epoch stays, the holder is fenced."""
        held = await held_lease(manager)

        evicted = await rival.evict(held)

        assert evicted is not None
        assert (evicted.record.owner, evicted.fence) == (None, 0)
        assert evicted.record.counter == held.record.counter + 1
        assert evicted.record.epoch == held.record.epoch
        assert await manager.renew(held) is None

    async def test_evict_renewed_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`evictLease` compares owners, not the counter: the holder's writes do not save it."""
        held = await held_lease(manager)
        assert await manager.update(held, lambda r: rules.commit(r, Position("1")))

        evicted = await rival.evict(held)

        assert evicted is not None
        assert evicted.record.owner is None
        assert evicted.record.checkpoint == Position("1")

    async def test_evict_changed_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`testEvictChangedLease`: another owner by now keeps it."""
        held = await held_lease(manager)
        taken = await rival.take(held, "w2")

        assert await manager.evict(held) is None
        assert await manager.get_lease("a") == taken

    async def test_evict_lease_removes_checkpoint_owner(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`evictLease_removesCheckpointOwner`: it ends a hand-off by force; the next owner holds the lease."""
        held = await held_lease(manager)
        handed = await manager.assign(held, "w2", graceful=True)
        assert handed is not None

        evicted = await rival.evict(handed)

        assert evicted is not None
        assert (evicted.record.owner, evicted.record.handoff_from) == ("w2", None)
        assert evicted.fence not in (0, held.fence)
        assert await manager.renew(held) is None
        assert await manager.update(held, lambda record: record) is None
        assert await rival.renew(evicted)

    async def test_evict_unowned_lease(self, manager: LeaseManager) -> None:
        """`evictLease` of version 3 succeeds, as nobody is who owns it (`testEvictUnownedLease` there is never run)."""
        seen = await created_lease(manager)

        evicted = await manager.evict(seen)

        assert evicted is not None
        assert (evicted.record.owner, evicted.fence) == (None, 0)
        assert evicted.record.counter == seen.record.counter + 1

    async def test_evict_lease_no_op_if_lease_not_exists(self, manager: LeaseManager) -> None:
        """`evictLease_noOpIfLeaseNotExists`: nothing appears."""
        held = await held_lease(manager)
        await manager.delete("a")

        assert await manager.evict(held) is None
        assert await manager.is_empty()


class TestAssign:
    """Giving leases to others (DynamoDBLeaseRefresherTest)."""

    async def test_assign_lease(self, manager: LeaseManager, rival: LeaseManager) -> None:
        """`assignLease` (prev owner): however often the holder renewed, and every later write of it fails."""
        held = await held_lease(manager)
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
        assigned = await manager.assign(await created_lease(manager), "w2")

        assert assigned is not None
        assert assigned.fence
        assert assigned.record.owner_switches == 0

    async def test_assign_lease_deleted(self, manager: LeaseManager) -> None:
        """`assignLease` (deleted, unassigned and owned): it never comes back, at once or in a hand-off."""
        free, held = await created_lease(manager), await held_lease(manager, key="b")
        await manager.delete_all()

        assert await manager.assign(free, "w2") is None
        assert await manager.assign(held, "w2") is None
        assert await manager.assign(held, "w2", graceful=True) is None
        assert await manager.is_empty()

    async def test_assign_lease_always_removes_checkpoint_owner(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`assignLease_alwaysRemoveCheckpointOwner`: to whomever; the one that it was promised to does not have it."""
        handed = await manager.assign(await held_lease(manager), "w2", graceful=True)
        assert handed is not None

        assigned = await rival.assign(handed, "w1")

        assert assigned is not None
        assert (assigned.record.owner, assigned.record.handoff_from) == ("w1", None)
        assert assigned.fence not in (0, handed.fence)

    async def test_assign_lease_owner_changed(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`assignLease_conditionalFailure`: its owner, or its hand-off, is not the one that was seen."""
        held = await held_lease(manager)
        handed = await rival.assign(held, "w2", graceful=True)

        assert await manager.assign(held, "w3") is None
        assert await manager.get_lease("a") == handed

    async def test_initiate_graceful_lease_handoff(
        self, manager: LeaseManager, rival: LeaseManager
    ) -> None:
        """`initiateGracefulLeaseHandoff_sanity`: next owner named, counter unmoved, holder goes on and passes it."""
        held = await held_lease(manager)

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
        held = await held_lease(manager)
        handed = await manager.assign(held, "w2", graceful=True)
        assert handed is not None

        assert await rival.assign(held, "w3", graceful=True) is None
        assert await rival.assign(handed, "w3", graceful=True) is None
        assert await manager.get_lease("a") == handed
