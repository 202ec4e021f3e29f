"""Which faults a run suffers, and when. Pure: a seed and a length make a schedule, so that a run can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

FIRST_AT_SECONDS = 3.0
"""So that something is under way."""
PAUSE_SECONDS = 5.0
"""Mean time from one fault to the next, unless asked otherwise: long enough for most to be recovered from."""
QUIET_END_RATIO = 0.1
"""Part of a run, its end, in which no fault begins: what was hurt must be seen to recover under load."""


class FaultKind(Enum):
    """What is done to the cluster."""

    KILL = "kill -9 of a member"
    FREEZE = "SIGSTOP of a member, SIGCONT after its lease"
    HICCUP = "SIGSTOP of a member, SIGCONT within its lease"
    ZOMBIE = "SIGSTOP of a member, its lease revoked, SIGCONT while etcd is down"
    DRAIN = "a member is told to leave"
    ETCD = "kill -9 of etcd, restarted"
    ETCD_LONG = "kill -9 of etcd, restarted after every lease"
    BROKER = "kill -9 of the broker, restarted"
    BROKER_CUT = "a member is cut off from the broker, silently"
    PRODUCER_CLOCK = "a producer's clock jumps two days ahead"
    BROKER_DISK = "kill -9 of the broker, restarted without the fragments that its store has"
    ETCD_SLOW = "round trips to etcd take seconds"
    JOURNAL = "a journal is deleted under its shard, and made again"
    LOG_BYTES = "37 foreign bytes are appended to a live recovery log"
    LOG_AUTHOR = "operations of another author are appended to a live recovery log"
    LOG_NUMBER = "another author takes the next number of a recovery log"
    STORE_CLASS = "a shard's store is of another class, and of the right one again"
    MEMBER_CLOCK = "a member's wall clock jumps two days ahead, and back"
    HOST = "kill -9 of an executor"

    @property
    def of_member(self) -> bool:
        """Whether it hits one member, rather than a service that all share."""
        return self not in _OF_ALL | OF_SHARDS


_OF_ALL = frozenset(
    {
        FaultKind.ETCD,
        FaultKind.ETCD_LONG,
        FaultKind.BROKER,
        FaultKind.BROKER_DISK,
        FaultKind.ETCD_SLOW,
        FaultKind.PRODUCER_CLOCK,
    }
)
OF_SERVICES = frozenset(
    {FaultKind.ETCD, FaultKind.ETCD_LONG, FaultKind.BROKER, FaultKind.BROKER_DISK}
)
"""What kills etcd or the broker."""
OF_SHARDS = frozenset(
    {
        FaultKind.JOURNAL,
        FaultKind.LOG_BYTES,
        FaultKind.LOG_AUTHOR,
        FaultKind.LOG_NUMBER,
        FaultKind.STORE_CLASS,
    }
)
"""What strikes a shard's source, its recovery log, or its store."""
OF_LOGS = OF_SHARDS - {FaultKind.JOURNAL}
"""What needs recovery logs."""
JUMP_SECONDS = 2 * 86_400.0
"""How far clocks jump: further than the day for which readers remember producers."""

ROUND_TRIP_SECONDS_MAX = 3.0
"""Longer than the lease of a chaos run bears, so that some members lose theirs."""

PROCESS_FAULTS = tuple(kind for kind in FaultKind if kind is not FaultKind.HOST)
"""What can be done to members that are plain processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is done, and undone after a while."""

    at_seconds: float
    """Since the beginning of the run."""
    kind: FaultKind
    member: int = 0
    """Index of the member that is hit."""
    lasts_seconds: float = 0.0
    """Until it is undone: frozen, or down."""
    round_trip_seconds: float = 0.0
    """Of calls of etcd meanwhile, at least."""

    def __str__(self) -> str:
        where = f" {self.member}" if self.kind.of_member else ""
        long = f" ({self.round_trip_seconds:.1f})" if self.round_trip_seconds else ""
        lasts = f", for {self.lasts_seconds:.1f} s" if self.lasts_seconds else ""
        return f"{self.at_seconds:6.1f} s  {self.kind.value}{long}{where}{lasts}"


def make_schedule(
    seed: int,
    *,
    seconds: float,
    members: int,
    lease_seconds: float,
    pause_seconds: float = PAUSE_SECONDS,
    kinds: Sequence[FaultKind] = PROCESS_FAULTS,
) -> tuple[Fault, ...]:
    """Return faults in the order of their times.

    Args:
        seed: Chooses everything.
        seconds: Length of the run.
        members: Number of members.
        lease_seconds: Life of a member's lease, which some faults outlast.
        pause_seconds: Mean time from one fault to the next; some meet while others last.
        kinds: What may happen. Each does as often as any other, give or take one.
    """
    random = Random(seed)
    faults: list[Fault] = []
    at_seconds = FIRST_AT_SECONDS
    bag: list[FaultKind] = []
    while at_seconds < seconds * (1 - QUIET_END_RATIO):
        bag = bag or random.sample(kinds, len(kinds))
        kind = bag.pop()
        faults.append(
            Fault(
                at_seconds=at_seconds,
                kind=kind,
                member=random.randrange(members),
                lasts_seconds=_lasts_seconds(random, kind, lease_seconds),
                round_trip_seconds=(
                    random.uniform(0.2, ROUND_TRIP_SECONDS_MAX)
                    if kind is FaultKind.ETCD_SLOW
                    else 0.0
                ),
            )
        )
        at_seconds += random.uniform(0.3, 1.7) * pause_seconds
    return tuple(faults)


def _lasts_seconds(random: Random, kind: FaultKind, lease_seconds: float) -> float:
    match kind:
        case FaultKind.FREEZE | FaultKind.ETCD_LONG:
            return lease_seconds + random.uniform(1.0, 3.0)
        case FaultKind.BROKER_CUT | FaultKind.ETCD_SLOW:
            # Sometimes shorter than what a primary bears with, sometimes longer.
            return random.uniform(1.0, 8.0)
        case FaultKind.MEMBER_CLOCK:
            return random.uniform(1.0, 4.0)
        case FaultKind.ZOMBIE:
            # Long enough for a successor to begin, and some of its lease is left to believe in.
            return random.uniform(0.3, 0.6) * lease_seconds
        case FaultKind.HICCUP | FaultKind.ETCD | FaultKind.BROKER | FaultKind.BROKER_DISK:
            return random.uniform(0.1, 1.5)
        case _:
            return 0.0
