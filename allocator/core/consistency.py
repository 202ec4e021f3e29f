"""The application's word on when a replica may be relied upon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from allocator.core.model import Assignment, Item


class Consistency(Protocol):
    """Tells which replicas have caught up. Called off the event loop, on frozen values; must be pure."""

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        """Return whether a replica counts towards its item's replication.

        Args:
            item: The item.
            assignment: One of its assignments.
            all_assignments: All of its assignments, by member and slot.
        """
        ...
