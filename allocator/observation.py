"""What the allocator derives from the key space: nothing until somebody leads or leaves, then change by change.

A leadership begins with a look at everything; what was derived before it is forgotten with the one before. Only since
when replicas have failed is remembered, for no look tells that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from allocator.errors import KeyDecodeError, MemberKeyLostError
from allocator.key_space import KeySpace
from allocator.keys import ItemKey
from allocator.model import Assignment, ItemId, MemberId
from allocator.runtime.clock import Clock
from allocator.state.alloc_state import Consistency
from allocator.state.derived_state import Tracker, parts_of
from allocator.state.failed_replicas import FailedSince
from allocator.state.snapshot import Snapshot


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
        self._growing: Tracker | None = None
        """Has not seen everything yet."""
        self._failed: FailedSince | None = None
        key_space.observe(self._on_update)

    @property
    def tracker(self) -> Tracker:
        """What is derived; members that neither lead nor leave need not derive anything."""
        if self._tracker is None:
            self._tracker = self._new_tracker(look=True)
        return self._tracker

    async def prepare(self, clock: Clock) -> None:
        """Derive what `tracker` is asked for, in parts between which others have their turn.

        Of very many items it takes seconds, longer than a lease on a busy machine. Changes that come meanwhile are
        taken in as well.

        Args:
            clock: Tells since when replicas are seen to have failed.
        """
        while self._tracker is None:
            growing = self._growing = self._new_tracker(look=False)
            for part in parts_of(self._key_space):
                growing.apply(part)
                await asyncio.sleep(0)
            # Only now: a replica that has failed for a while must not seem to be gone before its key is looked at.
            while growing.observe_some_failures(clock.monotonic_seconds()):  # noqa: ASYNC110 - a turn for others
                await asyncio.sleep(0)
            if self._growing is growing:
                self._tracker, self._growing = growing, None

    def forget(self) -> None:
        """Look at everything anew when next asked."""
        self._tracker = self._growing = None

    def is_exiting(self) -> bool:
        """Return whether the local member is leaving, as far as the key space shows."""
        member = self._key_space.members.get(self._member_id)
        return member is not None and member.value.is_exiting()

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
        for tracker in (self._tracker, self._growing):
            if tracker is not None:
                tracker.apply(self._key_space.changes)

    def _new_tracker(self, *, look: bool) -> Tracker:
        tracker = Tracker(
            self._key_space,
            local_id=self._member_id,
            is_failed=self._is_failed,
            consistency=self._consistency,
            replace_failed_after_seconds=self._replace_failed_after_seconds,
            failed=self._failed,
            look=look,
        )
        self._failed = tracker.failed
        return tracker

    def _unreadable_items(self) -> list[ItemId]:
        found: list[ItemId] = []
        for key in self._key_space.undecodable:
            with suppress(KeyDecodeError):
                parsed = self._key_space.keys.parse(key)
                if isinstance(parsed, ItemKey):
                    found.append(parsed.item_id)
        return found
