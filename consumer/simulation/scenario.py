"""What is simulated: a shard, its members, what goes wrong, and how long.

Ranges are inclusive; where a run falls in them is drawn from its seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from broadsheet.consumer.simulation.history_checker import HistoryViolation

Range = tuple[float, float]
IntRange = tuple[int, int]


class Fault(Enum):
    """What may happen to a shard."""

    CRASH = "crash"
    """A process is killed between two steps; the shard is assigned elsewhere once its lease is over."""
    PAUSE = "pause"
    """A process stands still between two steps, and goes on when it may have been replaced for long."""
    LEASE_LOST = "lease-lost"
    """The lease of a process ends, and with it its assignments."""
    HAND_OVER = "hand-over"
    """The shard is moved from a healthy primary to another member, standby or not."""
    REASSIGN = "reassign"
    """The primary's assignment is made anew, for the same member."""
    ETCD_CUT = "etcd-cut"
    """A process does not reach etcd for a while."""
    ETCD_LOSSY = "etcd-lossy"
    """Its messages to and from etcd are lost, or come very late, for a while."""
    BROKER_CUT = "broker-cut"
    """A process does not reach the broker for a while."""
    BROKER_LOSSY = "broker-lossy"
    """Appends and answers are lost, or come very late, for a while: what was appended is appended again."""
    BROKER_RESTART = "broker-restart"
    """Every connection to the broker breaks, and nobody reaches it for a while."""
    BROKER_REFUSES = "broker-refuses"
    """The broker answers that nobody serves its journals, for a while."""
    REGISTERS_LOST = "registers-lost"
    """The recovery log loses its registers, as no broker should."""
    TABLE_LOSSY = "table-lossy"
    """Commits into the table are lost, or their answers, or come very late, for a while."""
    COMPACTION = "compaction"
    """Etcd forgets its history."""
    SPEC_CHANGED = "spec-changed"
    """The shard's transactions shall be longer, or shorter."""
    APPLICATION_FAILS = "application-fails"
    """The application raises, for a moment."""


FAULTS: Mapping[Fault, float] = {
    Fault.CRASH: 3.0,
    Fault.PAUSE: 3.0,
    Fault.LEASE_LOST: 1.0,
    Fault.HAND_OVER: 2.0,
    Fault.REASSIGN: 0.7,
    Fault.ETCD_CUT: 0.7,
    Fault.ETCD_LOSSY: 1.0,
    Fault.BROKER_CUT: 1.0,
    Fault.BROKER_LOSSY: 2.5,
    Fault.BROKER_RESTART: 0.7,
    Fault.BROKER_REFUSES: 0.5,
    Fault.REGISTERS_LOST: 0.4,
    Fault.TABLE_LOSSY: 1.5,
    Fault.COMPACTION: 0.5,
    Fault.SPEC_CHANGED: 0.5,
    Fault.APPLICATION_FAILS: 0.5,
}
"""How often each happens, against the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A family of runs."""

    members: IntRange = (2, 3)
    """Processes that run at a time."""
    standbys: IntRange = (0, 1)
    """Hot ones; only a shard with a recovery log has use for them."""
    recorded: float = 0.7
    """Share of runs whose state is in a recovery log; in the others it is in a table."""
    piecewise: float = 0.4
    """Share of runs in which a commit into the recovery log takes several appends."""
    carried_bytes: Sequence[int] = (0, 200, 16 << 10)
    """What acknowledgement intents carry: no messages, few, as many as there are; the seed picks one."""
    faults: Mapping[Fault, float] = field(default_factory=lambda: FAULTS)
    steps: IntRange = (6, 14)
    """Faults of a run."""
    pause_seconds: Range = (0.1, 4.0)
    """Between two faults."""
    passing_seconds: Range = (0.2, 12.0)
    """How long something is wrong that passes."""
    process_steps: IntRange = (0, 300)
    """Steps of its tasks after which a process is killed, or paused."""
    write_seconds: Range = (0.02, 0.5)
    """Between two appends of other producers."""
    lease_seconds: Range = (0.0, 8.0)
    """For how long the assignments of a dead process still stand."""
    latencies_seconds: Sequence[Range] = ((0.0001, 0.002), (0.001, 0.02))
    """Of messages, while nothing is wrong; the seed picks one."""
    min_txn_milliseconds: IntRange = (0, 200)
    max_txn_milliseconds: IntRange = (50, 1500)
    ring_messages: IntRange = (2, 40)
    settle_seconds_max: float = 400.0
    """All must be well so long after the last fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of one run."""

    seed: int
    trace_hash: str
    """The same for the same seed, scenario and code."""
    virtual_seconds: float
    inputs: int
    """Inputs that were committed, and are reflected."""
    commits: int
    """Transactions that became durable."""
    restores: int
    """How often a primary opened its store."""
    violation: HistoryViolation | None = None
    recent: tuple[str, ...] = ()
    """The last lines of the trace, if there is a violation."""

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return self.violation is None

    def __str__(self) -> str:
        if self.violation is None:
            return (
                f"seed {self.seed}: ok, {self.inputs} inputs in {self.commits} transactions,"
                f" {self.restores} restores, {self.virtual_seconds:.0f} virtual s, trace {self.trace_hash[:16]}"
            )
        return "\n".join((f"seed {self.seed}: {self.violation}", *self.recent))
