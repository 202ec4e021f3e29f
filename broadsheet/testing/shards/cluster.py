"""A simulated cluster of shards, most often of one: a broker, an etcd, a table, members, and assignments.

Unlike an allocator, it promotes arbitrary members: a standby that is far behind, a member that has never seen the
shard, a paused process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, Protocol

from google.protobuf.duration_pb2 import Duration

from broadsheet.allocator.keys import AssignmentKey
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Delete, KeyValue, Operation, Put
from broadsheet.consumer.application import Application, Shard
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.testing.allocator.kernel.cluster import SimulatedCluster
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.run import RunContext
from broadsheet.testing.shards.broker import MemoryBroker
from broadsheet.testing.shards.history_checker import (
    ALLOCATOR,
    BROKEN_ON_PURPOSE,
    INPUTS,
    LOG,
    OUTPUTS,
    HistoryChecker,
    output_of,
)
from broadsheet.testing.shards.member import SimulatedConsumer, SimulatedSurroundings, new_member
from broadsheet.testing.shards.scenario import ShardScenario
from broadsheet.testing.shards.stores import FaultyTable, FencedRowStore, FencedTable, RecordedStore
from broadsheet.wire.journal_pb2 import CompressionCodec, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.shard_pb2 import ShardSpec

SHARD: Final = ItemId("shard-1")
LEASE_SECONDS: Final = 1_000_000
"""Lease time, which is so long because the run ends leases explicitly."""
LOOK_SECONDS: Final = (0.05, 1.0)
"""Time between two checks of the assignments."""

NumberStore = RecordedStore | FencedRowStore

CONFIG: Final = ShardConfig(
    stop_grace_seconds=2.0,
    teardown_seconds=3.0,
    restart_delay_seconds=0.1,
    restart_delay_seconds_max=2.0,
    attempts_max=0,
    young_deaths_max=0,
    stall_seconds=0.0,
    hints_seconds=3.0,
    hints_bytes=4000,
    rollback_again_seconds=40.0,
)
"""Configuration in which everything happens often; former producers are rolled back again once late messages have
arrived.
"""


class FaultSwitch(Protocol):
    """The switch of an application's injected fault."""

    @property
    def application_fails(self) -> bool:
        """Return whether the application raises at the next message."""
        ...


