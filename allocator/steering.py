"""The pace of changes: when the cluster counts as settled, which drains wait, and when a live primary may move.

All of it is policy. By default only balance is paced: it waits until membership has settled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from allocator.model import MemberId
from allocator.policy import AllocationPolicy
from allocator.state.derived_state import Tracker
from allocator.transition.membership_settling import Settling


@dataclass(slots=True)
class PacingPolicy:
    """A member's sense of time while it leads; kept from one leadership of its own to the next.

    Etcd does not tell since when a drain waits. If each epoch started the wait again, elections that come more often
    than the patience is long would put it off for ever. What happened while another led shows as a difference, and
    counts as having happened now; but a member that took its wish to leave back, and then left, counts as leaving all
    along.
    """

    policy: AllocationPolicy
    _settling: Settling = field(init=False)
    _hand_over_monotonic_seconds: float = float("-inf")

    def __post_init__(self) -> None:
        """Start without a past."""
        self._settling = Settling(policy=self.policy.transition)

    @property
    def drains_waiting(self) -> frozenset[MemberId]:
        """Exiting members that give up nothing yet, as of the last look."""
        return self._settling.drains_waiting

    @property
    def settling(self) -> Settling:
        """What is known of membership, as of the last look."""
        return self._settling

    def observe(self, tracker: Tracker, now_monotonic_seconds: float) -> None:
        """Look at members and the clock, and tell the tracker what follows for plans."""
        self._settling = self._settling.observed(
            tracker.members,
            now_monotonic_seconds,
            capacities=tracker.capacities,
            is_placed=tracker.holds_anything,
        )
        tracker.set_objective(self._settling.objective(self.policy.objective))
        tracker.set_inherited(self._settling.capacities)
        tracker.set_drains_waiting(self._settling.drains_waiting)

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
        """Start the interval until the next hand-overs, also if none came of these."""
        self._hand_over_monotonic_seconds = now_monotonic_seconds

    def next_seconds(self, now_monotonic_seconds: float) -> Iterable[float]:
        """Yield after how long something may change by time alone."""
        settling = self._settling.next_change_seconds(now_monotonic_seconds)
        if settling is not None:
            yield settling
        primaries = self.policy.primaries
        if primaries.hand_over_above_spread:
            due = self._hand_over_monotonic_seconds + primaries.hand_over_interval_seconds
            # Once it is due it stays so until the cluster is at rest, which wakes us.
            yield (
                due - now_monotonic_seconds
                if due > now_monotonic_seconds
                else (primaries.hand_over_interval_seconds)
            )
