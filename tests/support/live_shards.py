"""Live shards without a member around them: specs and assignments are written to etcd by the test itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client import CollectorRegistry

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.ops import Delete, Put
from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import ShardStoppedError
from broadsheet.consumer.registry.key_space import ShardDecoder
from broadsheet.consumer.shard.crash_loop import CrashHistory
from broadsheet.consumer.shard.environment import ShardConfig, ShardEnvironment
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.shard.metrics import ShardMetrics
from broadsheet.consumer.shard.rollback.records import RollbackRecords
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec
from tests.support.eventually import eventually

MEMBER = MemberId("zone-a", "member-a")
SOURCE = "test/in"
SECOND_SOURCE = "test/in2"
OUTPUT = "test/out"
SHARD = "shard-1"
JOURNALS = (SOURCE, SECOND_SOURCE, OUTPUT)

Counts = dict[str, int]


class CountsStore(JsonFileStore[Counts]):
    """The file, which tells whether its shard has given it up."""

    destroyed = False

    def destroy(self) -> None:
        """Close the file."""
        super().destroy()
        self.destroyed = True


@dataclass
class Counting:
    """Counts messages by key in a JSON file, and echoes each; tells what happened to it."""

    directory: Path
    output: str = ""
    fail: Callable[[str], None] = lambda key: None
    """Called with each key, and with the name of each other callback; may raise or block."""
    began: int = 0
    finished: list[object] = field(default_factory=list)
    stores: list[CountsStore] = field(default_factory=list)

    def new_store(self, shard: Shard) -> JsonFileStore[Counts]:
        """Open the file."""
        self.fail("new_store")
        self.stores.append(
            CountsStore(shard, self.directory, initial={}, state_type=dict[str, int])
        )
        return self.stores[-1]

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        self.fail("message_type")
        return JsonType()

    def consume_message(
        self, shard: Shard, store: JsonFileStore[Counts], envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count and echo."""
        del shard
        key = envelope.message["key"]
        self.fail(key)
        store.state[key] = store.state.get(key, 0) + 1
        if self.output:
            echo = {"key": key, "n": envelope.message["n"]}
            publisher.publish_uncommitted(MappedJournal(self.output, NDJSON), echo, JsonType())

    def finalize_txn(
        self, shard: Shard, store: JsonFileStore[Counts], publisher: Publisher
    ) -> None:
        """Nothing is buffered."""
        del shard, store, publisher
        self.fail("finalize_txn")

    def begin_txn(self, shard: Shard, store: JsonFileStore[Counts]) -> None:
        """Count transactions."""
        del shard, store
        self.fail("begin_txn")
        self.began += 1

    def finished_txn(self, shard: Shard, store: JsonFileStore[Counts], commit: object) -> None:
        """Keep the commit."""
        del shard, store
        self.finished.append(commit)


async def has_read(live: LiveShard, journal: str, end: int) -> None:
    """Wait until the shard has read a source so far, and sent what comes of it, in whatever attempt."""

    async def is_read() -> bool:
        try:
            with live.acquire() as reference:
                await reference.wait_ready()
                await reference.wait_for_offsets({journal: end})
        except ShardStoppedError:
            return False  # Between two attempts.
        return True

    await eventually(is_read)


