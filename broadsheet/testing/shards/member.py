"""A simulated member: a mirror of etcd and real shards, in a process that can pause or die between two steps.

A member's other duties are tested by the allocator's own simulator: here the cluster writes assignments and ends
leases.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import Assignment, MemberId
from broadsheet.allocator.ops import LeaseId
from broadsheet.consumer.application import Application
from broadsheet.consumer.errors import ShardStoppedError
from broadsheet.consumer.registry.key_space import ShardDecoder
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.shard.crash_loop import CrashHistory
from broadsheet.consumer.shard.environment import ParentCaller, ShardConfig, ShardEnvironment
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.shard.metrics import ShardMetrics
from broadsheet.consumer.shard.rollback.records import RollbackRecords
from broadsheet.consumer.shard.worker import ShardWorker
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.cluster import SharedParts, SimulatedProcess
from broadsheet.testing.allocator.kernel.network import FaultyEtcd, Link
from broadsheet.testing.allocator.kernel.virtual_loop import Process
from broadsheet.testing.shards.broker import MemoryBroker
from broadsheet.testing.shards.channels import CHUNK_BYTES, SimulatedChannels
from broadsheet.wire.shard_pb2 import ShardSpec

LOAD_RETRY_SECONDS = 0.3
STANDBYS_MAX = 2


ResultT = TypeVar("ResultT")
CALL_SECONDS_MAX = 0.01


class InlineWorker:
    """A shard's worker without a thread, which runs each call a little later in a separate turn of the event loop."""

    def __init__(self, name: str, random: Random) -> None:
        """Create an idle worker.

        Args:
            name: The shard's id.
            random: Draws how long calls take.
        """
        self.cpu_seconds = 0.0
        self._name = name
        self._random = random
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def submit(self, function: Callable[..., ResultT], *args: Any) -> Future[ResultT]:
        """Run `function(*args)` after earlier calls."""
        if self._closed:
            raise ShardStoppedError(self._name, detail="its worker has ended")
        future: Future[ResultT] = Future()
        self._calls.append((future, partial(function, *args)))
        if len(self._calls) == 1:
            self._idle.clear()
            self._run_soon()
        return future

    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(*args)`."""
        return await asyncio.wrap_future(self.submit(function, *args))

    def stack(self) -> str:
        """Return no stack, because calls take no time."""
        return ""

    def close(self) -> None:
        """Accept no more calls."""
        self._closed = True

    async def join(self, *, timeout_seconds: float) -> bool:
        """Wait until no call is left."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _run_soon(self) -> None:
        seconds = self._random.uniform(0.0, CALL_SECONDS_MAX)
        asyncio.get_running_loop().call_later(seconds, self._run_next)

    def _run_next(self) -> None:
        future, call = self._calls[0]
        if future.running() or future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except Exception as error:  # the result belongs to the caller
                future.set_exception(error)
        self._calls.popleft()
        if self._calls:
            self._run_soon()
        else:
            self._idle.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSurroundings(SharedParts):
    """The surroundings that all members of a run share."""

    broker: MemoryBroker
    config: ShardConfig
    directory: Path
    """Directory of the files of all members."""
    chunk_bytes: Sequence[int] = CHUNK_BYTES
    """Largest content of a read's message; one is drawn for each."""
    new_worker: Callable[[str, Random], ShardWorker] = field(default=InlineWorker)
    """Makes where a shard's callbacks run."""
    new_parents: Callable[[MemberId], ParentCaller | None] = lambda _: None
    """Makes what reaches the primaries of shards that are split, for a member."""
    start_duties: Callable[[SimulatedConsumer, LocalShards, TaskGroup], None] = lambda *_: None
    """Starts what a member does beside its shards, in a task group."""


@dataclass(eq=False, kw_only=True)
class SimulatedConsumer(SimulatedProcess):
    """A simulated process that serves the shard."""

    lease: LeaseId
    to_etcd: Link
    to_journals: Link
    to_table: Link
    random: Random
    application: Application[Any]
    """The application, whose store type only the application knows."""
    surroundings: SimulatedSurroundings
    is_gone: bool = False
    """True once its death is known."""

    key_space: KeySpace | None = None
    """Its mirror, while it runs."""
    journals: JournalClient = field(init=False)
    """Of all its shards."""
    shards: list[LiveShard] = field(default_factory=list)
    """All that it has served or serves, oldest first."""

    def __post_init__(self) -> None:
        given = self.surroundings
        channels = SimulatedChannels(given.broker, self.to_journals, chunk_bytes=given.chunk_bytes)
        self.journals = JournalClient(
            channels.default_endpoint, channels=channels, clock=given.clock
        )

    @property
    def links(self) -> tuple[Link, ...]:
        """Its links to everything else."""
        return self.to_etcd, self.to_journals, self.to_table

    def machine_stories(self) -> str:
        """Return the recent events of the transactions and of the player of its shard's newest life, as text."""
        told = (shard.story() for shard in reversed(self.shards))
        return next(filter(None, told), "")

    async def live(self) -> None:
        """Mirror etcd, and serve the assigned shard, for ever."""
        key_space = KeySpace(
            self.etcd(),
            self.surroundings.keys,
            ShardDecoder(hot_standbys_max=STANDBYS_MAX),
            apply_delay_seconds=0.0,
        )
        self.key_space = key_space
        async with TaskGroup() as group:
            shards = LocalShards(
                key_space,
                member_id=self.member_id,
                new_shard=partial(self._new_shard, key_space),
                group=group,
                registry=CollectorRegistry(),
            )
            key_space.observe(ObserverStage.ACT, shards.apply)
            self.surroundings.start_duties(self, shards, group)
            await self._load(key_space)
            await key_space.watch()

    async def _load(self, key_space: KeySpace) -> None:
        while True:
            try:
                await key_space.load()
            except EtcdUnavailableError:
                await asyncio.sleep(LOAD_RETRY_SECONDS)
            else:
                return

    def etcd(self) -> FaultyEtcd:
        """Return a connection to etcd."""
        return FaultyEtcd(self.surroundings.etcd, self.to_etcd, author=str(self.member_id))

    def _new_shard(
        self, key_space: KeySpace, spec: ShardSpec, assignment: Assignment, created: int
    ) -> LiveShard:
        environment = self._environment(key_space)
        shard = LiveShard(spec, assignment, environment, created_revision=created)
        self.shards.append(shard)
        return shard

    def _environment(self, key_space: KeySpace) -> ShardEnvironment:
        given = self.surroundings
        etcd, keys = self.etcd(), AuxiliaryKeys(given.keys.root)
        return ShardEnvironment(
            application=self.application,
            journals=self.journals,
            etcd=etcd,
            keys=given.keys,
            key_space=key_space,
            clock=given.clock,
            metrics=ShardMetrics(CollectorRegistry()),
            deaths=CrashHistory(
                etcd, keys, clock=given.clock, deaths_max=0, hold_seconds=given.config.hold_seconds
            ),
            rollbacks=RollbackRecords(etcd, keys),
            state_directory=given.directory / self.member_id.suffix,
            config=given.config,
            new_random=lambda: Random(self.random.random()),
            new_worker=lambda name: given.new_worker(name, self.random),
            random_bytes=self.random.randbytes,
            parents=given.new_parents(self.member_id),
        )


def new_member(
    member_id: MemberId,
    surroundings: SimulatedSurroundings,
    *,
    random: Random,
    lease: LeaseId,
    new_application: Callable[[Link], Application[Any]],
) -> SimulatedConsumer:
    """Create a member, which does not run yet.

    Args:
        member_id: Its name.
        surroundings: Shared with the other members.
        random: Its random generator.
        lease: Of its assignments.
        new_application: Creates its application, given the link to the table.
    """
    to_etcd, to_journals, to_table = (Link(random, surroundings.latency_seconds) for _ in range(3))
    return SimulatedConsumer(
        member_id=member_id,
        process=Process(str(member_id)),
        lease=lease,
        to_etcd=to_etcd,
        to_journals=to_journals,
        to_table=to_table,
        random=random,
        application=new_application(to_table),
        surroundings=surroundings,
    )
