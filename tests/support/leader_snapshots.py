"""What a leader would know of a `MemoryCluster`, for tests of plans and explanations."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.allocator.state.alloc_state import AllocState, FixedContents, Snapshot
from broadsheet.allocator.state.load import ItemWeights
from broadsheet.allocator.transition.membership_settling import Settling
from broadsheet.allocator.whatif.leader_snapshot import LeaderSnapshot
from tests.support.memory_cluster import AT_ONCE, MemoryCluster, ValueConsistency


def snapshot_of(state: AllocState) -> Snapshot:
    """Return the snapshot that gives this state."""
    return Snapshot(
        lags=state.lags,
        revision=state.revision,
        basis=(state.revision, 0),
        local_id=state.local_id,
        members=state.members,
        items=state.items,
        groups=state.assignments,
        limits=state.limits,
        drain_costs=state.drain_costs,
        loads=state.loads,
        item_slots=state.item_slots,
        unreadable_items=state.unreadable_items,
        avoided=state.avoided,
        weights=ItemWeights(),
        capacities=state.capacities,
        objective=state.objective,
        is_whole=True,
    )


def leader_snapshot_of(
    cluster: MemoryCluster,
    *,
    policy: AllocationPolicy | None = None,
    plan: Plan | None = None,
    settling: Settling | None = None,
    now: float = 0.0,
    quarantined: frozenset[str] = frozenset(),
) -> LeaderSnapshot:
    """Return a leader's knowledge; it is settled unless told otherwise."""
    policy = policy or AllocationPolicy(transition=AT_ONCE)
    state = cluster.state()
    settling = settling or Settling(policy=policy.transition).observed(state.members, now)
    state = AllocState.observe(
        FixedContents.of(
            state.members.values(),
            state.items.values(),
            (a for group in state.assignments.values() for a in group),
        ),
        revision=state.revision,
        local_id=state.local_id,
        drains_waiting=settling.drains_waiting,
    )
    state = replace(
        state,
        avoided=cluster.avoided,
        lags=cluster.lags,
        objective=settling.objective(policy.objective),
    )
    return LeaderSnapshot(
        snapshot=snapshot_of(state),
        plan=plan,
        policy=policy,
        settling=settling,
        now_monotonic_seconds=now,
        quarantined=quarantined,
        epoch=1,
        solver=FlowSolver(),
        consistency=ValueConsistency(),
        keys=cluster.keys,
    )