@dataclass(frozen=True, slots=True)
class NumberKeeper:
    """Records and publishes the numbers of inputs. Implements `broadsheet.consumer.application.Application`."""

    open_store: Callable[[Shard], NumberStore]
    witness: HistoryChecker
    whims: FaultSwitch

    def new_store(self, shard: Shard) -> NumberStore:
        """Open the run's store."""
        return self.open_store(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return JSON lines."""
        del journal_spec
        return JsonType()

    def consume_message(
        self, shard: Shard, store: NumberStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Record the number, and publish it."""
        del shard
        if self.whims.application_fails:
            raise RuntimeError(BROKEN_ON_PURPOSE)
        number: int = envelope.message["id"]
        key = str(number)
        self.witness.on_consumed(number, again=key in store.state)
        store.state[key] = len(store.state)
        output = output_of(number)
        if output is not None:
            publisher.publish_uncommitted(MappedJournal(output, NDJSON), {"id": number}, JsonType())

    def finalize_txn(self, shard: Shard, store: NumberStore, publisher: Publisher) -> None:
        """Do nothing, because nothing is buffered."""


class ConsumerCluster(SimulatedCluster[SimulatedConsumer, ShardScenario]):
    """The broker, etcd, table and members of one run."""

    AUTHOR = ALLOCATOR
    JOURNALS: ClassVar[tuple[JournalSpec, ...]] = ()
    """Journals beside inputs, outputs and the first log."""
    SOURCES: ClassVar[tuple[str, ...]] = INPUTS
    """Of the first shard, ascending."""

    def __init__(
        self,
        context: RunContext,
        scenario: ShardScenario,
        *,
        witness: HistoryChecker,
        directory: Path,
    ) -> None:
        """Create the journals and the shard, without members.

        Args:
            context: The run.
            scenario: Shapes and bounds of the run.
            witness: Checks the history of the run.
            directory: Holds members' files.
        """
        super().__init__(context, scenario, drawn_as="shard", etcd=FakeEtcd())
        self.witness = witness
        self.broker = MemoryBroker()
        self.broker.observers.append(witness.on_appended)
        self.table = FencedTable(lambda _, state: witness.on_durable(state))
        self.application_fails = False
        self.recorded = self.random.random() < scenario.recorded
        self.piecewise = self.random.random() < scenario.piecewise
        self.latency_seconds = self.random.choice(scenario.latencies_seconds)
        self._members_wanted = self.draw(scenario.members)
        self._standbys_wanted = self.draw(scenario.standbys) if self.recorded else 0
        carried = Random(f"{self.seed} carried").choice(scenario.carried_bytes)
        self._surroundings = SimulatedSurroundings(
            etcd=self.etcd,
            keys=self.keys,
            clock=self.clock,
            latency_seconds=self.latency_seconds,
            broker=self.broker,
            config=replace(CONFIG, carried_bytes_max=carried),
            directory=directory,
        )
        self.broker.create(
            *(new_journal(name, NDJSON) for name in (*INPUTS, *OUTPUTS)),
            new_journal(LOG, CONTENT_TYPE_RECOVERY_LOG),
            *self.JOURNALS,
        )
        self.put_spec()

    # -- the operator's part

    def put_spec(self) -> None:
        """Write the shard's spec, with other durations each time."""
        draw = self.draw
        low, high = (
            draw(self.scenario.min_txn_milliseconds),
            draw(self.scenario.max_txn_milliseconds),
        )
        spec = ShardSpec(
            id=SHARD,
            sources=[ShardSpec.Source(journal=name) for name in self.SOURCES],
            hot_standbys=self._standbys_wanted,
            min_txn_duration=_duration(min(low, high)),
            max_txn_duration=_duration(high),
            disable_wait_for_ack=draw((0, 3)) == 0,
            ring_buffer_size=draw(self.scenario.ring_messages),
            read_channel_size=draw((2, 100)),
        )
        if self.recorded:
            spec.recovery_log_prefix, _, _ = LOG.rpartition("/")
            spec.hint_prefix = "/hints"
            spec.hint_backups = 2
        self.write(Put(self.keys.item(SHARD), spec.SerializeToString(deterministic=True)))

    def join(self) -> SimulatedConsumer:
        """Start a member."""
        member_id = MemberId("zone", f"m{len(self.members) + 1}")
        member = new_member(
            member_id,
            self._surroundings,
            random=self.random_of(member_id),
            lease=self.etcd.grant(LEASE_SECONDS),
            new_application=self._new_application,
        )
        self.start(member)
        return member

    # -- the allocator's part

    async def allocate(self) -> None:
        """Keep the shard assigned to some member, for ever."""
        while True:
            self._bury()
            while len(self._unburied()) < self._members_wanted:
                self.join()
            for shard in self.shards():
                self._fill(shard)
            await asyncio.sleep(self.random.uniform(*LOOK_SECONDS))

    def shards(self) -> Sequence[ItemId]:
        """Return the shards that are to be assigned."""
        return (SHARD,)

    def primary(self, shard: ItemId = SHARD) -> SimulatedConsumer | None:
        """Return the member at slot 0."""
        for member_id, slot in self.slots(shard):
            if slot == 0:
                return self.by_id(member_id)
        return None

    def promote(self, member: SimulatedConsumer, shard: ItemId = SHARD) -> None:
        """Make a member the primary in place of another, in one etcd transaction."""
        operations: list[Operation] = []
        value = b""
        for (member_id, slot), kv in self.slots(shard).items():
            if slot == 0 or member_id == member.member_id:
                operations.append(Delete(kv.key))
            if member_id == member.member_id:
                value = kv.value
        key = self.keys.assignment(shard, member.member_id, 0)
        if Delete(key) in operations:
            self.write(
                *operations
            )  # The same key again, because etcd writes a key only once in a transaction.
            operations, value = [], b""
        self.write(*operations, Put(key, value, lease=member.lease))

    def revoke(self, member: SimulatedConsumer) -> None:
        """End a member's lease; it gets another one for later assignments."""
        self.etcd.revoke(member.lease)
        member.lease = self.etcd.grant(LEASE_SECONDS)

    def shut_down(self) -> None:
        """End the run, and what is observed of it."""
        self.broker.observers.clear()
        super().shut_down()

    def _bury(self) -> None:
        """Make the death of a killed member known, after a while."""
        for member in self.members:
            if member.killed and member.process.stopped and not member.is_gone:
                member.is_gone = True
                seconds = self.random.uniform(*self.scenario.lease_seconds)
                asyncio.get_running_loop().call_later(
                    seconds, self.revoke, member, context=Context()
                )

    def _fill(self, shard: ItemId) -> None:
        candidates = self.present()
        if not candidates:
            return
        slots = self.slots(shard)
        holders = {member_id for member_id, _ in slots}
        if not any(slot == 0 for _, slot in slots):
            standbys = [member for member in candidates if member.member_id in holders]
            self.promote(self.random.choice(standbys or candidates), shard)
        elif len(slots) <= self._standbys_wanted:
            free = [member for member in candidates if member.member_id not in holders]
            taken = {slot for _, slot in slots}
            slot = next(number for number in range(1, 9) if number not in taken)
            if free:
                member = self.random.choice(free)
                key = self.keys.assignment(shard, member.member_id, slot)
                self.write(Put(key, b"", lease=member.lease))

    def _unburied(self) -> list[SimulatedConsumer]:
        """Return members whose death is not known."""
        return [member for member in self.members if not member.is_gone]

    def by_id(self, member_id: MemberId) -> SimulatedConsumer:
        """Return a member of the run."""
        return next(member for member in self.members if member.member_id == member_id)

    def slots(self, shard: ItemId = SHARD) -> dict[tuple[MemberId, int], KeyValue]:
        """Return a shard's assignments in etcd, by member and slot."""
        found: dict[tuple[MemberId, int], KeyValue] = {}
        for kv in self.kvs(self.keys.assignments_of(shard)):
            parsed = self.keys.parse(kv.key)
            assert isinstance(parsed, AssignmentKey), f"{kv.key!r} is no assignment"
            found[parsed.member_id, parsed.slot] = kv
        return found

    # -- the members' part

    def _new_application(self, to_table: Link) -> Application[Any]:
        return NumberKeeper(partial(self._open_store, to_table), self.witness, self)

    def _open_store(self, to_table: Link, shard: Shard) -> NumberStore:
        if self.recorded:
            return RecordedStore(shard, observer=self.witness, piecewise=self.piecewise)
        return FencedRowStore(shard, self.table, FaultyTable(to_table), self.witness)


def new_journal(name: str, content_type: str) -> JournalSpec:
    """Return the spec of a journal of the run."""
    return JournalSpec(
        name=name,
        replication=1,
        labels=label_set((CONTENT_TYPE, content_type)),
        fragment=JournalSpec.Fragment(
            length=1 << 20,
            compression_codec=CompressionCodec.NONE,
            refresh_interval=Duration(seconds=60),
        ),
    )


def _duration(milliseconds: int) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(milliseconds)
    return duration
