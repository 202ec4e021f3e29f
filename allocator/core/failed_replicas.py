"""Since when replicas have failed, item by item, and which have failed for so long that another place is better.

A failed replica restarts where it is, and mostly recovers. One that stays failed on a member while its item is served
by others has a cause on that member: a full disk, a library missing, a network that does not reach.

Only replicas that the application does not count as consistent are watched: if the primary itself has failed, moving
standbys about would not help anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from allocator.core.consistency import Consistency
from allocator.core.model import Assignment, Item, ItemId, MemberId
from allocator.core.state import PRIMARY_SLOT, Avoided

_Identity = tuple[bytes, int]
"""Key and create revision: a replica made anew starts anew."""


class FailedSince:
    """Remembers failed replicas; told of each item that changed."""

    def __init__(
        self,
        is_failed: Callable[[Assignment], bool],
        consistency: Consistency,
        *,
        after_seconds: float,
    ) -> None:
        self._is_failed = is_failed
        self._consistency = consistency
        self._after_seconds = after_seconds
        self._since: dict[ItemId, dict[_Identity, tuple[float, MemberId]]] = {}
        self.avoided: Avoided = frozenset()
        """Replicas that have failed for too long, as of the last look at the clock."""

    def observe(
        self,
        item_id: ItemId,
        item: Item | None,
        group: Sequence[Assignment],
        now_monotonic_seconds: float,
    ) -> None:
        """Look at the replicas of one item; `item` is None if there is no such item any more."""
        before = self._since.pop(item_id, {})
        if item is None:
            return
        failed: dict[_Identity, tuple[float, MemberId]] = {}
        for assignment in group:
            if not self._counts(item, assignment, group):
                continue
            identity = (assignment.kv.key, assignment.kv.create_revision)
            since, _ = before.get(identity, (now_monotonic_seconds, None))
            failed[identity] = (since, assignment.member_id)
        if failed:
            self._since[item_id] = failed

    def expire(self, now_monotonic_seconds: float) -> bool:
        """Look at the clock. Return whether other replicas than before have failed for too long."""
        since_latest = now_monotonic_seconds - self._after_seconds
        avoided = frozenset(
            (item_id, member_id)
            for item_id, failed in self._since.items()
            for since, member_id in failed.values()
            if since <= since_latest
        )
        changed = avoided != self.avoided
        self.avoided = avoided
        return changed

    def next_seconds(self, now_monotonic_seconds: float) -> float | None:
        """Return how long until the next one has failed for too long; None if nothing waits for that."""
        since_latest = now_monotonic_seconds - self._after_seconds
        waiting = [
            since
            for failed in self._since.values()
            for since, _ in failed.values()
            if since > since_latest
        ]
        return min(waiting) - since_latest if waiting else None

    def _counts(self, item: Item, assignment: Assignment, group: Sequence[Assignment]) -> bool:
        return (
            assignment.slot != PRIMARY_SLOT
            and self._is_failed(assignment)
            and not self._consistency.is_consistent(item, assignment, group)
        )
