"""A cluster without servers: the real shards of `broadsheet.testing.shards`, on virtual time, in lockstep with threads.

Etcd, broker and network are in memory and answer at once. Members mirror etcd and run shards; this world assigns
shards to them, as the leader of a real cluster does.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from broadsheet.allocator.keys import AssignmentKey, Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Delete, KeyValue, Operation, Put
from broadsheet.consumer.application import Application
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.virtual_loop import Process, VirtualClock, running_loop
from broadsheet.testing.kit.errors import StuckError
from broadsheet.testing.kit.lockstep import Gate, LockstepWorker
from broadsheet.testing.kit.process_watcher import ProcessWatcher
from broadsheet.testing.kit.switchboard import Switchboard
from broadsheet.testing.kit.topology import new_journal, recovery_logs
from broadsheet.testing.shards.broker import MemoryBroker
from broadsheet.testing.shards.channels import SimulatedChannels
from broadsheet.testing.shards.member import (
    SimulatedConsumer,
    SimulatedSurroundings,
    new_member,
)
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import ShardSpec

_log = logging.getLogger(__name__)

ROOT: Final = "/test"
AUTHOR: Final = "test"
LEASE_SECONDS: Final = 1_000_000
"""Leases end when the world ends them."""
LOOK_SECONDS: Final = 0.001
AT_ONCE: Final = (0.0, 0.0)
CHUNK_BYTES: Final = (1 << 20,)
"""Whatever the test publishes at once is read at once."""
CONFIG: Final = ShardConfig(
    stop_grace_seconds=2.0,
    restart_delay_seconds=0.1,
    restart_delay_seconds_max=1.0,
    attempts_max=0,
    young_deaths_max=0,
    carried_bytes_max=0,
    stall_seconds=0.0,
)
"""Transactions never carry their messages in their acknowledgements: each has a place to die between the two."""


class VirtualWorld:
    """Implements `World`. Make it on its loop."""

    look_seconds = LOOK_SECONDS

    def __init__(
        self,
        new_application: Callable[[], Application[Any]],
        switchboard: Switchboard,
        gate: Gate,
        *,
        group: TaskGroup,
        directory: Path,
        makes_journals: bool,
    ) -> None:
        """Create the world, without members.

        Args:
            new_application: Makes the application of a process.
            switchboard: Asked at each step.
            gate: Of the loop.
            group: Runs the members.
            directory: Holds members' files.
            makes_journals: Whether journals that the application publishes to are made as they are needed.
        """
        self._switchboard = switchboard
        self._gate = gate
        self._new_application = new_application
        self._group = group
        self._makes_journals = makes_journals
        self._random = Random(0)
        self._keys = Keys(ROOT)
        self._clock = VirtualClock(running_loop())
        self._etcd = FakeEtcd()
        self._broker = MemoryBroker()
        self._shards: dict[str, ShardSpec] = {}
        self._logs: set[str] = set()
        self._members: list[SimulatedConsumer] = []
        self._watchers: dict[MemberId, ProcessWatcher] = {}
        self._surroundings = SimulatedSurroundings(
            etcd=self._etcd,
            keys=self._keys,
            clock=self._clock,
            latency_seconds=AT_ONCE,
            broker=self._broker,
            config=CONFIG,
            directory=directory,
            chunk_bytes=CHUNK_BYTES,
            new_worker=lambda name, _: LockstepWorker(name, gate),
        )
        link = Link(self._random, AT_ONCE)
        channels = SimulatedChannels(self._broker, link, chunk_bytes=CHUNK_BYTES)
        self.journals = JournalClient(
            channels.default_endpoint, channels=channels, clock=self._clock
        )

    @property
    def wall_seconds(self) -> float:
        """Virtual seconds since the Unix epoch."""
        return self._clock.wall_seconds()

    async def start(self) -> None:
        """Do nothing: there are no servers."""

    async def stop(self) -> None:
        """End every process."""
        for member in self._members:
            if not member.is_gone:
                self._bury(member)
        self._etcd.close()
        for member in self._members:
            member.let_end()

    async def create_journals(self, specs: Sequence[JournalSpec]) -> None:
        """Create journals, or update existing ones."""
        if specs:
            self._broker.create(*specs)

    async def apply_shards(self, specs: Sequence[ShardSpec]) -> None:
        """Write specs, and assign the shards."""
        self._logs |= {log.name for log in recovery_logs(specs)}
        for spec in specs:
            self._shards[spec.id] = spec
            value = spec.SerializeToString(deterministic=True)
            self._write(Put(self._keys.item(ItemId(spec.id)), value))
        self._assign()

    def shards(self) -> Mapping[str, ShardSpec]:
        """Return all shards, by id."""
        return self._shards

    def primary_of(self, shard: str) -> LiveShard | None:
        """Return the live shard at slot 0, if its process runs."""
        member = self._at_slot_0(shard)
        if member is None or member.killed:
            return None
        found = [live for live in member.shards if live.id == shard]
        return found[-1] if found else None

    async def heads(self) -> Mapping[str, int]:
        """Return the write heads of all journals."""
        return {name: journal.head for name, journal in self._broker.journals.items()}

    async def kill_primary(self, shard: str) -> None:
        """Kill the process at slot 0 now."""
        member = self._at_slot_0(shard)
        if member is None:
            raise StuckError(f"shard {shard!r} has no primary to kill")
        member.process.stop()
        self._bury_the_dead()

    async def hand_over(self, shard: str) -> None:
        """Promote another process."""
        primary = self._at_slot_0(shard)
        others = [member for member in self._alive() if member is not primary]
        standbys = [member for member in others if self._slot_of(shard, member) is not None]
        successor = (standbys or others or [self._join()])[0]
        self._promote(shard, successor)

    async def settle_deaths(self) -> None:
        """Bury those that were killed at a step, and assign their shards."""
        self._bury_the_dead()

    # -- of processes, on any thread

    def begin_commit(self, shard: str, wait_for: Collection[Future[object]]) -> Callable[[], None]:
        """Let virtual time wait for a commit."""
        return partial(self._gate.end, self._gate.begin_commit(shard, wait_for))

    def on_killed(self) -> None:
        """Give the shards of killed processes to others, at once."""
        self._bury_the_dead()

    def is_recovery_log(self, journal: str) -> bool:
        """Return whether a journal is one of the shards' logs."""
        return any(
            journal == f"{spec.recovery_log_prefix}/{spec.id}" for spec in self._shards.values()
        )

    def require_journal(self, mapped: MappedJournal) -> None:
        """Make a journal if it is missing, and journals are made as they are needed."""
        if self._makes_journals and mapped.journal not in self._broker.journals:
            self._broker.create(new_journal(mapped.journal, mapped.content_type))

    # -- processes

    def _join(self) -> SimulatedConsumer:
        member_id = MemberId("zone", f"m{len(self._members) + 1}")
        process = Process(str(member_id))
        watcher = ProcessWatcher(
            self._new_application(),
            process,
            switchboard=self._switchboard,
            surroundings=self,
        )
        member = new_member(
            member_id,
            self._surroundings,
            random=Random(str(member_id)),
            lease=self._etcd.grant(LEASE_SECONDS),
            new_application=lambda _: watcher.application,
        )
        member.process = process
        self._watchers[member_id] = watcher
        self._members.append(member)
        process.run(lambda: self._group.start_soon(member.live(), name=f"member {member_id}"))
        return member

    def _bury_the_dead(self) -> None:
        for member in self._members:
            if member.process.stopped and not member.is_gone:
                self._bury(member)
        self._assign()

    def _bury(self, member: SimulatedConsumer) -> None:
        """End a process: its files are closed, and its lease is over."""
        member.killed = member.is_gone = True
        member.process.stop()
        for failure in self._watchers[member.member_id].close_files():
            _log.debug("a store of a killed process did not close: %r", failure)
        self._etcd.revoke(member.lease)

    def _alive(self) -> list[SimulatedConsumer]:
        return [
            member for member in self._members if not member.is_gone and not member.process.stopped
        ]

    # -- assignments

    def _assign(self) -> None:
        """Give each shard a primary, and the standbys that it wants."""
        for shard, spec in self._shards.items():
            while len(self._alive()) < 1 + spec.hot_standbys:
                self._join()
            if self._at_slot_0(shard) is None:
                standbys = [
                    member for member in self._alive() if self._slot_of(shard, member) is not None
                ]
                self._promote(shard, standbys[0] if standbys else self._least_loaded())
            for _ in range(spec.hot_standbys):
                self._add_standby(shard, spec)

    def _add_standby(self, shard: str, spec: ShardSpec) -> None:
        slots = {slot for _, slot in self._slots(shard)}
        free = [member for member in self._alive() if self._slot_of(shard, member) is None]
        if len(slots) > spec.hot_standbys or not free:
            return
        slot = next(number for number in range(1, spec.hot_standbys + 2) if number not in slots)
        key = self._keys.assignment(ItemId(shard), free[0].member_id, slot)
        self._write(Put(key, b"", lease=free[0].lease))

    def _promote(self, shard: str, member: SimulatedConsumer) -> None:
        """Make a member the primary, in one etcd transaction."""
        operations: list[Operation] = []
        value = b""
        for (member_id, slot), kv in self._slots(shard).items():
            if slot == 0 or member_id == member.member_id:
                operations.append(Delete(kv.key))
            if member_id == member.member_id:
                value = kv.value
        key = self._keys.assignment(ItemId(shard), member.member_id, 0)
        self._write(*operations, Put(key, value, lease=member.lease))

    def _least_loaded(self) -> SimulatedConsumer:
        loads = Counter(member_id for shard in self._shards for member_id, _ in self._slots(shard))
        return min(self._alive(), key=lambda member: loads[member.member_id])

    def _at_slot_0(self, shard: str) -> SimulatedConsumer | None:
        for member_id, slot in self._slots(shard):
            if slot == 0:
                return next(each for each in self._members if each.member_id == member_id)
        return None

    def _slot_of(self, shard: str, member: SimulatedConsumer) -> int | None:
        for member_id, slot in self._slots(shard):
            if member_id == member.member_id:
                return slot
        return None

    def _slots(self, shard: str) -> dict[tuple[MemberId, int], KeyValue]:
        """Return a shard's assignments, by member and slot."""
        prefix = self._keys.assignments_of(ItemId(shard))
        found: dict[tuple[MemberId, int], KeyValue] = {}
        for key, kv in self._etcd.store.kvs.items():
            if key.startswith(prefix):
                parsed = self._keys.parse(key)
                assert isinstance(parsed, AssignmentKey), f"{key!r} is no assignment"
                found[parsed.member_id, parsed.slot] = kv
        return found

    def _write(self, *operations: Operation) -> None:
        self._etcd.perform((), operations, author=AUTHOR)
