"""A cluster of real servers for a test: an embedded etcd and broker, and members in this process, in real time.

Each member is a *process* of the loop (`ProcessLoop`): killed, none of its callbacks runs any more, whatever they wait
for, while its connections stay open, as after SIGKILL until the system has noticed. Its lease is then revoked, as peers
do that find a process ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import LeaseId
from broadsheet.allocator.policy import AllocationPolicy, TransitionPolicy
from broadsheet.consumer.application import Application
from broadsheet.consumer.client.shard_client import ShardClient
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcd
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.virtual_loop import Process
from broadsheet.testing.kit.errors import StuckError
from broadsheet.testing.kit.process_watcher import ProcessWatcher
from broadsheet.testing.kit.switchboard import Switchboard
from broadsheet.testing.kit.topology import new_journal, recovery_logs
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply, JournalSpec
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

_log = logging.getLogger(__name__)

ROOT: Final = "/broadsheet-test"
LOOK_SECONDS: Final = 0.01
END_SECONDS_MAX: Final = 20.0
MADE_SECONDS_MAX: Final = 30.0
"""Longest wait of a callback for a journal that it publishes to, and that is made for it."""
CONFIG: Final = ShardConfig(
    stop_grace_seconds=2.0,
    restart_delay_seconds=0.05,
    restart_delay_seconds_max=0.5,
    attempts_max=0,
    young_deaths_max=0,
    carried_bytes_max=0,
)
"""Transactions never carry their messages in their acknowledgements: each has a place to die between the two."""


@dataclass(eq=False)
class _Member:
    """A member, its process, and what watches it."""

    service: Service
    process: Process
    watcher: ProcessWatcher
    is_gone: bool = False
    """Whether it was killed and others have its shards, or it leaves."""


class RealWorld:
    """Implements `World`. Make it on its loop, a `ProcessLoop`."""

    look_seconds = LOOK_SECONDS

    def __init__(
        self,
        new_application: Callable[[], Application[Any]],
        switchboard: Switchboard,
        *,
        group: TaskGroup,
        directory: Path,
        makes_journals: bool,
    ) -> None:
        """Describe the servers, which start with `start`.

        Args:
            new_application: Makes the application of a process.
            switchboard: Asked at each step.
            group: Runs the members.
            directory: Holds the files of members and broker.
            makes_journals: Whether journals that the application publishes to are made as they are needed.
        """
        self._new_application = new_application
        self._switchboard = switchboard
        self._group = group
        self._directory = directory
        self._makes_journals = makes_journals
        self._keys = Keys(ROOT)
        self._shards: dict[str, ShardSpec] = {}
        self._logs: set[str] = set()
        self._journals: set[str] = set()
        self._members: list[_Member] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._servers = AsyncExitStack()
        self._etcd_config: EtcdConfig
        self._broker_address = ""
        self._etcd: EtcdClient
        self._loop = asyncio.get_running_loop()
        self._burying = asyncio.Lock()
        self.journals: JournalClient

    @property
    def wall_seconds(self) -> float:
        """Seconds since the Unix epoch."""
        return SystemClock().wall_seconds()

    async def start(self) -> None:
        """Start etcd, the broker and the first members."""
        enter = self._servers.enter_async_context
        etcd = await enter(EmbeddedEtcd())
        self._etcd_config = EtcdConfig(endpoints=(etcd.endpoint,))
        broker = await enter(EmbeddedBroker(self._directory / "broker", durability="off"))
        self._broker_address = broker.address
        self._etcd = await enter(EtcdClient(self._etcd_config))
        self.journals = await enter(JournalClient(broker.address))
        await self._fill(standbys=0)

    async def stop(self) -> None:
        """End the members, then the servers."""
        for member in self._members:
            member.is_gone = True
            member.process.go_on()
            member.service.force_stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_SECONDS_MAX)
        await self._servers.aclose()

    async def create_journals(self, specs: Sequence[JournalSpec]) -> None:
        """Create journals, or update existing ones."""
        if specs:
            changes = [JournalApply.Change(upsert=spec, expect_mod_revision=-1) for spec in specs]
            await self.journals.apply(changes)
            self._journals |= {spec.name for spec in specs}

    async def apply_shards(self, specs: Sequence[ShardSpec]) -> None:
        """Create shards through a member."""
        self._logs |= {log.name for log in recovery_logs(specs)}
        await self._fill(standbys=max((spec.hot_standbys for spec in specs), default=0))
        changes = [ApplyRequest.Change(upsert=spec, expect_mod_revision=-1) for spec in specs]
        async with ShardClient(self._alive()[0].service.address) as client:
            await client.apply(changes)
        self._shards.update((spec.id, spec) for spec in specs)

    def shards(self) -> Mapping[str, ShardSpec]:
        """Return all shards, by id."""
        return self._shards

    def primary_of(self, shard: str) -> LiveShard | None:
        """Return the live shard of the running process that is its primary."""
        member = self._primary_member(shard)
        return None if member is None else member.service.shards[ItemId(shard)]

    async def heads(self) -> Mapping[str, int]:
        """Return the write heads of the shards' sources."""
        sources = {source.journal for spec in self._shards.values() for source in spec.sources}
        return {journal: await self.journals.write_head(journal) for journal in sorted(sources)}

    async def kill_primary(self, shard: str) -> None:
        """Kill the process of the primary now."""
        member = self._primary_member(shard)
        if member is None:
            raise StuckError(f"shard {shard!r} has no primary to kill")
        member.process.stop()
        await self.settle_deaths()

    async def hand_over(self, shard: str) -> None:
        """Let the member of the primary leave, which hands its shards over."""
        member = self._primary_member(shard)
        if member is None:
            raise StuckError(f"shard {shard!r} has no primary that could hand it over")
        member.is_gone = True
        await self._fill(standbys=self._shards[shard].hot_standbys)
        member.service.stop()

    async def settle_deaths(self) -> None:
        """Bury those that were killed at a step, and start others in their places."""
        async with self._burying:
            dead = [each for each in self._members if each.process.stopped and not each.is_gone]
            for member in dead:
                await self._bury(member)
            if dead:
                wanted = max((spec.hot_standbys for spec in self._shards.values()), default=0)
                await self._fill(standbys=wanted)

    # -- of processes

    def begin_commit(self, shard: str, wait_for: Collection[Future[object]]) -> Callable[[], None]:
        """Do nothing: time is real."""
        del shard, wait_for
        return lambda: None

    def on_killed(self) -> None:
        """Give the shards of killed processes to others."""
        self._group.start_soon(self.settle_deaths(), name="bury")

    def is_recovery_log(self, journal: str) -> bool:
        """Return whether a journal is one of the shards' logs."""
        return journal in self._logs

    def require_journal(self, mapped: MappedJournal) -> None:
        """Make a journal if it is missing; called on a worker thread."""
        if not self._makes_journals or mapped.journal in self._journals:
            return
        made = self.create_journals([new_journal(mapped.journal, mapped.content_type)])
        asyncio.run_coroutine_threadsafe(made, self._loop).result(MADE_SECONDS_MAX)

    # -- members

    async def _fill(self, *, standbys: int) -> None:
        """Start members until one may die and another one has each place."""
        while len(self._alive()) < 2 + standbys:
            await self._join()

    async def _join(self) -> None:
        name = f"member-{len(self._members) + 1}"
        process = Process(name)
        watcher = ProcessWatcher(
            self._new_application(), process, switchboard=self._switchboard, surroundings=self
        )
        config = MemberConfig(
            root=ROOT,
            suffix=name,
            etcd=self._etcd_config,
            broker_address=self._broker_address,
            watch_peers=False,
            drain_alone_seconds_max=0.2,
            stop_seconds_max=2.0,
            state_dir=str(self._directory / name),
            shards=CONFIG,
            allocation=AllocationPolicy(transition=TransitionPolicy(settle_seconds=0.0)),
        )
        service = process.run(partial(Service, watcher.application, config))
        member = _Member(service, process, watcher)
        self._members.append(member)
        start = partial(self._group.start_soon, self._live(member), name=f"member {name}")
        self._tasks.append(process.run(start))
        await service.ready

    async def _live(self, member: _Member) -> None:
        try:
            await member.service.run()
        except BroadsheetError as error:
            # Its lease was revoked, and it finds out only now that it is cleaned up.
            if not member.is_gone:
                raise
            _log.debug("a killed member ended: %r", error)

    async def _bury(self, member: _Member) -> None:
        member.is_gone = True
        for failure in await asyncio.to_thread(member.watcher.close_files):
            _log.debug("a store of a killed process did not close: %r", failure)
        lease = await self._lease_of(member)
        if lease:
            await self._etcd.lease_revoke(lease)

    async def _lease_of(self, member: _Member) -> LeaseId | None:
        found = await self._etcd.get_range(self._keys.member(member.service.member_id))
        lease = found.kvs[0].lease if found.kvs else None
        return None if lease is None else LeaseId(lease)

    def _alive(self) -> list[_Member]:
        return [each for each in self._members if not each.is_gone and not each.process.stopped]

    def _primary_member(self, shard: str) -> _Member | None:
        for member in self._alive():
            live = member.service.shards.get(ItemId(shard))
            if live is not None and live.primary:
                return member
        return None
