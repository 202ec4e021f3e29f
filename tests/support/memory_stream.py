"""A stream of shards in memory: split, merged and closed as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from broadsheet.leases.position import AT_TIMESTAMP, LATEST, Position
from broadsheet.leases.record_processor.processor import ProcessorRecord
from broadsheet.leases.worker.source import RecordBatch, SourceShard

POLL_SECONDS = 1.0
"""Virtual, or not waited for: who reads is woken by what is put."""


@dataclass(slots=True)
class _Shard:
    listed: SourceShard
    records: list[ProcessorRecord] = field(default_factory=list)
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class MemoryStream:
    """Implements `RecordSource`. Numbers of records grow over the whole stream."""

    batch_records: int = 10
    poll_seconds: float = POLL_SECONDS
    number: int = 0
    failures: list[Exception] = field(default_factory=list)
    """What the next reads raise."""
    _shards: dict[str, _Shard] = field(default_factory=dict)

    def add(self, *keys: str, parents: tuple[str, ...] = ()) -> None:
        """Open shards."""
        for key in keys:
            self._shards[key] = _Shard(SourceShard(key=key, parents=parents))

    def put(self, key: str, *data: bytes) -> tuple[Position, ...]:
        """Put one record, or several as an aggregate."""
        self.number += 1
        position = [Position(str(self.number), sub) for sub in range(len(data))]
        shard = self._shards[key]
        assert not shard.closed
        shard.records += [
            ProcessorRecord(position=at, binary_data=each, partition_key=key)
            for at, each in zip(position, data, strict=True)
        ]
        shard.changed.set()
        return tuple(position)

    def replace(self, parents: tuple[str, ...], children: tuple[str, ...]) -> None:
        """Close shards and open their children: one into two is a split, two into one a merge."""
        self.add(*children, parents=parents)
        for parent in parents:
            self.close(parent)

    def close(self, key: str) -> None:
        """Let nothing more come of a shard."""
        self._shards[key].closed = True
        self._shards[key].changed.set()

    def forget(self, key: str) -> None:
        """Remove a shard from the listing: its records are too old."""
        del self._shards[key]

    def positions(self, key: str) -> list[Position]:
        """Return the positions of a shard's records."""
        return [record.position for record in self._shards[key].records]

    async def list_shards(self) -> tuple[SourceShard, ...]:
        """Return all shards."""
        return tuple(shard.listed for shard in self._shards.values())

    async def read_records(
        self, shard_key: str, position: Position
    ) -> AsyncGenerator[RecordBatch, None]:
        """Yield from the first record of the position's number on."""
        if self.failures:
            raise self.failures.pop(0)
        shard = self._shards[shard_key]
        at = self._index(shard, position)
        while True:
            if at < len(shard.records):
                batch = tuple(shard.records[at : at + self.batch_records])
                at += len(batch)
                yield RecordBatch(records=batch)
            elif shard.closed:
                return
            else:
                await self._wait(shard)
                yield RecordBatch(millis_behind_latest=0)

    def _index(self, shard: _Shard, position: Position) -> int:
        if position.seq in (LATEST, AT_TIMESTAMP):
            return len(shard.records)
        if position.is_name:
            return len(shard.records) if position.is_end else 0
        first = Position(position.seq)
        return sum(record.position < first for record in shard.records)

    async def _wait(self, shard: _Shard) -> None:
        shard.changed.clear()
        try:
            async with asyncio.timeout(self.poll_seconds):
                await shard.changed.wait()
        except TimeoutError:
            return
