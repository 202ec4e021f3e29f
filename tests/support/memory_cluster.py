"""A cluster in memory: a key space with etcd's transaction semantics, and convergence over it, without any I/O.

The pure core is driven here exactly as the leader drives it: snapshot, solve when the demand changed, verify, converge,
perform each checkpoint. The invariants I1 to I6 of the test plan are asserted after every round, by `safety_checks`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broadsheet.allocator.etcd.txn_batch import holds
from broadsheet.allocator.keys import AssignmentKey, ItemKey, Keys, MemberKey
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import (
    Compare,
    CompareTarget,
    Delete,
    Get,
    KeyValue,
    Put,
    TxnCheckpoint,
)
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.primaries import HandOver, plan_primaries
from broadsheet.allocator.placement.problem import Desired, Solver, zones_spanned
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import Objective, PrimaryPolicy, TransitionPolicy
from broadsheet.allocator.state.alloc_state import AllocState, Avoided, Demand, FixedContents
from broadsheet.allocator.state.load import Lags
from broadsheet.allocator.transition.converge import Convergence, ReplicaCounts, converge
from broadsheet.allocator.transition.membership_settling import Settling
from broadsheet.allocator.transition.schedule import Targets
from tests.support.safety_checks import Overcommits, check_budget, check_step

CONSISTENT = b"consistent"
ROUNDS_MAX = 200
AT_ONCE = TransitionPolicy(settle_seconds=0.0)
"""Balance does not wait: what most tests are about happens at once."""


@dataclass(frozen=True, slots=True)
class JsonItem:
    """An item whose value is `{"R": replication}`."""

    replication: int

    def desired_replication(self) -> int:
        """Return the replication."""
        return self.replication


@dataclass(frozen=True, slots=True)
class JsonMember:
    """A member whose value is `{"R": limit, "E": exiting, "C": cordoned}`."""

    limit: int
    exiting: bool = False
    cordoned: bool = False
    is_outdated: bool = False

    def item_limit(self) -> int:
        """Return the limit."""
        return self.limit

    def is_exiting(self) -> bool:
        """Return whether it wants to leave."""
        return self.exiting

    def is_cordoned(self) -> bool:
        """Return whether it keeps what it holds and is to get nothing new."""
        return self.cordoned


class ValueConsistency:
    """A replica is consistent when its value says so."""

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        """Return whether the value is the word."""
        return assignment.kv.value == CONSISTENT

    def standby_value(self, primary: Assignment) -> bytes:
        """Return the value unchanged."""
        return primary.kv.value


class MemoryEtcd:
    """Keys with revisions and leases; transactions as etcd performs them."""

    def __init__(self) -> None:
        self.revision = 1
        self.kvs: dict[bytes, KeyValue] = {}

    def load(self, kvs: Iterable[KeyValue]) -> None:
        """Take over keys with their revisions."""
        self.kvs = {kv.key: kv for kv in kvs}
        self.revision = max((kv.mod_revision for kv in self.kvs.values()), default=1)

    def put(self, key: bytes, value: bytes, *, lease: int = 0) -> None:
        """Write one key in a revision of its own."""
        self.revision += 1
        self._put(Put(key, value, lease=lease))

    def delete(self, *keys: bytes) -> None:
        """Delete keys in one revision."""
        self.revision += 1
        for key in keys:
            self.kvs.pop(key, None)

    def revoke(self, lease: int) -> None:
        """End a lease: its keys vanish in one revision."""
        self.delete(*(key for key, kv in self.kvs.items() if kv.lease == lease))

    def perform(self, checkpoint: TxnCheckpoint) -> bool:
        """Perform a transaction; False if a comparison does not hold."""
        written = [operation.key for operation in checkpoint.operations]
        assert len(set(written)) == len(written), "etcd refuses a key written twice"
        assert max(len(checkpoint.compares), len(checkpoint.operations)) <= 128
        assert checkpoint.operations, "a transaction that only compares says nothing"
        if not all(self._holds(compare) for compare in checkpoint.compares):
            return False
        self.revision += 1
        for operation in checkpoint.operations:
            match operation:
                case Put():
                    self._put(operation)
                case Delete():
                    del self.kvs[operation.key]
                case Get():
                    raise AssertionError("convergence reads nothing")
        return True

    def _holds(self, compare: Compare) -> bool:
        targets = (CompareTarget.MOD_REVISION, CompareTarget.CREATE_REVISION)
        assert compare.target in targets, f"convergence does not compare {compare.target}"
        return holds(compare, self.kvs)

    def _put(self, put: Put) -> None:
        old = self.kvs.get(put.key)
        self.kvs[put.key] = KeyValue(
            key=put.key,
            value=put.value,
            create_revision=old.create_revision if old else self.revision,
            mod_revision=self.revision,
            version=old.version + 1 if old else 1,
            lease=put.lease,
        )


@dataclass
class MemoryCluster:
    """A root in a `MemoryEtcd`, its leader, and what the leader remembers."""

    root: str = "/cluster"
    solver: Solver = field(default_factory=FlowSolver)
    policy: TransitionPolicy = AT_ONCE
    etcd: MemoryEtcd = field(default_factory=MemoryEtcd)
    avoided: Avoided = frozenset()
    lags: Lags = field(default_factory=dict)
    now_monotonic_seconds: float = 0.0
    settling: Settling = field(default_factory=Settling)
    demand: Demand | None = None
    desired: Desired = field(default_factory=dict)
    primaries: Mapping[ItemId, MemberId] = field(default_factory=dict)
    hand_overs: Sequence[HandOver] = ()
    hand_overs_allowed: int = 0
    overcommits: Overcommits = field(default_factory=Overcommits)
    counts: ReplicaCounts = field(default_factory=ReplicaCounts)
    """Everything done so far."""
    lease_count: int = 0

    def __post_init__(self) -> None:
        self.settling = Settling(policy=self.policy)

    @property
    def keys(self) -> Keys:
        """The syntax of the root."""
        return Keys(self.root)

    def put_item(self, item_id: str, replication: int) -> None:
        """Write an item."""
        self.etcd.put(self.keys.item(ItemId(item_id)), json.dumps({"R": replication}).encode())

    def put_member(
        self, zone: str, suffix: str, limit: int, *, exiting: bool = False, cordoned: bool = False
    ) -> None:
        """Write a member; a new one gets a lease of its own."""
        key = self.keys.member(MemberId(zone, suffix))
        known = self.etcd.kvs.get(key)
        if known is None:
            self.lease_count += 1
        lease = known.lease if known else self.lease_count
        value = json.dumps({"R": limit, "E": exiting, "C": cordoned}).encode()
        self.etcd.put(key, value, lease=lease)

    def kill_member(self, zone: str, suffix: str) -> None:
        """End a member's lease."""
        self.etcd.revoke(self.etcd.kvs[self.keys.member(MemberId(zone, suffix))].lease)

    def delete_item(self, item_id: str) -> None:
        """Delete an item."""
        self.etcd.delete(self.keys.item(ItemId(item_id)))

    def put_assignment(
        self, item_id: str, zone: str, suffix: str, slot: int, value: bytes = CONSISTENT
    ) -> None:
        """Write an assignment under its member's lease, if that is there."""
        member_id = MemberId(zone, suffix)
        member = self.etcd.kvs.get(self.keys.member(member_id))
        key = self.keys.assignment(ItemId(item_id), member_id, slot)
        self.etcd.put(key, value, lease=member.lease if member else 0)

    def state(self, local_id: MemberId | None = None) -> AllocState:
        """Return a snapshot, as the leader sees it unless told otherwise."""
        members: list[Member] = []
        items: list[Item] = []
        assignments: list[Assignment] = []
        for key in sorted(self.etcd.kvs):
            kv = self.etcd.kvs[key]
            match self.keys.parse(key):
                case MemberKey(member_id):
                    value = json.loads(kv.value)
                    decoded = JsonMember(value["R"], value.get("E", False), value.get("C", False))
                    members.append(Member(member_id=member_id, value=decoded, kv=kv))
                case ItemKey(item_id):
                    wanted = JsonItem(json.loads(kv.value)["R"])
                    items.append(Item(item_id=item_id, value=wanted, kv=kv))
                case AssignmentKey(item_id, member_id, slot):
                    assignments.append(
                        Assignment(
                            item_id=item_id, member_id=member_id, slot=slot, value=None, kv=kv
                        )
                    )
        by_id = {member.member_id: member for member in members}
        self.settling = self.settling.observed(
            by_id, self.now_monotonic_seconds, is_placed=bool(assignments)
        )
        state = AllocState.observe(
            FixedContents.of(members, items, assignments),
            revision=self.etcd.revision,
            local_id=local_id or MemberId("", ""),
            drains_waiting=self.settling.drains_waiting,
        )
        if local_id is None and state.leader is not None:
            local_id = state.leader.member_id
        # A replica made again starts again.
        self.avoided &= {(a.item_id, a.member_id) for a in assignments}
        return replace(
            state,
            local_id=local_id or state.local_id,
            avoided=self.avoided,
            lags=self.lags,
            capacities=self.settling.capacities,
            objective=self.settling.objective(Objective()),
        )

    def mark_consistent(self, is_ready: Callable[[str], bool] = lambda item_id: True) -> bool:
        """Let replicas catch up; False if all had that were ready.

        Args:
            is_ready: Tells of an item whether its replicas catch up now; failed ones never do.
        """
        behind = [
            a
            for group in self.state().assignments.values()
            for a in group
            if a.kv.value != CONSISTENT
            and (a.item_id, a.member_id) not in self.avoided
            and is_ready(a.item_id)
        ]
        for assignment in behind:
            self.etcd.put(assignment.kv.key, CONSISTENT, lease=assignment.kv.lease)
        return bool(behind)

    def plan(self, state: AllocState | None = None) -> Desired:
        """Return the placement in force, made again if the demand changed."""
        state = state or self.state()
        demand = state.demand()
        if demand != self.demand:
            problem = state.problem()
            self.desired = self.solver.solve(problem)
            assert verify(problem, self.desired) == ()
            self.primaries = plan_primaries(problem, self.desired, policy=PrimaryPolicy())
            self.demand = demand
            self.overcommits.forget()
        return self.desired

    def converge(self, state: AllocState | None = None) -> Convergence:
        """Return the next steps, without performing them."""
        state = state or self.state()
        return converge(
            state,
            Targets(
                desired=self.plan(state),
                primaries=self.primaries,
                policy=self.policy,
                drains_waiting=self.settling.drains_waiting,
                hand_overs=self.hand_overs,
                hand_overs_allowed=self.hand_overs_allowed,
            ),
            consistency=ValueConsistency(),
            keys=self.keys,
        )

    def round(self, refuse: Callable[[str], bool] = lambda item_id: False) -> Convergence:
        """Converge once and check every invariant of a step.

        Args:
            refuse: Tells of an item whether its transactions fail this time.
        """
        before = self.state()
        convergence = self.converge(before)
        for step in convergence.steps:
            if refuse(step.checkpoint.subject):
                continue
            assert self.etcd.perform(step.checkpoint), "nobody else writes here"
            self.counts += step.counts
        after = self.state()
        check_step(before, after, self.desired, is_consistent=is_consistent)
        check_budget(before, after, self.policy, is_consistent=is_consistent)
        self.overcommits.check(before, after)
        return convergence

    def settle(self, *, marking: bool = True, waiting: bool = False) -> int:
        """Converge until nothing changes, letting replicas catch up whenever a round is idle.

        Args:
            marking: Whether replicas catch up.
            waiting: Whether time passes, too, until it changes nothing any more.

        Returns:
            Rounds that wrote something.
        """
        rounds = 0
        for _ in range(ROUNDS_MAX):
            if self.round().steps:
                rounds += 1
            elif not (marking and self.mark_consistent()):
                later = self.settling.next_change_seconds(self.now_monotonic_seconds)
                if not waiting or later is None:
                    return rounds
                self.now_monotonic_seconds += later
        raise AssertionError(f"I5: not idle after {ROUNDS_MAX} rounds")

    def leave_drained(self) -> None:
        """End the members that are exiting and hold nothing any more, as they would themselves."""
        state = self.state()
        for member_id, member in state.members.items():
            if member.value.is_exiting() and not state.loads.total[member_id]:
                self.kill_member(member_id.zone, member_id.suffix)

    def placement(self) -> dict[str, list[str]]:
        """Return each item's members by slot, as `zone#suffix`."""
        state = self.state()
        return {
            item_id: [str(a.member_id) for a in sorted(group, key=lambda a: a.slot)]
            for item_id, group in state.assignments.items()
        }

    def loads(self) -> dict[str, int]:
        """Return replicas by member."""
        return {str(m): n for m, n in self.state().loads.total.items()}


def is_consistent(assignment: Assignment) -> bool:
    """Return whether a replica has caught up."""
    return assignment.kv.value == CONSISTENT


def single_zone_items(state: AllocState) -> list[ItemId]:
    """Return items with two or more replicas that stand in one zone."""
    return [
        item_id
        for item_id, group in state.assignments.items()
        if len(group) > 1 and zones_spanned(a.member_id for a in group) == 1
    ]
