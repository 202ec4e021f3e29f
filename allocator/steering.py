"""What depends on time: when the cluster counts as settled, and when a live primary may be moved next.

All of it is policy, so most clusters, which go by the defaults, are steered by nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from allocator.core.policy import AllocationPolicy, Objective
from allocator.core.tracker import Tracker


@dataclass(slots=True)
class Steering:
    """One leadership's sense of time."""

    policy: AllocationPolicy
    _membership: int = -1
    _changed_monotonic_seconds: float = 0.0
    _hand_over_monotonic_seconds: float = float("-inf")

    def observe(self, tracker: Tracker, now_monotonic_seconds: float) -> None:
        """Take over what is, and have the tracker state the objective that holds now."""
        if tracker.membership != self._membership:
            self._membership = tracker.membership
            self._changed_monotonic_seconds = now_monotonic_seconds
        tracker.set_objective(self._objective(tracker, now_monotonic_seconds))

    def hand_overs_allowed(self, tracker: Tracker, now_monotonic_seconds: float) -> int:
        """Return how many live primaries may be moved now."""
        primaries = self.policy.primaries
        due = self._hand_over_monotonic_seconds + primaries.hand_over_interval_seconds
        if not primaries.hand_over_above_spread or now_monotonic_seconds < due:
            return 0
        if tracker.primary_spread() <= primaries.hand_over_above_spread:
            return 0
        return primaries.hand_overs_in_flight_max

    def on_hand_overs_asked(self, now_monotonic_seconds: float) -> None:
        """They were, and the next time is an interval away, whatever came of it."""
        self._hand_over_monotonic_seconds = now_monotonic_seconds

    def next_seconds(self, tracker: Tracker, now_monotonic_seconds: float) -> Iterable[float]:
        """Yield after how long something may change by time alone."""
        if self.policy.transition.settle_seconds > 0.0 and not tracker.is_anyone_exiting:
            settled = self._changed_monotonic_seconds + self.policy.transition.settle_seconds
            if settled > now_monotonic_seconds:
                yield settled - now_monotonic_seconds
        primaries = self.policy.primaries
        if primaries.hand_over_above_spread:
            due = self._hand_over_monotonic_seconds + primaries.hand_over_interval_seconds
            yield max(due - now_monotonic_seconds, primaries.hand_over_interval_seconds / 2)

    def _objective(self, tracker: Tracker, now: float) -> Objective:
        objective, settle_seconds = self.policy.objective, self.policy.transition.settle_seconds
        is_settled = settle_seconds <= 0.0 or (
            not tracker.is_anyone_exiting
            and now - self._changed_monotonic_seconds >= settle_seconds
        )
        return objective if is_settled else replace(objective, moves_before_balance=True)
