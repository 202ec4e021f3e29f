"""A worker in a process of its own, on a stream in which nothing happens: what leases cost by themselves.

python -m bench.leasing.worker_process '{"name": …, "leases": …, "place": {…}, "take_seconds": …, "renew_seconds": …}'
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
import structlog

from bench.leasing.places import Place, lease_keys, opened
from broadsheet.leases.position import Position
from broadsheet.leases.record_processor.processor import (
    AsyncRecordProcessorCheckpointer,
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from broadsheet.leases.worker.settings import WorkerSettings
from broadsheet.leases.worker.source import RecordBatch, SourceShard
from broadsheet.leases.worker.worker import LeaseWorker

READ_SECONDS = 30.0
"""Between empty batches of a shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The orders to a process."""

    name: str
    leases: int
    place: Place
    take_seconds: float | None = None
    renew_seconds: float | None = None

    def settings(self) -> WorkerSettings:
        """Return the worker's settings: the defaults, but for what is told."""
        return WorkerSettings(
            lease_seconds=self.place.lease_seconds,
            take_seconds=self.take_seconds,
            renew_seconds=self.renew_seconds,
        )


class QuietStream:
    """Implements `RecordSource`: shards that stay, without records."""

    def __init__(self, shards: int) -> None:
        self._shards = tuple(SourceShard(key=key) for key in lease_keys(shards))

    async def list_shards(self) -> tuple[SourceShard, ...]:
        """Return all."""
        return self._shards

    async def read_records(
        self, _shard_key: str, _position: Position
    ) -> AsyncGenerator[RecordBatch, None]:
        """Yield nothing, now and then."""
        while True:
            await asyncio.sleep(READ_SECONDS)
            yield RecordBatch()


class QuietProcessor:
    """Implements `AsyncRecordProcessor`: writes nothing."""

    async def initialize(self, _input: InitializeInput, /) -> None:
        """Begin."""

    async def process_records(
        self, _input: ProcessRecordsInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Do nothing."""

    async def lease_lost(self, _input: LeaseLostInput, /) -> None:
        """Do nothing."""

    async def shard_ended(
        self, _input: ShardEndedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Do nothing."""

    async def shutdown_requested(
        self, _input: ShutdownRequestedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Do nothing."""


async def run(options: WorkerOptions) -> None:
    """Work until killed."""
    async with opened(options.place) as store:
        worker = LeaseWorker(
            options.name,
            store=store,
            source=QuietStream(options.leases),
            new_processor=QuietProcessor,
            settings=options.settings(),
        )
        await worker.run()


def main() -> None:
    """Run the worker that the argument describes."""
    # Thousands of leases that change hands are no news here.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=WorkerOptions)))


if __name__ == "__main__":
    main()
