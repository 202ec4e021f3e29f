"""What the allocator derives from the key space: nothing until somebody leads or leaves, then change by change.

A leadership begins with a look at everything; what was derived before it is forgotten with the one before. Only since
when replicas have failed is remembered, for no look tells that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from allocator.core.consistency import Consistency
from allocator.core.failed_replicas import FailedSince
from allocator.core.keys import ItemKey
from allocator.core.model import Assignment, ItemId, MemberId
from allocator.core.snapshot import Snapshot
from allocator.core.tracker import Tracker
from allocator.errors import KeyDecodeError, MemberKeyLostError
from allocator.key_space import KeySpace


class Observation:
    """Keeps a tracker of the key space while one is asked for."""

    def __init__(
        self,
        key_space: KeySpace,
        *,
        member_id: MemberId,
        consistency: Consistency,
        is_failed: Callable[[Assignment], bool],
        replace_failed_after_seconds: float,
    ) -> None:
        """Follow a key space.

        Args:
            key_space: Loaded before anything is asked.
            member_id: The local member.
            consistency: Tells which replicas may be relied upon.
            is_failed: Tells which replicas have failed.
            replace_failed_after_seconds: How long a standby may stay failed before it is placed elsewhere.
        """
        self._key_space = key_space
        self._member_id = member_id
        self._consistency = consistency
        self._is_failed = is_failed
        self._replace_failed_after_seconds = replace_failed_after_seconds
        self._tracker: Tracker | None = None
        self._failed: FailedSince | None = None
        key_space.observe(self._on_update)

    @property
    def tracker(self) -> Tracker:
        """What is derived; members that neither lead nor leave need not derive anything."""
        if self._tracker is None:
            self._tracker = Tracker(
                self._key_space,
                local_id=self._member_id,
                is_failed=self._is_failed,
                consistency=self._consistency,
                replace_failed_after_seconds=self._replace_failed_after_seconds,
                failed=self._failed,
            )
            self._failed = self._tracker.failed
        return self._tracker

    def forget(self) -> None:
        """Look at everything anew when next asked."""
        self._tracker = None

    def is_drained(self) -> bool:
        """Return whether the local member is exiting and holds nothing.

        Raises:
            MemberKeyLostError: its key is gone.
        """
        member = self._key_space.members.get(self._member_id)
        if member is None:
            key = self._key_space.keys.member(self._member_id)
            if self._key_space.kv_or_none(key) is None:
                raise MemberKeyLostError(key.decode())
            return False
        return member.value.is_exiting() and not self.tracker.holds_items(self._member_id)

    def whole(self) -> Snapshot:
        """Return everything, frozen."""
        return self.tracker.whole(
            revision=self._key_space.header.revision, unreadable_items=self._unreadable_items()
        )

    def partial(self, item_ids: frozenset[ItemId]) -> Snapshot:
        """Return these items and all that is global, frozen."""
        return self.tracker.partial(
            item_ids,
            revision=self._key_space.header.revision,
            unreadable_items=self._unreadable_items(),
        )

    def _on_update(self) -> None:
        if self._tracker is not None:
            self._tracker.apply(self._key_space.changes)

    def _unreadable_items(self) -> list[ItemId]:
        found: list[ItemId] = []
        for key in self._key_space.undecodable:
            with suppress(KeyDecodeError):
                parsed = self._key_space.keys.parse(key)
                if isinstance(parsed, ItemKey):
                    found.append(parsed.item_id)
        return found
