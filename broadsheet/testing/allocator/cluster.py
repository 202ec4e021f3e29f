"""A simulated cluster: one etcd, its members, and the operator's actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

from broadsheet.allocator.announcement import Predecessors
from broadsheet.allocator.errors import EtcdRequestError, EtcdUnavailableError
from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.ops import Compare, Delete, LeaseId, Put
from broadsheet.allocator.session import SessionConfig
from broadsheet.testing.allocator.kernel.cluster import SimulatedCluster
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.testing.allocator.kernel.run import RunContext
from broadsheet.testing.allocator.member import (
    MemberFactory,
    SimulatedMember,
    Workload,
    WorkloadContext,
)
from broadsheet.testing.allocator.scenario import ClusterScenario
from broadsheet.testing.allocator.values import (
    CONSISTENT,
    FAILED,
    SimulatedItem,
    SimulatedMemberValue,
)
from broadsheet.testing.allocator.world import OPERATOR


class ReplicaReporter:
    """A simulated application: it reports that one member's replicas catch up after a while, or fail."""

    def __init__(
        self,
        member: WorkloadContext,
        *,
        catch_up_seconds: tuple[float, float],
        is_cursed: Callable[[ItemId, MemberId], bool],
    ) -> None:
        """Prepare.

        Args:
            member: The member.
            catch_up_seconds: Bounds of the time from one state to the next.
            is_cursed: Tells which replicas fail instead of catching up.
        """
        self._etcd = member.etcd
        self._key_space = member.key_space
        self._member_id = member.member_id
        self._random = member.random
        self._catch_up_seconds = catch_up_seconds
        self._is_cursed = is_cursed
        self._due_seconds: dict[ItemId, float] = {}

    async def run(self) -> None:
        """Report for ever."""
        while True:
            seen = self._key_space.header.revision
            pending = self._pending()
            now = asyncio.get_running_loop().time()
            for item_id, assignment in pending.items():
                if self._due_seconds[item_id] <= now:
                    await self._report(assignment)
                    self._due_seconds[item_id] = now + self._draw_seconds()
            first_due = min(self._due_seconds.values(), default=now + 60.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, min(5.0, first_due - now))):
                    await self._key_space.wait_for_update(after_revision=seen)

    def _pending(self) -> dict[ItemId, Assignment]:
        """Return replicas with a new state to report, and choose a delay for each new one."""
        now = asyncio.get_running_loop().time()
        pending = {
            assignment.item_id: assignment
            for assignment in self._key_space.assignments.values()
            if assignment.member_id == self._member_id
            and assignment.kv.value != self._word(assignment)
        }
        self._due_seconds = {
            item_id: self._due_seconds.get(item_id, now + self._draw_seconds())
            for item_id in pending
        }
        return pending

    def _word(self, assignment: Assignment) -> bytes:
        cursed = self._is_cursed(assignment.item_id, assignment.member_id)
        return FAILED if cursed else CONSISTENT

    async def _report(self, assignment: Assignment) -> None:
        kv = assignment.kv
        # The replica stays pending, so it is reported again when it is due.
        with suppress(EtcdUnavailableError, EtcdRequestError):
            await self._etcd.txn(
                (Compare.mod_revision(kv.key, kv.mod_revision),),
                (Put(kv.key, self._word(assignment), ignore_lease=True),),
            )

    def _draw_seconds(self) -> float:
        return self._random.uniform(*self._catch_up_seconds)


