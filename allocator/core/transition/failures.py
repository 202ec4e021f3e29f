"""Which replicas have failed for so long that they are better placed elsewhere.

A failed replica restarts where it is, and mostly recovers. One that stays failed on a member while its item is served
by others has a cause on that member: a full disk, a library missing, a network that does not reach.

Only replicas that the application does not count as consistent are watched: if the primary itself has failed, moving
standbys about would not help anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from allocator.core.consistency import Consistency
from allocator.core.model import Assignment
from allocator.core.state import PRIMARY_SLOT, AllocState


@dataclass(frozen=True, slots=True)
class FailedReplicas:
    """Since when each failed replica is known to have failed."""

    since: Mapping[tuple[bytes, int], float] = field(default_factory=dict)
    """Monotonic seconds, by key and create revision: a replica made anew starts anew."""

    def observed(
        self,
        state: AllocState,
        *,
        is_failed: Callable[[Assignment], bool],
        consistency: Consistency,
        now_monotonic_seconds: float,
    ) -> FailedReplicas:
        """Return what is known after a look at a snapshot."""
        failed = (
            assignment
            for item_id, group in state.assignments.items()
            if item_id in state.items
            for assignment in group
            if assignment.slot != PRIMARY_SLOT
            and is_failed(assignment)
            and not consistency.is_consistent(state.items[item_id], assignment, group)
        )
        identities = ((a.kv.key, a.kv.create_revision) for a in failed)
        return FailedReplicas({i: self.since.get(i, now_monotonic_seconds) for i in identities})

    def avoided_in(
        self, state: AllocState, *, after_seconds: float, now_monotonic_seconds: float
    ) -> AllocState:
        """Return the snapshot with replicas marked that have failed for `after_seconds` or longer."""
        since_latest = now_monotonic_seconds - after_seconds
        long_failed = {key for (key, _), since in self.since.items() if since <= since_latest}
        if not long_failed:
            return state
        return replace(
            state,
            avoided=frozenset(
                (assignment.item_id, assignment.member_id)
                for group in state.assignments.values()
                for assignment in group
                if assignment.kv.key in long_failed
            ),
        )
