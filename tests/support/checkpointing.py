"""A lease in memory with a checkpointer over it, of either kind, behind one face."""

from __future__ import annotations

from dataclasses import dataclass

from broadsheet.leases import rules
from broadsheet.leases.errors import ShutdownError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.record_processor.checkpointer import (
    Change,
    LeaseCheckpointer,
    LeasePreparedCheckpointer,
    SyncLeaseCheckpointer,
    SyncPreparedCheckpointer,
)
from broadsheet.leases.record_processor.processor import Place, ProcessorRecord
from broadsheet.leases.record_processor.shard_progress import ShardProgress


def record_at(seq: int | str, sub: int = 0) -> ProcessorRecord:
    """A record somewhere."""
    return ProcessorRecord(position=Position(str(seq), sub), binary_data=b"x")


@dataclass
class Prepared:
    """A prepared checkpoint of either kind."""

    inner: LeasePreparedCheckpointer | SyncPreparedCheckpointer

    @property
    def pending(self) -> Position:
        """What it commits."""
        return self.inner.pending

    async def checkpoint(self) -> None:
        """Commit it."""
        if isinstance(self.inner, LeasePreparedCheckpointer):
            await self.inner.checkpoint()
        else:
            self.inner.checkpoint()


class CheckpointedShard:
    """One assignment; `record` is what the store has."""

    def __init__(self, stored: str | None, *, blocking: bool, key: str = "a") -> None:
        checkpoint = None if stored is None else Position(stored)
        self.record = LeaseRecord(key=key, owner="w1", epoch=1, checkpoint=checkpoint)
        self.writes = 0
        self.failure: Exception | None = None
        """What the next write raises."""
        self.progress = ShardProgress(checkpoint)
        self._sync = SyncLeaseCheckpointer(self.progress, self._write) if blocking else None
        self._async = LeaseCheckpointer(self.progress, self._write_async)

    def deliver(self, *seqs: int | str) -> None:
        """Hand records to the processor."""
        self.progress.deliver(record_at(seq) for seq in seqs)

    async def checkpoint(self, at: Place | None = None, sub: int | None = None) -> None:
        """Checkpoint with the kind under test."""
        if self._sync is None:
            await self._async.checkpoint(at, sub)
        else:
            self._sync.checkpoint(at, sub)

    async def prepare(
        self, at: Place | None = None, sub: int | None = None, *, state: bytes | None = None
    ) -> Prepared:
        """Prepare with the kind under test."""
        if self._sync is None:
            return Prepared(await self._async.prepare_checkpoint(at, sub, application_state=state))
        return Prepared(self._sync.prepare_checkpoint(at, sub, application_state=state))

    def lose(self) -> None:
        """Let every write find the lease lost."""
        self.failure = ShutdownError("lease a is not held any more")

    @property
    def seen(self) -> tuple[LeaseRecord, object]:
        """All that a refused call must leave as it is."""
        return self.record, self.progress.bounds

    def _write(self, change: Change) -> LeaseRecord:
        if self.failure is not None:
            raise self.failure
        self.writes += 1
        self.record = rules.update(self.record, change)
        return self.record

    async def _write_async(self, change: Change) -> LeaseRecord:
        return self._write(change)
