"""A simulated cluster: one etcd, its members, and the hand of the operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from allocator.key_space import KeySpace
from allocator.keys import Keys
from allocator.model import ItemId, MemberId
from allocator.ops import Delete, KeyValue, LeaseId, Operation, Put
from allocator.runtime.task_group import TaskGroup
from allocator.session import SessionConfig
from allocator.simulation.etcd import FakeEtcd
from allocator.simulation.member import SimulatedMember, State, Workload, make_member
from allocator.simulation.network import FaultyEtcd
from allocator.simulation.replicas import Replicas
from allocator.simulation.scenario import Scenario
from allocator.simulation.trace import Trace
from allocator.simulation.values import CONSISTENT, SimulatedItem, SimulatedMemberValue
from allocator.simulation.virtual_loop import VirtualClock, running_loop
from allocator.simulation.world import OPERATOR

ROOT = "/simulated"


class Cluster:
    """Everything there is in one run."""

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        group: TaskGroup,
        trace: Trace,
        *,
        on_defect: Callable[[SimulatedMember], object],
    ) -> None:
        """Set up an empty cluster.

        Args:
            seed: Of everything drawn here.
            scenario: Shapes and bounds.
            group: Where members run.
            trace: Where to tell what happens.
            on_defect: Called with a member that ended as none should.
        """
        self.seed = seed
        self.scenario = scenario
        self.random = Random(f"{seed} cluster")
        self.trace = trace
        self._on_defect = on_defect
        self.keys = Keys(ROOT)
        lag = Random(f"{seed} leases")
        self.etcd = FakeEtcd(progress_seconds=20.0, expiry_lag=lambda: lag.uniform(0.0, 0.5))
        self.members: list[SimulatedMember] = []
        """All that ever were, oldest first."""
        self.cursed: set[tuple[ItemId, MemberId]] = set()
        """Replicas that fail."""
        self._group = group
        self._clock = VirtualClock(running_loop())
        self._names = 0
        self._items = 0
        self.latency_seconds = self.random.choice(scenario.latencies_seconds)
        """Of messages, while nothing is wrong."""
        self._skew_seconds = self.random.choice(scenario.skews_seconds)
        self.policy = self.random.choice(scenario.policies)
        self.zones = [f"zone-{letter}" for letter in "abcdefgh"[: self.draw(scenario.zones)]]

    def draw(self, bounds: tuple[int, int]) -> int:
        """Draw a number of a range."""
        return self.random.randint(*bounds)

    def alive(self) -> list[SimulatedMember]:
        """Return members that make progress."""
        return [member for member in self.members if member.state is State.ALIVE]

    def present(self) -> list[SimulatedMember]:
        """Return members that are not gone for good."""
        return [m for m in self.members if m.state in (State.ALIVE, State.STOPPED)]

    def join(self, *, successor_of: SimulatedMember | None = None) -> SimulatedMember:
        """Start a member; one that succeeds a dead one has its lease revoked."""
        if successor_of is None:
            self._names += 1
            zone, base, number = self.random.choice(self.zones), f"m{self._names:02}-", 1
        else:
            zone = successor_of.member_id.zone
            base, _, last = successor_of.member_id.suffix.partition("-")
            base, number = f"{base}-", int(last) + 1
        member_id = MemberId(zone, f"{base}{number}")
        member = make_member(
            self.etcd,
            self.keys,
            SessionConfig(
                member_id=member_id,
                lease_ttl_seconds=self.scenario.lease_ttl_seconds,
                announce_timeout_seconds=30.0,
                revoke_predecessors_prefix=base,
                allocation=replace(self.scenario.allocation, policy=self.policy),
                leadership=self.scenario.leadership,
            ),
            value=SimulatedMemberValue(self.draw(self.scenario.limit)),
            solver=self.scenario.solver(),
            clock=self._clock,
            random=Random(f"{self.seed} {member_id}"),
            latency_seconds=self.latency_seconds,
            workload=self.scenario.workload or self._replicas,
        )
        member.link.skew_seconds = self._skew_seconds
        self.members.append(member)
        self.trace.add(f"{member_id} starts, limit {member.value.limit}")
        member.process.run(
            lambda: self._group.start_soon(self._live(member), name=f"member {member_id}")
        )
        return member

    def put_item(self, item_id: ItemId, replication: int) -> None:
        """Write an item."""
        value = SimulatedItem(replication).encoded()
        self._write(Put(self.keys.item(item_id), value))

    def new_item(self) -> ItemId:
        """Write an item that never was there before."""
        self._items += 1
        item_id = ItemId(f"item-{self._items:02}")
        self.put_item(item_id, self.draw(self.scenario.replication))
        return item_id

    def put_orphan(self, item_id: ItemId) -> MemberId:
        """Write a replica of a member that is not there, at a slot that is free."""
        self._names += 1
        member_id = MemberId(self.random.choice(self.zones), f"ghost-{self._names}")
        prefix = self.keys.assignments_of(item_id)
        slots = {int(kv.key.rpartition(b"#")[2]) for kv in self._kvs(prefix)}
        slot = next(free for free in range(1, len(slots) + 2) if free not in slots)
        self._write(Put(self.keys.assignment(item_id, member_id, slot), CONSISTENT))
        return member_id

    def delete_item(self, item_id: ItemId) -> None:
        """Delete an item."""
        self._write(Delete(self.keys.item(item_id)))

    def item_ids(self) -> list[ItemId]:
        """Return the items there are."""
        prefix = self.keys.items_prefix
        return [ItemId(kv.key[len(prefix) :].decode()) for kv in self._kvs(prefix)]

    def lease_of(self, member: SimulatedMember) -> LeaseId | None:
        """Return the lease of a member's key, if that is there."""
        kv = self.etcd.store.kvs.get(self.keys.member(member.member_id))
        return LeaseId(kv.lease) if kv is not None else None

    def revoke_lease_of(self, member: SimulatedMember) -> None:
        """End a member's lease, as an operator or etcd itself might."""
        lease = self.lease_of(member)
        if lease is not None:
            self.etcd.revoke(lease)

    def shut_down(self) -> None:
        """End the run: every process goes on, reaches nothing, and is cancelled."""
        self.etcd.observers.clear()
        self.etcd.close()
        for member in self.members:
            member.link.cut_off(refuses=True)
            member.process.get_unstuck()
            member.process.go_on()
        self._group.stop()

    async def _live(self, member: SimulatedMember) -> None:
        await member.live()
        self.trace.add(f"{member.member_id} ended: {member.end or 'drained, or told to stop'}")
        if member.defect is not None:
            self._on_defect(member)

    def _replicas(
        self, etcd: FaultyEtcd, key_space: KeySpace, member_id: MemberId, random: Random
    ) -> Workload:
        return Replicas(
            etcd,
            key_space,
            member_id,
            catch_up_seconds=self.scenario.catch_up_seconds,
            is_cursed=lambda item_id, member_id: (item_id, member_id) in self.cursed,
            random=random,
        )

    def _write(self, operation: Operation) -> None:
        self.etcd.perform((), (operation,), author=OPERATOR)

    def _kvs(self, prefix: bytes) -> list[KeyValue]:
        return [kv for key, kv in self.etcd.store.kvs.items() if key.startswith(prefix)]
