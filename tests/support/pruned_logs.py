"""Shards with recovery logs in small fragments, and their hints in etcd, without members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import Put
from broadsheet.consumer.recoverylog.hints import (
    backup_hints_keys,
    encode_hints,
    primary_hints_key,
    recovery_log_of,
)
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.journals.client import JournalClient
from broadsheet.testing.stores.recorded_log import MirroredFiles
from broadsheet.wire.journal_pb2 import ApplyRequest, Fragment
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.broker import journal_spec
from tests.support.live_logs import TwinRecorder, files_in, recording, recover

FRAGMENT_BYTES = 4096
"""Length at which the logs' fragments are closed."""
CHANGES_AN_APPEND = 4


class ShiftedClock:
    """The machine's time, moved ahead by the test."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def monotonic_seconds(self) -> float:
        """Return the machine's, seconds."""
        return time.monotonic()

    def wall_seconds(self) -> float:
        """Return the machine's and what the test added, seconds."""
        return time.time() + self.ahead_seconds


async def create_small_log(journals: JournalClient, name: str) -> None:
    """Create a recovery log whose fragments are closed soon."""
    labels = label_set((CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG))
    spec = journal_spec(name, length=FRAGMENT_BYTES, labels=labels)
    await journals.apply([ApplyRequest.Change(upsert=spec)])


async def fragments_of(journals: JournalClient, log: str) -> list[Fragment]:
    """Return a journal's fragments."""
    return [listed.spec for listed in await journals.list_fragments(log)]


@dataclass
class RecordedShard:
    """A shard whose recorders the test runs itself. Its hints go to etcd as a member's would."""

    etcd: EtcdClient
    journals: JournalClient
    root: str
    directory: Path
    shard_id: str = "shard-a"
    backups: int = 2
    files: MirroredFiles = field(default_factory=MirroredFiles)
    hints: list[FSMHints] = field(default_factory=list)
    """Primary, then backups, newest first."""
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        self.spec = ShardSpec(
            id=self.shard_id,
            recovery_log_prefix="logs",
            hint_prefix=f"/hints{self.root}",
            hint_backups=self.backups,
        )
        self.log = recovery_log_of(self.spec)
        self._stack = AsyncExitStack()
        self._lives = 0

    async def create(self) -> None:
        """Write the spec, and create the log."""
        key = Keys(self.root).item(ItemId(self.shard_id))
        await self.etcd.put(key, self.spec.SerializeToString())
        await create_small_log(self.journals, self.log)

    async def fail_over(self) -> None:
        """Recover from the primary hints, as the next recorder; rotate the hints."""
        await self._stack.aclose()
        self._lives += 1
        picked = self.hints[0] if self.hints else FSMHints(log=self.log)
        directory = self.directory / f"{self.shard_id}-{self._lives}"
        recovered = await recover(self.journals, picked, directory, author=self._lives)
        contents = files_in(directory)
        assert {path: contents.get(path) for path in self.files.paths()} == self.contents
        self.recorder = await self._stack.enter_async_context(
            recording(self.journals, recovered, log=self.log)
        )
        self._twin = TwinRecorder(self.recorder, self.files, seed=self._lives)
        base = recovered.fsm.hints(self.log)
        self.hints[1:] = [base, *self.hints[1:]][: self.backups] if base.live_nodes else []

    @property
    def contents(self) -> dict[str, bytes]:
        """The files as they are now."""
        return {path: self.files.content_of(path) for path in self.files.paths()}

    async def work(self, changes: int) -> None:
        """Record so many changes, a few to an append."""
        assert self.recorder is not None
        for begin in range(0, changes, CHANGES_AN_APPEND):
            await asyncio.to_thread(self._twin.record, min(CHANGES_AN_APPEND, changes - begin))
            await asyncio.wrap_future(self.recorder.barrier())

    async def store_hints(self) -> None:
        """Write hints of now, and backups, to etcd."""
        assert self.recorder is not None
        primary, covered = self.recorder.snapshot_hints()
        await asyncio.wrap_future(covered)
        self.hints[:1] = [primary]
        keys = [primary_hints_key(self.spec), *backup_hints_keys(self.spec)]
        puts = [Put(key, encode_hints(each)) for key, each in zip(keys, self.hints, strict=False)]
        await self.etcd.txn((), tuple(puts))

    async def live(self, *, lives: int, changes: int = 60) -> None:
        """Create the shard, and have it recorded by one process after the other."""
        await self.create()
        for _ in range(lives):
            await self.fail_over()
            await self.work(changes)
            await self.store_hints()

    async def check(self) -> None:
        """Recover from each of the hints, and find the files of now."""
        for number, each in enumerate(self.hints):
            directory = self.directory / f"check-{self.shard_id}-{number}"
            await recover(self.journals, each, directory)
            contents = files_in(directory)
            assert {path: contents.get(path) for path in self.files.paths()} == self.contents

    async def close(self) -> None:
        """End the recorder."""
        await self._stack.aclose()


def span_bytes(fragments: Sequence[Fragment]) -> int:
    """Return how long fragments are together."""
    return sum(each.end - each.begin for each in fragments)
