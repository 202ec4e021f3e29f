"""The scenario of a simulation: a shard, its members, the faults, and their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from broadsheet.testing.allocator.kernel.run import IntRange, Range, RunReport, RunScenario


class ShardFault(Enum):
    """The faults of a shard."""

    CRASH = "crash"
    """A process is killed between two steps; the shard is assigned elsewhere once its lease is over."""
    PAUSE = "pause"
    """A process pauses between two steps, and resumes when it may have been replaced long ago."""
    LEASE_LOST = "lease-lost"
    """The lease of a process ends, and with it its assignments."""
    HAND_OVER = "hand-over"
    """The shard is moved from a healthy primary to another member, standby or not."""
    REASSIGN = "reassign"
    """The primary's assignment is deleted and created again, for the same member."""
    ETCD_CUT = "etcd-cut"
    """A process cannot reach etcd for a while."""
    ETCD_LOSSY = "etcd-lossy"
    """A process's messages to and from etcd are lost or very late, for a while."""
    BROKER_CUT = "broker-cut"
    """A process cannot reach the broker for a while."""
    BROKER_LOSSY = "broker-lossy"
    """Appends and answers are lost or very late, for a while, so appends are repeated."""
    BROKER_RESTART = "broker-restart"
    """Every connection to the broker breaks, and it is unreachable for a while."""
    BROKER_REFUSES = "broker-refuses"
    """The broker answers that its journals are not served, for a while."""
    REGISTERS_LOST = "registers-lost"
    """The recovery log loses its registers, which no broker should allow."""
    TABLE_LOSSY = "table-lossy"
    """Commits into the table, or their answers, are lost or very late, for a while."""
    COMPACTION = "compaction"
    """Etcd compacts its history."""
    SPEC_CHANGED = "spec-changed"
    """The spec is changed to longer or shorter transactions."""
    APPLICATION_FAILS = "application-fails"
    """The application raises, for a moment."""


FAULTS: Mapping[ShardFault, float] = {
    ShardFault.CRASH: 3.0,
    ShardFault.PAUSE: 3.0,
    ShardFault.LEASE_LOST: 1.0,
    ShardFault.HAND_OVER: 2.0,
    ShardFault.REASSIGN: 0.7,
    ShardFault.ETCD_CUT: 0.7,
    ShardFault.ETCD_LOSSY: 1.0,
    ShardFault.BROKER_CUT: 1.0,
    ShardFault.BROKER_LOSSY: 2.5,
    ShardFault.BROKER_RESTART: 0.7,
    ShardFault.BROKER_REFUSES: 0.5,
    ShardFault.REGISTERS_LOST: 0.4,
    ShardFault.TABLE_LOSSY: 1.5,
    ShardFault.COMPACTION: 0.5,
    ShardFault.SPEC_CHANGED: 0.5,
    ShardFault.APPLICATION_FAILS: 0.5,
}
"""Relative frequency of each fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardScenario(RunScenario):
    """A family of runs, from which a seed selects one."""

    members: IntRange = (2, 3)
    """Number of processes that run at a time."""
    standbys: IntRange = (0, 1)
    """Hot standbys; only a shard with a recovery log uses them."""
    recorded: float = 0.7
    """Share of runs with state in a recovery log; the others keep it in a table."""
    piecewise: float = 0.4
    """Share of runs in which a commit into the recovery log takes several appends."""
    carried_bytes: Sequence[int] = (0, 200, 16 << 10)
    """Bytes that acknowledgement intents carry: no messages, few, or all; the seed selects one."""
    faults: Mapping[ShardFault, float] = field(default_factory=lambda: FAULTS)
    steps: IntRange = (6, 14)
    pause_seconds: Range = (0.1, 4.0)
    passing_seconds: Range = (0.2, 12.0)
    process_steps: IntRange = (0, 300)
    """Steps of a process's tasks after which it is killed or paused."""
    write_seconds: Range = (0.02, 0.5)
    """Time between two appends of other producers."""
    lease_seconds: Range = (0.0, 8.0)
    """Time for which the assignments of a dead process remain."""
    latencies_seconds: Sequence[Range] = ((0.0001, 0.002), (0.001, 0.02))
    min_txn_milliseconds: IntRange = (0, 200)
    max_txn_milliseconds: IntRange = (50, 1500)
    ring_messages: IntRange = (2, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport(RunReport):
    """The outcome of one run."""

    inputs: int
    """Number of inputs that were committed and are reflected."""
    commits: int
    """Number of transactions that became durable."""
    restores: int
    """Number of times that a primary opened its store."""

    def summary(self) -> str:
        """Return what a good run did, in one line."""
        return (
            f"{self.inputs} inputs in {self.commits} transactions, {self.restores} restores,"
            f" {self.virtual_seconds:.0f} virtual s"
        )
