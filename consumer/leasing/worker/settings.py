"""What a worker may be told; the defaults are those of the Kinesis Client Library where it has them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.leasing.position import TRIM_HORIZON, Position

DISCOVER_EARLIER_SECONDS = 0.025
"""How much sooner than a lease's length a worker looks for what was assigned to it; the Kinesis Client Library's ε."""


class StealWay(Enum):
    """How a worker gets a lease from one that has more than its share."""

    CLAIM = "claim"
    """It asks; the holder checkpoints and lets go. If it does not in time, the lease is taken from it."""
    HAND_OFF = "hand-off"
    """It becomes the next owner; the holder checkpoints and passes the lease to it. In time, too."""
    AT_ONCE = "at once"
    """It takes it; the holder learns at its next renewal or checkpoint."""


class Balancing(Enum):
    """Who decides which worker gets which lease."""

    TAKERS = "takers"
    """Each worker for itself: it looks at all leases and takes its share. The way of versions 1 and 2 of the Kinesis
    Client Library."""
    LEADER = "leader"
    """One of the workers, elected, for all: the others look for what was assigned to them. The way of version 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One for all workers of an application: lengths and deadlines must agree."""

    lease_seconds: float = 10.0
    """How long nobody takes a lease from a holder that does not move."""
    renew_seconds: float | None = None
    """Time between renewals; None: a third of a lease's length."""
    take_seconds: float | None = None
    """Time between looks at all leases; None: twice a lease's length, or a tenth where the store tells who lives.
    With a leader: between its passes, and between others' looks whether it lives."""
    leases_max: int = sys.maxsize
    """Leases that a worker holds at most."""
    steals_max: int = sys.maxsize
    """Leases that a worker asks others for in one look; by default all that it lacks. It was 1 in the Kinesis Client
    Library, where a worker that joins has its share after as many looks as that has leases. With a leader: hand-offs
    that it begins in a pass."""
    overdue_lengths: float = 3.0
    """After how many lengths of a lease one that stays free is taken before all others, even beyond a fair share, but
    never beyond `leases_max`. `math.inf`: not at all. A leader gives every free lease to somebody anyway."""
    steal: StealWay = StealWay.CLAIM
    graceful_seconds: float = 30.0
    """How long a processor may take to finish when it is asked to."""
    parent_poll_seconds: float = 10.0
    """Time between looks at the parents of a shard that waits for them."""
    end_retry_seconds: float = 0.5
    """Time between calls of `shard_ended` for a processor that does not checkpoint there."""
    retry_seconds: float = 10.0
    """How long a shard whose processor failed here is left to other workers."""
    sync_seconds: float = 60.0
    """Time between comparisons of the leases with the stream's shards."""
    start: Position = field(default_factory=lambda: Position(TRIM_HORIZON))
    """Where an application begins that was never run: `TRIM_HORIZON`, `LATEST` or `AT_TIMESTAMP`."""
    renewals_at_once: int = 20
    """Renewals under way at a time."""
    threads: int = 32
    """Calls of blocking processors at a time."""
    balancing: Balancing = Balancing.TAKERS
    discover_seconds: float | None = None
    """With a leader: time between looks for what was assigned; None: a lease's length, less 25 ms, or a tenth where the
    store tells who lives."""
    leader_lease_seconds: float = 120.0
    """How long a leader may not move before another is elected; where the fleet's store tells who lives, that does."""
    leader_heartbeat_seconds: float = 30.0
    """Time between the leader's signs of life."""
    rebalance_passes: int = 3
    """In which of a leader's passes living workers are asked for leases: every third. Free ones are given in each."""
    failed_passes_max: int = 3
    """After how many failed passes, one after another, a leader steps down."""

    def __post_init__(self) -> None:
        for name in ("lease_seconds", "graceful_seconds", "parent_poll_seconds", "sync_seconds"):
            if getattr(self, name) <= 0:
                raise ValidationError(f"worker.{name}", "expected more than 0 seconds")
        for name in ("renewals_at_once", "threads"):
            if getattr(self, name) < 1:
                raise ValidationError(f"worker.{name}", "expected at least 1")
        if self.renew_every_seconds >= self.lease_seconds / 2:
            raise ValidationError(
                "worker.renew_seconds",
                f"expected less than half of lease_seconds, {self.lease_seconds}, so that one renewal may fail",
            )
        if not self.overdue_lengths > 0:  # Which nothing is that is not a number.
            raise ValidationError(
                "worker.overdue_lengths",
                "expected more than 0 lengths of a lease; math.inf if free leases never go beyond a share",
            )
        self._check_leader()
        if not self.start.is_name or self.start.is_end:
            raise ValidationError(
                "worker.start",
                f"expected TRIM_HORIZON, LATEST or AT_TIMESTAMP, got {self.start.seq}",
            )

    def _check_leader(self) -> None:
        if not 0 < self.leader_heartbeat_seconds < self.leader_lease_seconds / 2:
            raise ValidationError(
                "worker.leader_heartbeat_seconds",
                f"expected more than 0 and less than half of leader_lease_seconds, {self.leader_lease_seconds},"
                " so that one heartbeat may fail",
            )
        if self.discover_seconds is not None and not 0 < self.discover_seconds < self.lease_seconds:
            raise ValidationError(
                "worker.discover_seconds",
                f"expected more than 0 and less than lease_seconds, {self.lease_seconds}: what is assigned and not"
                " found by then is taken for a dead worker's",
            )
        for name in ("rebalance_passes", "failed_passes_max"):
            if getattr(self, name) < 1:
                raise ValidationError(f"worker.{name}", "expected at least 1 pass")

    @property
    def renew_every_seconds(self) -> float:
        """Time between renewals."""
        return self.lease_seconds / 3 if self.renew_seconds is None else self.renew_seconds

    @property
    def asking_seconds(self) -> float:
        """How long nobody else takes a lease that was asked for: the holder may finish, and its lease may end."""
        return self.graceful_seconds + self.lease_seconds

    @property
    def overdue_seconds(self) -> float:
        """For how long a lease is free before it is taken even beyond a fair share."""
        return self.overdue_lengths * self.lease_seconds

    def take_every_seconds(self, *, store_tells_who_lives: bool) -> float:
        """Return the time between looks at all leases."""
        if self.take_seconds is not None:
            return self.take_seconds
        return self.lease_seconds / 10 if store_tells_who_lives else self.lease_seconds * 2

    def discover_every_seconds(self, *, store_tells_who_lives: bool) -> float:
        """Return the time between looks for what the leader assigned."""
        if self.discover_seconds is not None:
            return self.discover_seconds
        if store_tells_who_lives:
            return self.lease_seconds / 10
        return max(self.lease_seconds - DISCOVER_EARLIER_SECONDS, self.lease_seconds / 2)
