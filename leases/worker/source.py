"""The record-source port of workers: a stream of shards that may end and have children.

`broadsheet.testing.leases.source_suite` tests any implementation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange
from broadsheet.leases.record_processor.processor import ProcessorRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShard:
    """A shard of a stream."""

    key: str
    """Its name, unique among all that the worker processes; the key of its lease."""
    parents: tuple[str, ...] = ()
    """The shards that it was split or merged from, including those not listed any more."""
    hash_range: HashRange | None = None
    """The hash range that it covers, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """A batch of records in the order of their positions; empty if there was nothing to read for a while."""

    records: tuple[ProcessorRecord, ...] = ()
    millis_behind_latest: int | None = None
    """Time by which the end of the batch is behind the end of the shard; None: unknown."""


class RecordSource(Protocol):
    """A stream, or several. Both methods may raise `LeasingError`s that are retryable, and are then called again."""

    async def list_shards(self) -> tuple[SourceShard, ...]:
        """Return the shards that have records, open or ended, older ones first.

        Once a shard's records were read to their end, its children are among them.
        """
        ...

    def read_records(self, shard_key: str, position: Position) -> AsyncGenerator[RecordBatch, None]:
        """Yield a shard's records from a position on, then new ones as they arrive.

        Ends where the shard does. An open shard without new records yields an empty batch now and then.

        Args:
            shard_key: The shard.
            position: Of a record: begin with that record, or with the aggregate that it is in; what was
                processed is left out by the worker. A name: begin there.
        """
        ...
