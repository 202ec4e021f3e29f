"""Settings of workers; the defaults are the Kinesis Client Library's where it has them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum

from broadsheet.leases.position import TRIM_HORIZON, Position
from broadsheet.runtime.errors import ValidationError

DISCOVER_EARLIER_SECONDS = 0.025
"""Time before a lease's length at which a worker looks for its assigned leases; the Kinesis Client Library's ε."""


class StealWay(Enum):
    """Ways to get a lease from a worker that has more than its share."""

    CLAIM = "claim"
    """It asks; the holder checkpoints and releases. If it does not in time, the lease is taken from it."""
    HAND_OFF = "hand-off"
    """It becomes the next owner; the holder checkpoints and passes the lease on, with the same time limit."""
    AT_ONCE = "at once"
    """It takes the lease; the holder learns that at its next renewal or checkpoint."""


class Balancing(Enum):
    """Way in which leases are distributed to workers."""

    TAKERS = "takers"
    """Each worker scans all leases and takes its share, as in versions 1 and 2 of the Kinesis Client Library."""
    LEADER = "leader"
    """An elected worker assigns leases, and every worker looks for its own, as in version 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of an application's workers, the same for all: lengths and deadlines must agree."""

    lease_seconds: float = 10.0
    """Time for which no worker takes a lease from a holder that does not move."""
    renew_seconds: float | None = None
    """Time between renewals; None: a third of a lease's length."""
    take_seconds: float | None = None
    """Time between scans of all leases; None: twice a lease's length, or a tenth where the store tells who lives. With
    a leader: between its passes, and between the other workers' checks whether it lives.
    """
    leases_max: int = sys.maxsize
    """Most leases that a worker holds."""
    steals_max: int = sys.maxsize
    """Most leases that a worker asks others for in one scan; by default all that it lacks. It was 1 in the Kinesis
    Client Library, where a joining worker needs as many scans as its share has leases. With a leader: most hand-offs
    begun in a pass.
    """
    overdue_lengths: float = 3.0
    """Lengths of a lease after which one that stays free is taken before all others, even beyond a fair share, but
    never beyond `leases_max`. `math.inf`: never. A leader assigns every free lease anyway.
    """
    steal: StealWay = StealWay.CLAIM
    graceful_seconds: float = 30.0
    """Time that a processor may take to finish when asked to."""
    parent_poll_seconds: float = 10.0
    """Time between checks of the parents of a shard that waits for them."""
    end_retry_seconds: float = 0.5
    """Time between calls of `shard_ended` for a processor that does not checkpoint there."""
    retry_seconds: float = 10.0
    """Time for which a shard whose processor failed here is left to other workers."""
    sync_seconds: float = 60.0
    """Time between comparisons of the leases with the stream's shards."""
    start: Position = field(default_factory=lambda: Position(TRIM_HORIZON))
    """Where an application begins that was never run: `TRIM_HORIZON`, `LATEST` or `AT_TIMESTAMP`."""
    renewals_at_once: int = 20
    """Concurrent renewals."""
    threads: int = 32
    """Concurrent calls of blocking processors."""
    balancing: Balancing = Balancing.TAKERS
    discover_seconds: float | None = None
    """With a leader: time between looks for assigned leases; None: a lease's length, less 25 ms, or a tenth where the
    store tells who lives.
    """
    leader_lease_seconds: float = 120.0
    """Time without a heartbeat after which another leader is elected; not used where the fleet's store tells who lives.
    """
    leader_heartbeat_seconds: float = 30.0
    """Time between the leader's heartbeats."""
    rebalance_passes: int = 3
    """Passes of a leader per rebalancing pass, in which living workers are asked for leases. Free leases are assigned
    in every pass.
    """
    failed_passes_max: int = 3
    """Consecutive failed passes after which a leader steps down."""

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
        if not self.overdue_lengths > 0:  # False for NaN as well.
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
        """Time for which no other worker takes a lease that was asked for: the holder may finish, and its lease may
        end.
        """
        return self.graceful_seconds + self.lease_seconds

    @property
    def overdue_seconds(self) -> float:
        """Time that a lease stays free before it is taken even beyond a fair share."""
        return self.overdue_lengths * self.lease_seconds

    def take_every_seconds(self, *, store_tells_who_lives: bool) -> float:
        """Return the time between scans of all leases."""
        if self.take_seconds is not None:
            return self.take_seconds
        return self.lease_seconds / 10 if store_tells_who_lives else self.lease_seconds * 2

    def discover_every_seconds(self, *, store_tells_who_lives: bool) -> float:
        """Return the time between looks for assigned leases."""
        if self.discover_seconds is not None:
            return self.discover_seconds
        if store_tells_who_lives:
            return self.lease_seconds / 10
        return max(self.lease_seconds - DISCOVER_EARLIER_SECONDS, self.lease_seconds / 2)
