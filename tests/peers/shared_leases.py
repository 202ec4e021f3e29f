"""A stream that workers of ours and of another system share by the leases of one table, each in its own process."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Final

import boto3

from broadsheet.embedded.child_process import ChildProcess
from broadsheet.leases.record_processor.processor import (
    AsyncRecordProcessorCheckpointer,
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from broadsheet.leases.stores.dynamodb.layout import Layout
from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
from broadsheet.leases.worker.kinesis_source import KinesisRecordSource
from broadsheet.leases.worker.settings import StealWay, WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.kinesis_streams import HASH_END, TestStream
from tests.support.moto import aws_settings

LEASE_SECONDS: Final = 10.0
SHARDS: Final = 4
WAIT_SECONDS: Final = 240.0
"""Bound of each step: several leases' lengths, and the start of a JVM on a busy machine."""
_ATTRIBUTES: Final = {
    "leaseKey": ("leaseKey", "leaseOwner", "checkpoint"),
    "ShardID": ("ShardID", "AssignedTo", "Checkpoint"),
}
"""Names of a shard, its owner and its checkpoint, by the layout's key."""
_PUBLISH_SECONDS: Final = 0.05
_SAID: Final = re.compile(r"^(began|record|requested|refused|stopped) (\S+) ?(.*)$", re.MULTILINE)


@dataclass(slots=True)
class Theirs:
    """A worker of the other system."""

    name: str
    log_file: Path
    child: ChildProcess

    def said(self, what: str) -> list[tuple[str, str]]:
        """Return what it printed of a kind: shard, and the rest."""
        log = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return [(shard, rest) for kind, shard, rest in _SAID.findall(log) if kind == what]

    @property
    def numbers(self) -> list[int]:
        """The messages that it processed."""
        return [json.loads(rest)["n"] for _, rest in self.said("record")]

    async def processes(self) -> None:
        """Wait until it has processed a message for each shard."""
        await eventually(lambda: len(self.numbers) >= SHARDS, timeout_seconds=WAIT_SECONDS)

    async def stop(self) -> None:
        """End it gracefully."""
        self.child.send_signal(signal.SIGTERM)
        await eventually(
            lambda: self.child.exit_code is not None,
            timeout_seconds=WAIT_SECONDS,
            message=f"{self.name} ends",
        )