class ShardHost:
    """Runs live shards as a member would, on assignments that the test writes."""

    def __init__(
        self,
        etcd: EtcdClient,
        key_space: KeySpace,
        journals: JournalClient,
        group: TaskGroup,
        state_directory: Path,
    ) -> None:
        self.etcd = etcd
        self.clock: Clock = SystemClock()
        """Of the shards started from now on."""
        self.key_space = key_space
        self.registry = CollectorRegistry()
        self._journals = journals
        self._group = group
        self._shards: list[LiveShard] = []
        self._blind: set[LiveShard] = set()
        self._state_directory = state_directory
        key_space.observe(ObserverStage.ACT, self._tell_shards)

    def stop_soon(
        self, shard: LiveShard, *, grace_seconds: float | None = None
    ) -> asyncio.Task[None]:
        """Stop a shard in a task of its own."""
        return self._group.start_soon(shard.stop(grace_seconds=grace_seconds), name="stop")

    async def assign(self, spec: ShardSpec, *, slot: int = 0) -> None:
        """Write the spec and an assignment of it to us, and wait until the key space shows them."""
        keys = self.key_space.keys
        item = ItemId(spec.id)
        result = await self.etcd.txn(
            (),
            (
                Put(keys.item(item), spec.SerializeToString()),
                Put(keys.assignment(item, MEMBER, slot), b""),
            ),
        )
        await self.key_space.wait_for_revision(result.header.revision)

    async def change_spec(self, spec: ShardSpec) -> None:
        """Write a newer spec."""
        key = self.key_space.keys.item(ItemId(spec.id))
        await self.key_space.wait_for_revision(await self.etcd.put(key, spec.SerializeToString()))

    async def promote(self, shard_id: str, *, slot: int) -> None:
        """Move our assignment from `slot` to slot 0, as the allocator does: one transaction, the same value."""
        keys, item = self.key_space.keys, ItemId(shard_id)
        old = keys.assignment(item, MEMBER, slot)
        kv = self.key_space.kv_or_none(old)
        assert kv is not None
        result = await self.etcd.txn(
            (), (Delete(old), Put(keys.assignment(item, MEMBER, 0), kv.value))
        )
        await self.key_space.wait_for_revision(result.header.revision)

    async def unassign(self, shard_id: str) -> None:
        """Delete our slot-0 assignment."""
        key = self.key_space.keys.assignment(ItemId(shard_id), MEMBER, 0)
        await self.etcd.delete(key)

    def environment(self, application: Any, config: ShardConfig | None = None) -> ShardEnvironment:
        """Return the services and limits of a shard's member."""
        config = config or ShardConfig(restart_delay_seconds=0.05, stop_grace_seconds=2)
        return ShardEnvironment(
            application=application,
            journals=self._journals,
            etcd=self.etcd,
            keys=self.key_space.keys,
            key_space=self.key_space,
            clock=self.clock,
            metrics=ShardMetrics(self.registry if not self._shards else CollectorRegistry()),
            deaths=self.death_records(config),
            rollbacks=RollbackRecords(self.etcd, AuxiliaryKeys(self.key_space.keys.root)),
            state_directory=self._state_directory,
            config=config,
        )

    def start(
        self, spec: ShardSpec, application: Any, *, slot: int = 0, config: ShardConfig | None = None
    ) -> LiveShard:
        """Start a live shard for an assignment that was written."""
        environment = self.environment(application, config)
        assignment = self.key_space.assignments[ItemId(spec.id), MEMBER, slot]
        shard = LiveShard(spec, assignment, environment)
        self._shards.append(shard)
        shard.start(self._group)
        return shard

    def death_records(self, config: ShardConfig) -> CrashHistory:
        """Return the records of primaries that died young."""
        return CrashHistory(
            self.etcd,
            AuxiliaryKeys(self.key_space.keys.root),
            clock=SystemClock(),
            deaths_max=config.young_deaths_max,
            hold_seconds=config.hold_seconds,
        )

    def blind(self, shard: LiveShard) -> None:
        """Let a shard see no change of the key space any more, like a process that sleeps."""
        self._blind.add(shard)

    def status(self, shard_id: str, *, slot: int = 0) -> ReplicaStatus:
        """Return what our replica says of itself."""
        value = self.key_space.assignments[ItemId(shard_id), MEMBER, slot].value
        assert isinstance(value, ReplicaStatus)
        return value

    def says(self, shard_id: str, code: int, *texts: str, slot: int = 0) -> bool:
        """Return whether our replica has this code, and errors that hold each of `texts`."""
        status = self.status(shard_id, slot=slot)
        errors = "\n".join(status.errors)
        return status.code == code and all(text in errors for text in texts)

    async def stop(self) -> None:
        """Stop every shard."""
        for shard in self._shards:
            await shard.stop()

    def _tell_shards(self) -> None:
        for shard in self._shards:
            item = ItemId(shard.id)
            held: list[Assignment] = [
                a for a in self.key_space.assignments_of(item) if a.member_id == MEMBER
            ]
            listed = self.key_space.items.get(item)
            if shard not in self._blind and held and listed is not None:
                shard.on_assignment_changed(listed.value.spec, held[0])


@asynccontextmanager
async def running_host(
    etcd: EtcdClient, root: str, journals: JournalClient
) -> AsyncIterator[ShardHost]:
    """Watch the key space and run shards; stop them in the end."""
    key_space = KeySpace(
        etcd, Keys(root), ShardDecoder(hot_standbys_max=3), apply_delay_seconds=0.0
    )
    await key_space.load()
    with TemporaryDirectory(prefix="state-") as directory:
        async with TaskGroup() as group:
            group.start_soon(key_space.watch(), name="watch")
            host = ShardHost(etcd, key_space, journals, group, Path(directory))
            try:
                yield host
            finally:
                await host.stop()
                group.stop()


def spec_of(
    shard_id: str, *sources: str, max_seconds: float = 0.5, min_seconds: float = 0.0
) -> ShardSpec:
    """Return a spec with short transactions."""
    spec = ShardSpec(
        id=shard_id, sources=[ShardSpec.Source(journal=name) for name in sorted(sources)]
    )
    spec.max_txn_duration.FromMilliseconds(int(max_seconds * 1000))
    spec.min_txn_duration.FromMilliseconds(int(min_seconds * 1000))
    return spec


async def read_through(shard: LiveShard, **offsets: int) -> None:
    """Wait until the shard has read `SOURCE` (`source`) and `SECOND_SOURCE` (`second`) so far."""
    names = {"source": SOURCE, "second": SECOND_SOURCE}
    wanted = {names[key]: offset for key, offset in offsets.items()}

    async def has_read() -> bool:
        with shard.acquire() as reference:
            await reference.wait_ready()
            await reference.wait_for_offsets(wanted)
        return True

    async def try_read() -> bool:
        try:
            return await has_read()
        except ShardStoppedError:
            return False  # Between two attempts.

    await eventually(try_read)


async def counts(shard: LiveShard) -> dict[str, int]:
    """Return the shard's committed counts."""
    with shard.acquire() as reference:
        await reference.wait_ready()
        return await reference.call(JsonFileStore[dict[str, int]].committed_state)
