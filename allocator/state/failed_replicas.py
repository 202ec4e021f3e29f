"""Failed replicas by item: since when each has failed, and which have failed for too long.

A failed replica restarts in place, and usually recovers. One that stays failed on a member while others serve its item
has a cause on that member: a full disk, a missing library, an unreachable network.

Standbys are watched unless the application counts them as consistent: if the primary itself has failed, moving standbys
would not help. A primary is watched only beside a replica that could serve at once, and that says nothing of what it
would meet as the primary. So each primary of an item in a row gets twice the time of the one before it: what fails on
every member must not go around among them.

Invariants: a check of the clock takes time for each replica whose time is up, not for each failed one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, Avoided, Consistency

PRIMARY_DOUBLINGS_MAX = 4
"""The longest time of a failed primary is 16 times the first: about a quarantine of a shard."""

_Identity = tuple[bytes, int]
"""Key and create revision, so that a re-created replica starts over."""


class _Failure(NamedTuple):
    """A failed replica."""

    due: float
    """When it has failed for too long, monotonic seconds."""
    member_id: MemberId
    is_primary: bool


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
        self._due_at: dict[ItemId, dict[_Identity, _Failure]] = {}
        self._due: list[tuple[float, ItemId, _Identity]] = []
        """When those that have not yet failed for too long will have; a heap, in which those that recovered may remain,
        except as the first."""
        self._primaries_given_up: dict[ItemId, tuple[int, float]] = {}
        """How many primaries of an item in a row, and when the last one."""
        self._too_long: dict[tuple[ItemId, _Identity], MemberId] = {}
        self._is_stale = False
        """Whether `avoided` is outdated relative to `_too_long`."""
        self.avoided: Avoided = frozenset()
        """Replicas that have failed for too long, as of the last check of the clock."""

    @property
    def item_ids(self) -> Collection[ItemId]:
        """Items with failed replicas, as of the last observation of each."""
        return self._due_at

    def observe(
        self,
        item_id: ItemId,
        item: Item | None,
        group: Sequence[Assignment],
        now_monotonic_seconds: float,
    ) -> None:
        """Observe the replicas of one item; `item` is None if the item does not exist any more."""
        before = self._due_at.pop(item_id, {})
        failed: dict[_Identity, _Failure] = {}
        for assignment in () if item is None else self._failing(item, group):
            identity = (assignment.kv.key, assignment.kv.create_revision)
            known = before.get(identity)
            if known is None:
                due = now_monotonic_seconds + self._seconds_for(assignment, now_monotonic_seconds)
                known = _Failure(due, assignment.member_id, assignment.slot == PRIMARY_SLOT)
                heappush(self._due, (due, item_id, identity))
            failed[identity] = known
        for identity in before.keys() - failed.keys():
            if self._too_long.pop((item_id, identity), None) is not None:
                self._is_stale = True
        if failed:
            self._due_at[item_id] = failed
        self._drop_recovered()

    def expire(self, now_monotonic_seconds: float) -> bool:
        """Check the clock. Return whether the set of replicas that have failed for too long changed."""
        while self._due and self._due[0][0] <= now_monotonic_seconds:
            due, item_id, identity = heappop(self._due)
            # If it recovered and failed again, a later entry of the heap counts.
            if self._is_due_at(item_id, identity, due):
                failure = self._due_at[item_id][identity]
                if failure.is_primary:
                    times, _ = self._primaries_given_up.get(item_id, (0, 0.0))
                    times = min(times + 1, PRIMARY_DOUBLINGS_MAX)
                    self._primaries_given_up[item_id] = times, now_monotonic_seconds
                self._too_long[item_id, identity] = failure.member_id
                self._is_stale = True
        # `next_seconds` reads the first entry, so that one must still fail.
        self._drop_recovered()
        if not self._is_stale:
            return False
        self._is_stale = False
        self._forget_calm(now_monotonic_seconds)
        before = self.avoided
        self.avoided = frozenset(
            (item_id, member_id) for (item_id, _), member_id in self._too_long.items()
        )
        return self.avoided != before

    def next_seconds(self, now_monotonic_seconds: float) -> float | None:
        """Return how long until the next replica has failed for too long; None if there is none."""
        return max(0.0, self._due[0][0] - now_monotonic_seconds) if self._due else None

    def _drop_recovered(self) -> None:
        """Drop recovered replicas from the front of the queue."""
        while self._due:
            due, item_id, identity = self._due[0]
            if self._is_due_at(item_id, identity, due):
                return
            heappop(self._due)

    def _is_due_at(self, item_id: ItemId, identity: _Identity, due: float) -> bool:
        known = self._due_at.get(item_id, {}).get(identity)
        return known is not None and known.due == due

    def _failing(self, item: Item, group: Sequence[Assignment]) -> list[Assignment]:
        return [
            assignment
            for assignment in group
            if self._is_failed(assignment)
            and (
                self._has_heir(item, assignment, group)
                if assignment.slot == PRIMARY_SLOT
                else not self._consistency.is_consistent(item, assignment, group)
            )
        ]

    def _has_heir(self, item: Item, primary: Assignment, group: Sequence[Assignment]) -> bool:
        """Return whether another replica has caught up, as judged without the primary."""
        return any(
            other.member_id != primary.member_id
            and not self._is_failed(other)
            and self._consistency.is_consistent(item, other, (other,))
            for other in group
        )

    def _seconds_for(self, assignment: Assignment, now_monotonic_seconds: float) -> float:
        if assignment.slot != PRIMARY_SLOT:
            return self._after_seconds
        times, last = self._primaries_given_up.get(assignment.item_id, (0, 0.0))
        # A primary that served for longer than any wait ends the row.
        is_row = now_monotonic_seconds - last <= self._longest_seconds
        return self._after_seconds * 2.0**times if is_row else self._after_seconds

    @property
    def _longest_seconds(self) -> float:
        return self._after_seconds * 2.0**PRIMARY_DOUBLINGS_MAX

    def _forget_calm(self, now_monotonic_seconds: float) -> None:
        """Forget the rows that have ended, or whose items are gone."""
        self._primaries_given_up = {
            item_id: (times, last)
            for item_id, (times, last) in self._primaries_given_up.items()
            if now_monotonic_seconds - last <= 2 * self._longest_seconds
        }
