"""The answer of a record store to a writer that came too late."""

from __future__ import annotations

from consumer.errors import LeasingError
from consumer.leasing.core.record import Versioned


class RecordConflictError(LeasingError):
    """A compare-and-swap found another record than expected; `current` is the one that is there, None if it is gone."""

    def __init__(self, key: str, current: Versioned | None) -> None:
        now = "is gone" if current is None else f"is at version {current.version}"
        super().__init__(f"lease {key} was changed by another writer: it {now}")
        self.key = key
        self.current = current
