"""Detects that a process has lost its brokers, and paces how often standbys take a shard over.

    REACHABLE ──no answer──► DOUBTFUL ──none for the bound, several times──► UNAVAILABLE
        ▲                       │                                                │
        └────────answer─────────┴─────────────────────answer─────────────────────┘

Nothing is decided here about whose fault it is. A standby takes the shard of an unavailable primary only once it has
reached the brokers itself: while they are dead, nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from broadsheet.allocator.model import Assignment, MemberId
from broadsheet.consumer.registry.key_space import PRIMARY_SLOT, status_of
from broadsheet.wire.shard_pb2 import ReplicaStatus

FAILURES_MIN = 3
"""Questions in a row without an answer: a process that was stopped itself finds one of them overdue, not three."""
CALM_SECONDS = 2.0
"""A member that lost the brokers, too, waits so long after their return before it takes a shard: the primary has
then noticed, too, that they are back, and says so."""
RENEWALS_RATIO = 2.0
"""Each further renewal of a silent connection waits so many times as long."""

KeyT = TypeVar("KeyT", bound=Hashable)


class Reach(Enum):
    """Reach of the brokers, as seen from this process."""

    REACHABLE = "reachable"
    DOUBTFUL = "doubtful"
    UNAVAILABLE = "unavailable"


class Reachability:
    """Follows the requests of one process to its brokers. Times are monotonic seconds."""

    def __init__(self, *, unavailable_seconds: float) -> None:
        """Set the time without an answer that counts as unavailable.

        Args:
            unavailable_seconds: How long nothing may be answered; above 0.
        """
        assert unavailable_seconds > 0, "without patience every question is unanswered"
        self._unavailable_seconds = unavailable_seconds
        self._failures = 0
        self._renew_after_seconds = unavailable_seconds
        self.reach = Reach.REACHABLE
        self.cause = ""
        """What the question said that made it unavailable."""
        self.since_seconds = 0.0
        """When the first unanswered question was asked."""
        self._failed_at = -math.inf

    def on_answer(self) -> None:
        """Record an answer, whatever its content."""
        self.reach, self.cause, self._failures = Reach.REACHABLE, "", 0
        self._renew_after_seconds = self._unavailable_seconds

    def on_failure(self, cause: str, *, asked: float, now: float) -> None:
        """Record a request without an answer.

        Args:
            cause: Why, for people.
            asked: When it was asked.
            now: When that was given up.
        """
        self._failures += 1
        self._failed_at = now
        if self.reach is Reach.REACHABLE:
            self.reach, self.since_seconds = Reach.DOUBTFUL, asked
        waited_seconds = now - self.since_seconds
        if (
            self.reach is Reach.DOUBTFUL
            and self._failures >= FAILURES_MIN
            and waited_seconds >= self._unavailable_seconds
        ):
            self.reach, self.cause = Reach.UNAVAILABLE, cause

    def is_calm(self, *, now: float) -> bool:
        """Return whether every request of the last `CALM_SECONDS` was answered."""
        return now - self._failed_at >= CALM_SECONDS

    def takes_renewal(self, *, now: float) -> bool:
        """Return whether to replace a silent connection now; then not again for a while."""
        waited_seconds = now - self.since_seconds
        if self.reach is not Reach.UNAVAILABLE or waited_seconds < self._renew_after_seconds:
            return False
        self._renew_after_seconds = waited_seconds * RENEWALS_RATIO
        return True


@dataclass(frozen=True, slots=True)
class TakeOver:
    """An exchange of two replicas of a shard, so that the shard changes its primary."""

    primary: Assignment
    """It says that it is unavailable."""
    standby: Assignment
    """It is ready to serve."""


def take_over_of(replicas: Iterable[Assignment], member_id: MemberId) -> TakeOver | None:
    """Return a member's way to take a shard over; None if the primary is available, or the member not ready.

    Args:
        replicas: Of the shard.
        member_id: Who would take it.
    """
    primary = standby = None
    for each in replicas:
        if each.slot == PRIMARY_SLOT and status_of(each).unavailable:
            primary = each
        elif each.member_id == member_id and status_of(each).code == ReplicaStatus.STANDBY:
            standby = each
    if primary is None or standby is None or primary.member_id == member_id:
        return None
    return TakeOver(primary, standby)


@dataclass(frozen=True, slots=True)
class _Turns:
    times: int
    last_seconds: float


class TakeOverPace(Generic[KeyT]):
    """Back-off for exchanges between flapping members: each further one waits twice as long, until it is calm."""

    def __init__(
        self,
        *,
        first_seconds: float = 10.0,
        seconds_max: float = 320.0,
        calm_seconds: float = 900.0,
    ) -> None:
        """Set the delays.

        Args:
            first_seconds: Between the first and the second taking.
            seconds_max: Between any two, at most.
            calm_seconds: Without one for so long, the next is the first again.
        """
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._calm_seconds = calm_seconds
        self._turns: dict[KeyT, _Turns] = {}

    def on_taken(self, key: KeyT, *, now: float) -> None:
        """Record that a shard was taken over."""
        before = self._turns.get(key)
        is_calm = before is None or now - before.last_seconds >= self._calm_seconds
        times = 1 if before is None or is_calm else before.times + 1
        self._turns[key] = _Turns(times, now)
        self._turns = {
            each: turns
            for each, turns in self._turns.items()
            if now - turns.last_seconds < self._calm_seconds
        }

    def wait_seconds(self, key: KeyT, *, now: float) -> float:
        """Return how long the next take-over of a shard must still wait."""
        turns = self._turns.get(key)
        if turns is None or now - turns.last_seconds >= self._calm_seconds:
            return 0.0
        pause_seconds = min(self._seconds_max, self._first_seconds * 2.0 ** (turns.times - 1))
        return max(0.0, turns.last_seconds + pause_seconds - now)
