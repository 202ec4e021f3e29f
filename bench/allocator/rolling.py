"""Every member of a cluster replaced, a few at a time, and how many replicas move for it.

    rolling_moves        replicas added after the first placement, by the engine as a leader drives it, in memory
    rolling_joint_bound  replicas that stood on a member that was replaced: each must be added elsewhere, at least once
    primary_spread       how many more primaries one member has than another
    swap_zone_deficit    zones missing once two items have traded places on full members

New replicas catch up whenever nothing else is to do, and members that are drained leave. Modes: `up-first` adds the
replacements before their predecessors leave, `down-first` the other way round. Drains: `now` begins at once; `patient`
waits for a replacement. Balance waits for membership to settle for `settle_seconds`, by default a minute; with 0 each
step is taken alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.report import emit
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.primaries import primary_spread
from broadsheet.allocator.placement.problem import Solver
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import TransitionPolicy
from tests.support.memory_cluster import MemoryCluster, single_zone_items

BLOCK_SECONDS = 30.0
"""Time between two steps of a rollout: shorter than it takes to settle."""
PATIENT = TransitionPolicy(
    settle_seconds=300.0, settle_seconds_max=0.0, drain_patience_seconds=3_600.0
)
SETTLING = TransitionPolicy(settle_seconds=300.0, settle_seconds_max=0.0)
AT_ONCE = TransitionPolicy(settle_seconds=0.0)
DEFAULT = TransitionPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Members to replace, in order."""

    items: int
    replication: int
    old: tuple[MemberId, ...]
    new: tuple[MemberId, ...]
    limit_old: int
    limit_new: int
    leader: MemberId | None = None
    """A member of limit 1 that leads throughout, if there is one."""

    def begin(self, policy: TransitionPolicy, solver: Solver) -> MemoryCluster:
        """Return a cluster at rest, before anything is replaced."""
        cluster = MemoryCluster(solver=solver, policy=policy)
        if self.leader is not None:
            cluster.put_member(self.leader.zone, self.leader.suffix, 1)
        for member_id in self.old:
            cluster.put_member(member_id.zone, member_id.suffix, self.limit_old)
        for number in range(self.items):
            cluster.put_item(f"item-{number:06}", self.replication)
        cluster.settle(waiting=True)
        return cluster

    def bound(self, cluster: MemoryCluster) -> int:
        """Return the replicas on members that will be replaced."""
        loads = cluster.state().loads.total
        return sum(loads[member_id] for member_id in self.old)


def deploy() -> Rollout:
    """Return the model's simulated deploy: ten members in two zones, three to two; two thousand items of three."""
    zones = ("zone-a", "zone-b", "zone-a", "zone-b", "zone-a")
    return Rollout(
        items=2_000,
        replication=3,
        old=tuple(MemberId(zone, f"member-{n:02}") for n, zone in enumerate(zones)),
        new=tuple(MemberId(zone, f"member-{n:02}") for n, zone in enumerate(zones, 5)),
        limit_old=1_500,
        limit_new=1_205,
        leader=MemberId("zone-a", "leader"),
    )


def three_zones() -> Rollout:
    """Return nine members in three zones with nine hundred items of three."""
    zones = ("zone-a", "zone-b", "zone-c") * 3
    return Rollout(
        items=900,
        replication=3,
        old=tuple(MemberId(zone, f"member-{n:02}") for n, zone in enumerate(zones)),
        new=tuple(MemberId(zone, f"member-{n:02}") for n, zone in enumerate(zones, 9)),
        limit_old=1_000,
        limit_new=1_000,
    )


def run(bench: str) -> None:
    """Print every figure."""
    rows = (
        ("up-first", "now", DEFAULT),
        ("down-first", "now", DEFAULT),
        ("up-first", "now", SETTLING),
        ("up-first", "patient", PATIENT),
        ("down-first", "now", AT_ONCE),
        ("down-first", "patient", PATIENT),
        ("up-first", "now", AT_ONCE),
        ("down-first", "now", SETTLING),
    )
    for rollout in (deploy(), three_zones()):
        for mode, drain, policy in rows:
            _roll(bench, rollout, mode, drain, policy)
    _primaries(bench, three_zones())
    _swap(bench)


