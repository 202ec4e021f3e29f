"""How far one assignment of a shard has come, between the worker that delivers and the processor that checkpoints.

Each of the two has fields of its own, so that a processor may checkpoint on a thread of its own while the worker
delivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from consumer.leasing.position import Position
from consumer.leasing.record_processor.core import delivery
from consumer.leasing.record_processor.core.delivery import Bounds
from consumer.leasing.record_processor.records import ProcessorRecord

RECENT_RECORDS: Final = 10_000
"""Of a shard: those of a batch, and some more; 1 MB."""


class ShardProgress:
    """The bounds within which a processor may checkpoint."""

    def __init__(self, stored: Position | None) -> None:
        """Begin an assignment.

        Args:
            stored: The lease's checkpoint.
        """
        self._delivered = delivery.at_start(stored)
        self._committed = stored
        self._recent: deque[str] = deque(maxlen=RECENT_RECORDS)
        """Sequence numbers of what was delivered last."""

    @property
    def bounds(self) -> Bounds:
        """What may be checkpointed now."""
        delivered = self._delivered
        return Bounds(committed=self._committed, delivered=delivered.delivered, end=delivered.end)

    @property
    def is_ended(self) -> bool:
        """Whether the end of the shard is committed."""
        return self._committed is not None and self._committed.is_end

    def deliver(self, records: Iterable[ProcessorRecord]) -> tuple[ProcessorRecord, ...]:
        """Return the records that were not delivered yet, which counts as their delivery."""
        new = []
        for record in records:
            if delivery.is_new(self._delivered, record.position):
                self._delivered = delivery.deliver(self._delivered, record.position)
                new.append(record)
                self._recent.append(record.position.seq)
        return tuple(new)

    def was_delivered(self, position: Position) -> bool:
        """Return whether a position is that of one of the last records, or a name, which is of any shard."""
        return position.is_name or position.seq in self._recent

    def reach_end(self) -> None:
        """Nothing more will be delivered. Idempotent."""
        self._delivered = delivery.reach_end(self._delivered)

    def commit(self, written: Position) -> None:
        """A checkpoint is stored."""
        self._committed = written
