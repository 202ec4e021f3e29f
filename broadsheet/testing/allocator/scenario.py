"""Scenario of a simulation: the shape of the cluster, its faults, and the duration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from broadsheet.allocator.config import AllocationConfig
from broadsheet.allocator.leader.election import LeadershipConfig
from broadsheet.allocator.placement.problem import Solver
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import AllocationPolicy, PrimaryPolicy, TransitionPolicy
from broadsheet.testing.allocator.invariants import Invariant
from broadsheet.testing.allocator.kernel.run import IntRange, Range, RunReport, RunScenario
from broadsheet.testing.allocator.member import WorkloadFactory


class ClusterFault(Enum):
    """An event of a cluster, good or bad."""

    JOIN = "join"
    """A new member joins, or a dead one's successor under a new identity."""
    EXIT = "exit"
    """A member asks to leave."""
    CORDON = "cordon"
    """An operator cordons a member, or ends that."""
    CRASH = "crash"
    """A process is killed; its lease expires."""
    ROLLOUT = "rollout"
    """Several members ask to leave at once, and as many join, before or after."""
    REVOKE = "revoke"
    """A process is killed, and its lease revoked."""
    LEASE_LOST = "lease-lost"
    """A live member's lease ends."""
    ZONE_LOST = "zone-lost"
    """All processes of a zone are killed."""
    PAUSE = "pause"
    """A process is stopped for a while, and continues all that it had begun."""
    HANG = "hang"
    """A member's decisions do not come back for a while; its lease is kept alive."""
    CUT = "cut"
    """A member does not reach etcd for a while."""
    OUTAGE = "outage"
    """No member reaches etcd for a while."""
    SLOW = "slow"
    """A member's messages take up to seconds for a while."""
    LOSSY = "lossy"
    """A member's messages are lost, or come very late, for a while."""
    WATCH_BROKEN = "watch-broken"
    """A member's watch breaks."""
    COMPACTION = "compaction"
    """Etcd discards its history."""
    ORPHAN = "orphan"
    """A replica without a member appears: an operator restored it, or a member without a lease left it."""
    ITEM_ADDED = "item-added"
    ITEM_REMOVED = "item-removed"
    REPLICATION_CHANGED = "replication-changed"
    LIMIT_CHANGED = "limit-changed"
    REPLICA_FAILED = "replica-failed"
    """Replicas of an item on a member fail for a while, even if they are created again."""


FAULTS: Mapping[ClusterFault, float] = {
    ClusterFault.JOIN: 3.0,
    ClusterFault.EXIT: 1.5,
    ClusterFault.CORDON: 0.7,
    ClusterFault.ROLLOUT: 1.0,
    ClusterFault.CRASH: 1.0,
    ClusterFault.REVOKE: 1.0,
    ClusterFault.LEASE_LOST: 0.7,
    ClusterFault.ZONE_LOST: 0.3,
    ClusterFault.PAUSE: 1.5,
    ClusterFault.HANG: 1.0,
    ClusterFault.CUT: 1.0,
    ClusterFault.OUTAGE: 0.4,
    ClusterFault.SLOW: 1.0,
    ClusterFault.LOSSY: 1.5,
    ClusterFault.WATCH_BROKEN: 1.0,
    ClusterFault.COMPACTION: 0.7,
    ClusterFault.ORPHAN: 0.4,
    ClusterFault.ITEM_ADDED: 1.5,
    ClusterFault.ITEM_REMOVED: 1.0,
    ClusterFault.REPLICATION_CHANGED: 1.5,
    ClusterFault.LIMIT_CHANGED: 1.5,
    ClusterFault.REPLICA_FAILED: 1.0,
}
"""Relative frequency of each fault."""


AT_ONCE = TransitionPolicy(settle_seconds=0.0)
POLICIES = (
    AllocationPolicy(transition=AT_ONCE),
    AllocationPolicy(transition=TransitionPolicy(settle_seconds=3.0, settle_seconds_max=6.0)),
    AllocationPolicy(transition=replace(AT_ONCE, moves_max=2, moves_per_member_max=1)),
    AllocationPolicy(transition=TransitionPolicy(settle_seconds=4.0, drain_patience_seconds=8.0)),
    AllocationPolicy(
        transition=AT_ONCE,
        primaries=PrimaryPolicy(hand_over_above_spread=2, hand_over_interval_seconds=1.0),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScenario(RunScenario):
    """A family of runs, from which a seed selects one."""

    zones: IntRange = (1, 3)
    members: IntRange = (2, 5)
    """To begin with."""
    members_max: int = 7
    items: IntRange = (1, 8)
    replication: IntRange = (0, 3)
    limit: IntRange = (1, 8)
    """Replicas that a member takes."""
    steps: IntRange = (5, 20)
    pause_seconds: Range = (0.0, 6.0)
    haste: float = 0.4
    passing_seconds: Range = (0.5, 15.0)
    """How long a transient fault lasts; a lease lasts `lease_ttl_seconds`."""
    catch_up_seconds: Range = (0.05, 4.0)
    """How long a replica takes from one state to the next."""
    latencies_seconds: Sequence[Range] = ((0.0005, 0.01), (0.0005, 0.01), (0.001, 0.2), (0.01, 1.0))
    skews_seconds: Sequence[float] = (0.0, 0.0, 0.3, 2.0)
    """One is drawn: how far a member's watches may lag behind, each for itself."""
    lease_ttl_seconds: int = 6
    faults: Mapping[ClusterFault, float] = field(default_factory=lambda: FAULTS)
    idle_seconds: float = 45.0
    """I6: how long nothing may change at rest; longer than any timer of the allocator."""
    allocation: AllocationConfig = field(
        default_factory=lambda: AllocationConfig(
            recheck_seconds=10.0,
            # Never audited, because the changes alone must tell what to examine.
            audit_seconds=1e6,
            retry_seconds_max=2.0,
            # Never, because a decision that hangs does not count as refused.
            decide_seconds_max=1e6,
            replace_failed_after_seconds=15.0,
        )
    )
    policies: Sequence[AllocationPolicy] = POLICIES
    """One is drawn, for all members."""
    leadership: LeadershipConfig = field(
        default_factory=lambda: LeadershipConfig(
            beat_seconds=1.0,
            suspect_after_seconds=3.0,
            confirm_seconds=2.0,
            claim_grace_seconds=0.5,
            turn_seconds_max=4.0,
            solve_seconds_max=4.0,
        )
    )
    solver: Callable[[], Solver] = FlowSolver
    """Makes each member's solver."""
    workload: WorkloadFactory | None = None
    """What members do; by default, their replicas catch up or fail."""
    invariants: Callable[[], Sequence[Invariant]] = tuple
    """Makes invariants to check beside the built-in ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport(RunReport):
    """The outcome of one run."""

    revisions: int
    settled_after_seconds: float
    """From the last fault to the last change."""
    allocations: int
    """Revisions that a leader's steps made."""
    placement: Mapping[str, tuple[str, ...]]
    """At rest: members by item, each item's by slot."""

    def summary(self) -> str:
        """Return what a good run did, in one line."""
        return (
            f"{self.revisions} revisions in {self.virtual_seconds:.0f} virtual s,"
            f" at rest {self.settled_after_seconds:.1f} s after the last fault"
        )