class Collector:
    """Implements `AsyncRecordProcessor`: notes each message, and checkpoints each batch."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    async def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Nothing to prepare."""

    async def process_records(
        self, process_records_input: ProcessRecordsInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Note, then checkpoint."""
        for each in process_records_input.records:
            self._numbers.append(json.loads(each.binary_data)["n"])
        await process_records_input.checkpointer.checkpoint()

    async def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Nothing to undo."""

    async def shard_ended(
        self, shard_ended_input: ShardEndedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Checkpoint the end."""
        await shard_ended_input.checkpointer.checkpoint()

    async def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Checkpoint before the lease is passed on."""
        await shutdown_requested_input.checkpointer.checkpoint()


@dataclass(slots=True)
class SharedLeases:
    """One stream, one table, and who works there."""

    endpoint: str
    directory: Path
    stream: TestStream
    layout: Layout
    command: Sequence[str]
    """Of a worker of the other system."""
    steal: StealWay
    published: int = 0
    numbers: list[int] = field(default_factory=list)
    """What our worker processed."""
    theirs: list[Theirs] = field(default_factory=list)
    table: str = "leases"
    ending: bool = False
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def start_theirs(self) -> Theirs:
        """Start a worker of the other system, which may not outlive the test."""
        name = f"theirs-{len(self.theirs)}"
        log_file = self.directory / f"{name}.log"
        places = [self.endpoint, self.stream.name, self.table, name, str(int(LEASE_SECONDS * 1000))]
        child = ChildProcess([*self.command, *places], directory=self.directory, log_file=log_file)
        self._stack.callback(child.kill)
        started = Theirs(name, log_file, child)
        self.theirs.append(started)
        return started

    def our_worker(self) -> LeaseWorker:
        """Return a worker of ours, which is not running yet."""
        client: Any = boto3.client("dynamodb", **aws_settings(self.endpoint))
        self._stack.callback(client.close)
        return LeaseWorker(
            "ours",
            store=DynamoRecordStore(client, self.table, layout=self.layout),
            source=KinesisRecordSource(self.stream.name, open_client=self.stream.open_client),
            new_processor=lambda: Collector(self.numbers),
            settings=WorkerSettings(
                lease_seconds=LEASE_SECONDS,
                steal=self.steal,
                sync_seconds=2.0,
                parent_poll_seconds=1.0,
                graceful_seconds=10.0,
            ),
        )

    def owners(self) -> dict[str, str]:
        """Return who has each unfinished lease, as the table says; "": it has no owner."""
        client: Any = boto3.client("dynamodb", **aws_settings(self.endpoint))
        with closing(client):
            if self.table not in client.list_tables()["TableNames"]:
                return {}
            rows = client.scan(TableName=self.table, ConsistentRead=True)["Items"]
        key, owner, checkpoint = _ATTRIBUTES[self.layout.key_name]
        text = {"S": ""}
        return {
            row[key]["S"]: row.get(owner, text)["S"]
            for row in rows
            if row[key]["S"].startswith("shardId-")
            and row.get(checkpoint, text)["S"] != "SHARD_END"
        }

    async def publish(self) -> None:
        """Publish numbered messages to all shards, until it is told to end."""
        random = Random(1)
        while not self.ending:
            await self.stream.put("k", [self.published], hash_key=random.randrange(HASH_END))
            self.published += 1
            await asyncio.sleep(_PUBLISH_SECONDS)

    async def owned(self, name: str, at_least: int, *, alone: bool = False) -> None:
        """Wait until a worker has so many leases, or all."""

        def has() -> bool:
            owners = self.owners()
            assert list(owners.values()).count(name) >= at_least, owners
            assert not alone or set(owners.values()) == {name}, owners
            return True

        await eventually(has, timeout_seconds=WAIT_SECONDS, interval_seconds=0.5)

    async def we_process(self) -> None:
        """Wait until our worker has processed further messages."""
        before = len(self.numbers)
        await eventually(lambda: len(self.numbers) >= before + SHARDS, timeout_seconds=WAIT_SECONDS)

    async def everything_was_seen(self) -> None:
        """Publish no more, and wait until each message was processed by somebody."""
        self.ending = True

        def seen() -> bool:
            assert self.missing() == set()
            return True

        await eventually(seen, timeout_seconds=WAIT_SECONDS, interval_seconds=0.5)

    def told(self) -> str:
        """Return who processed how many, and how many of them were processed by two, or twice."""
        numbers = {"ours": self.numbers} | {each.name: each.numbers for each in self.theirs}
        counts = [f"{name} {len(found)}" for name, found in numbers.items()]
        for name, found in numbers.items():
            counts.append(f"{name} twice {len(found) - len(set(found))}")
        for (name, found), (other, seen) in combinations(numbers.items(), 2):
            counts.append(f"{name} and {other} {len(set(found) & set(seen))}")
        return ", ".join(counts)

    def missing(self) -> set[int]:
        """Return the messages that no worker processed."""
        done = set(self.numbers).union(*(each.numbers for each in self.theirs))
        return set(range(self.published)) - done


@asynccontextmanager
async def shared_leases(
    endpoint: str, directory: Path, *, layout: Layout, command: Sequence[str], steal: StealWay
) -> AsyncIterator[SharedLeases]:
    """Create the stream, and publish to it all the time."""
    stream = await TestStream(endpoint).create(SHARDS)
    shared = SharedLeases(endpoint, directory, stream, layout, command, steal)
    async with shared._stack, TaskGroup() as group:  # noqa: SLF001 - of this module
        group.start_soon(shared.publish(), name="publish")
        yield shared
        shared.ending = True