class Cluster(SimulatedCluster[SimulatedMember, ClusterScenario]):
    """All parts of one run."""

    AUTHOR = OPERATOR

    def __init__(
        self,
        context: RunContext,
        scenario: ClusterScenario,
        *,
        on_defect: Callable[[SimulatedMember], object],
    ) -> None:
        """Set up an empty cluster.

        Args:
            context: The run.
            scenario: The shapes and bounds.
            on_defect: Called with a member that ended unexpectedly.
        """
        # A separate generator, so that the number of leases does not change what else is drawn from the seed.
        lag = Random(f"{context.seed} leases")
        etcd = FakeEtcd(progress_seconds=20.0, expiry_lag=lambda: lag.uniform(0.0, 0.5))
        super().__init__(context, scenario, drawn_as="cluster", etcd=etcd)
        self._on_defect = on_defect
        self.cursed: set[tuple[ItemId, MemberId]] = set()
        """Replicas that fail."""
        self._names = 0
        self._items = 0
        self.latency_seconds = self.random.choice(scenario.latencies_seconds)
        skew_seconds = self.random.choice(scenario.skews_seconds)
        self.policy = self.random.choice(scenario.policies)
        self.zones = [f"zone-{letter}" for letter in "abcdefgh"[: self.draw(scenario.zones)]]
        self._factory = MemberFactory(
            etcd=etcd,
            keys=self.keys,
            clock=self.clock,
            latency_seconds=self.latency_seconds,
            skew_seconds=skew_seconds,
            new_solver=scenario.solver,
            new_workload=scenario.workload or self._replicas,
        )

    def join(self, *, successor_of: SimulatedMember | None = None) -> SimulatedMember:
        """Start a member; if it succeeds a dead one, that one's lease is revoked."""
        if successor_of is None:
            self._names += 1
            zone, base, number = self.random.choice(self.zones), f"m{self._names:02}-", 1
        else:
            zone = successor_of.member_id.zone
            base, _, last = successor_of.member_id.suffix.partition("-")
            base, number = f"{base}-", int(last) + 1
        member_id = MemberId(zone, f"{base}{number}")
        config = SessionConfig(
            member_id=member_id,
            lease_ttl_seconds=self.scenario.lease_ttl_seconds,
            announce_timeout_seconds=30.0,
            predecessors=Predecessors(prefix=base),
            allocation=replace(self.scenario.allocation, policy=self.policy),
            leadership=self.scenario.leadership,
        )
        value = SimulatedMemberValue(self.draw(self.scenario.limit))
        member = self._factory.make(config, value=value, random=self.random_of(member_id))
        self.start(member, f", limit {value.limit}")
        return member

    async def live(self, member: SimulatedMember) -> None:
        """Run a member's program, and say how it ended."""
        await member.live()
        self.trace.add(f"{member.member_id} ended: {member.end or 'drained, or told to stop'}")
        if member.defect is not None:
            self._on_defect(member)

    def put_item(self, item_id: ItemId, replication: int) -> None:
        """Write an item."""
        value = SimulatedItem(replication).encoded()
        self.write(Put(self.keys.item(item_id), value))

    def new_item(self) -> ItemId:
        """Write an item with a new id."""
        self._items += 1
        item_id = ItemId(f"item-{self._items:02}")
        self.put_item(item_id, self.draw(self.scenario.replication))
        return item_id

    def put_orphan(self, item_id: ItemId) -> MemberId:
        """Write a replica of a missing member, at a free slot."""
        self._names += 1
        member_id = MemberId(self.random.choice(self.zones), f"ghost-{self._names}")
        prefix = self.keys.assignments_of(item_id)
        slots = {int(kv.key.rpartition(b"#")[2]) for kv in self.kvs(prefix)}
        # Not slot 0, because a second primary would break an invariant by the operator's doing.
        slot = next(free for free in range(1, len(slots) + 2) if free not in slots)
        self.write(Put(self.keys.assignment(item_id, member_id, slot), CONSISTENT))
        return member_id

    def delete_item(self, item_id: ItemId) -> None:
        """Delete an item."""
        self.write(Delete(self.keys.item(item_id)))

    def item_ids(self) -> list[ItemId]:
        """Return the existing items."""
        prefix = self.keys.items_prefix
        return [ItemId(kv.key[len(prefix) :].decode()) for kv in self.kvs(prefix)]

    def lease_of(self, member: SimulatedMember) -> LeaseId | None:
        """Return the lease of a member's key, if the key exists."""
        kv = self.etcd.store.kvs.get(self.keys.member(member.member_id))
        return LeaseId(kv.lease) if kv is not None else None

    def revoke_lease_of(self, member: SimulatedMember) -> None:
        """End a member's lease, as an operator or etcd itself might."""
        lease = self.lease_of(member)
        if lease is not None:
            self.etcd.revoke(lease)

    def _replicas(self, member: WorkloadContext) -> Workload:
        return ReplicaReporter(
            member,
            catch_up_seconds=self.scenario.catch_up_seconds,
            is_cursed=lambda item_id, member_id: (item_id, member_id) in self.cursed,
        )