def moves_of(
    rollout: Rollout, mode: str, policy: TransitionPolicy, solver: Solver
) -> tuple[int, int]:
    """Replace every member and return the moves made and their bound."""
    cluster = rollout.begin(policy, solver)
    bound, before = rollout.bound(cluster), cluster.counts.added
    for leaves, joins in zip(rollout.old, rollout.new, strict=True):
        for step in _steps(cluster, rollout, leaves, joins, mode):
            cluster.now_monotonic_seconds += BLOCK_SECONDS
            step()
            cluster.settle()
            cluster.leave_drained()
            cluster.settle()
    cluster.settle(waiting=True)
    cluster.leave_drained()
    cluster.settle(waiting=True)
    _check_replaced(cluster, rollout)
    return cluster.counts.added - before, bound


def _steps(
    cluster: MemoryCluster, rollout: Rollout, leaves: MemberId, joins: MemberId, mode: str
) -> Sequence[Callable[[], None]]:
    def join() -> None:
        cluster.put_member(joins.zone, joins.suffix, rollout.limit_new)

    def leave() -> None:
        cluster.put_member(leaves.zone, leaves.suffix, rollout.limit_old, exiting=True)

    return (join, leave) if mode == "up-first" else (leave, join)


def _check_replaced(cluster: MemoryCluster, rollout: Rollout) -> None:
    state = cluster.state()
    assert not state.members.keys() & set(rollout.old), "a member could not leave"
    assert _replicas(cluster) == rollout.items * rollout.replication
    assert not single_zone_items(state)


def _replicas(cluster: MemoryCluster) -> int:
    return sum(map(len, cluster.state().assignments.values()))


def _roll(bench: str, rollout: Rollout, mode: str, drain: str, policy: TransitionPolicy) -> None:
    moves, bound = moves_of(rollout, mode, policy, FlowSolver())
    params: dict[str, str | int | float] = {
        "items": rollout.items,
        "members": len(rollout.old),
        "replicas": rollout.replication,
        "mode": mode,
        "drain": drain,
        "settle_seconds": policy.settle_seconds,
    }
    emit(bench, "rolling_moves", moves, "replicas", **params)
    emit(bench, "rolling_joint_bound", bound, "replicas", **params)


def _primaries(bench: str, rollout: Rollout) -> None:
    """Primaries of a placement from nothing; shares that are whole can be met exactly."""
    state = rollout.begin(AT_ONCE, FlowSolver()).state()
    emit(
        bench,
        "primary_spread",
        primary_spread(state.problem_members(), state.loads.primary),
        "primaries",
        items=rollout.items,
        members=len(rollout.old),
        replicas=rollout.replication,
        fewest=min(state.loads.primary[member_id] for member_id in rollout.old),
        most=max(state.loads.primary[member_id] for member_id in rollout.old),
        bound=0,
    )


def _swap(bench: str) -> None:
    """Two items, each within one zone of two full members: they have to trade places."""
    cluster = MemoryCluster(solver=FlowSolver())
    _fill(cluster, (("a", "one"), ("a", "two")), "i")
    _fill(cluster, (("b", "one"), ("b", "two")), "j")
    cluster.settle()
    emit(
        bench,
        "swap_zone_deficit",
        len(single_zone_items(cluster.state())),
        "zones",
        members=4,
        items=2,
        overcommits=cluster.overcommits.count,
        moves=cluster.counts.added,
        bound=0,
    )


def _fill(cluster: MemoryCluster, members: Iterable[tuple[str, str]], item_id: str) -> None:
    cluster.put_item(item_id, 2)
    for slot, (zone, suffix) in enumerate(members):
        cluster.put_member(zone, suffix, 1)
        cluster.put_assignment(item_id, zone, suffix, slot)
