"""Failed replicas by item: since when each has failed, and which have failed for too long.

A failed replica restarts in place, and usually recovers. One that stays failed on a member while others serve its item
has a cause on that member: a full disk, a missing library, an unreachable network.

Only replicas that the application does not count as consistent are watched: if the primary itself has failed, moving
standbys would not help.

Invariants: a check of the clock takes time for each replica whose time is up, not for each failed one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush

from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, Avoided, Consistency

_Identity = tuple[bytes, int]
"""Key and create revision, so that a re-created replica starts over."""


class FailedSince:
    """Records failed replicas; notified of each item that changed."""

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
        self._due: list[tuple[float, ItemId, _Identity]] = []
        """Since when, for those that have not failed for too long; a heap, in which those that recovered may remain,
        except as the first."""
        self._too_long: dict[tuple[ItemId, _Identity], MemberId] = {}
        self._is_stale = False
        """Whether `avoided` is outdated relative to `_too_long`."""
        self.avoided: Avoided = frozenset()
        """Replicas that have failed for too long, as of the last check of the clock."""

    @property
    def item_ids(self) -> Collection[ItemId]:
        """Items with failed replicas, as of the last observation of each."""
        return self._since

    def observe(
        self,
        item_id: ItemId,
        item: Item | None,
        group: Sequence[Assignment],
        now_monotonic_seconds: float,
    ) -> None:
        """Observe the replicas of one item; `item` is None if the item does not exist any more."""
        before = self._since.pop(item_id, {})
        failed: dict[_Identity, tuple[float, MemberId]] = {}
        for assignment in () if item is None else self._failing(item, group):
            identity = (assignment.kv.key, assignment.kv.create_revision)
            since, _ = before.get(identity, (now_monotonic_seconds, None))
            failed[identity] = (since, assignment.member_id)
            if identity not in before:
                heappush(self._due, (since, item_id, identity))
        for identity in before.keys() - failed.keys():
            if self._too_long.pop((item_id, identity), None) is not None:
                self._is_stale = True
        if failed:
            self._since[item_id] = failed
        self._drop_recovered()

    def expire(self, now_monotonic_seconds: float) -> bool:
        """Check the clock. Return whether the set of replicas that have failed for too long changed."""
        since_latest = now_monotonic_seconds - self._after_seconds
        while self._due and self._due[0][0] <= since_latest:
            since, item_id, identity = heappop(self._due)
            # If it recovered and failed again, a later entry of the heap counts.
            if self._fails_since(item_id, identity, since):
                _, member_id = self._since[item_id][identity]
                self._too_long[item_id, identity] = member_id
                self._is_stale = True
        # `next_seconds` reads the first entry, so that one must still fail.
        self._drop_recovered()
        if not self._is_stale:
            return False
        self._is_stale = False
        before = self.avoided
        self.avoided = frozenset(
            (item_id, member_id) for (item_id, _), member_id in self._too_long.items()
        )
        return self.avoided != before

    def next_seconds(self, now_monotonic_seconds: float) -> float | None:
        """Return how long until the next replica has failed for too long; None if there is none."""
        since_latest = now_monotonic_seconds - self._after_seconds
        return max(0.0, self._due[0][0] - since_latest) if self._due else None

    def _drop_recovered(self) -> None:
        """Drop recovered replicas from the front of the queue."""
        while self._due:
            since, item_id, identity = self._due[0]
            if self._fails_since(item_id, identity, since):
                return
            heappop(self._due)

    def _fails_since(self, item_id: ItemId, identity: _Identity, since: float) -> bool:
        known = self._since.get(item_id, {}).get(identity)
        return known is not None and known[0] == since

    def _failing(self, item: Item, group: Sequence[Assignment]) -> list[Assignment]:
        return [
            assignment
            for assignment in group
            if assignment.slot != PRIMARY_SLOT
            and self._is_failed(assignment)
            and not self._consistency.is_consistent(item, assignment, group)
        ]
