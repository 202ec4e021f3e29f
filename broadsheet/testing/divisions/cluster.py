"""A simulated cluster whose members divide journals: each carries divisions out while it leads, or believes so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Compare, Put
from broadsheet.consumer.application import Application, Shard
from broadsheet.consumer.elastic.flip import HeldKey
from broadsheet.consumer.elastic.journal_split import (
    encode_journal_split,
    journal_split_key,
    journal_splits_prefix,
    plan_journal_split,
    reads,
)
from broadsheet.consumer.errors import SplitDelayedError
from broadsheet.consumer.member.journal_splitter import JournalSplitter
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.rpc.journal_splits import JournalSplits
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.message.division import is_divided, sealed_at
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.run import RunContext
from broadsheet.testing.divisions.application import (
    MIDDLE,
    RelayingKeeper,
    group_of_entry,
    recording_group,
)
from broadsheet.testing.divisions.division_checker import DivisionChecker
from broadsheet.testing.families.application import DividedStore
from broadsheet.testing.families.cluster import FamilyCluster
from broadsheet.testing.families.family_checker import LifeObserver
from broadsheet.testing.shards.cluster import new_journal
from broadsheet.testing.shards.history_checker import INPUTS
from broadsheet.testing.shards.member import SimulatedConsumer
from broadsheet.testing.shards.scenario import ShardScenario
from broadsheet.wire.elastic_pb2 import LeaveJournalResponse
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.key_range import key_range_of
from broadsheet.wire.labels import PUBLISHERS, PUBLISHERS_CHECKED, label_set, union

T = TypeVar("T")
BOTH_LEAD: Final = 0.3
"""Share of elections after which the former leader believes for a while that it leads still."""


def _middle() -> JournalSpec:
    spec = new_journal(MIDDLE, NDJSON)
    spec.labels.CopyFrom(union(spec.labels, label_set((PUBLISHERS, PUBLISHERS_CHECKED))))
    return spec


class DivisionCluster(FamilyCluster):
    """The broker, etcd and members of one run, and the operator who divides journals."""

    JOURNALS: ClassVar[tuple[JournalSpec, ...]] = (_middle(),)
    SOURCES: ClassVar[tuple[str, ...]] = (*INPUTS, MIDDLE)

    def __init__(
        self,
        context: RunContext,
        scenario: ShardScenario,
        *,
        checker: DivisionChecker,
        directory: Path,
    ) -> None:
        """Create the journals and the first shard, without members.

        Args:
            context: The run.
            scenario: Shapes and bounds of the run.
            checker: Checks the history of the run.
            directory: Holds members' files.
        """
        self._divisions = checker
        super().__init__(context, scenario, checker=checker, directory=directory)
        checker.seals = self.seals
        self._surroundings = replace(self._surroundings, start_duties=self._start_duties)
        self._services: dict[MemberId, JournalSplits] = {}
        self._leaders: list[MemberId] = []

    # -- the operator's part

    def middles(self) -> dict[str, JournalSpec]:
        """Return the journal that is divided, and its parts."""
        held = self.broker.journals.items()
        return {name: journal.spec for name, journal in held if name.startswith(MIDDLE)}

    def seals(self) -> dict[str, int]:
        """Return the offsets behind the seals of journals, by name."""
        found = {name: sealed_at(spec) for name, spec in self.middles().items()}
        return {name: sealed for name, sealed in found.items() if sealed is not None}

    def divide(self) -> str | None:
        """Begin a division of a journal; return which, or None if none can be divided now."""
        whole = [spec for spec in self.middles().values() if not is_divided(spec.labels)]
        journal = self.random.choice(sorted(whole, key=lambda spec: spec.name))
        owned = key_range_of(journal.labels)
        shards = [spec for spec, _ in self.specs().values()]
        try:
            at = self.random.randrange(owned.begin, owned.end)
            plan = plan_journal_split(journal, at, shards=shards)
        except ValidationError:
            return None
        key = journal_split_key(self.keys.root, plan.journal)
        put = Put(key, encode_journal_split(plan.record))
        done = self.etcd.perform((Compare.absent(key),), (put,), author=self.AUTHOR)
        return f"{plan.journal} at {at}" if done.succeeded else None

    def elect(self) -> str | None:
        """Have another member lead; the former one may believe for a while that it does."""
        others = [each.member_id for each in self.present() if each.member_id not in self._leaders]
        if not others:
            return None
        former = self._leaders[-1:] if self.random.random() < BOTH_LEAD else []
        self._leaders = [*former, self.random.choice(others)]
        return ", ".join(map(str, self._leaders))

    def leaders(self) -> list[SimulatedConsumer]:
        """Return the members that lead, or believe so."""
        alive = {each.member_id: each for each in self.present()}
        if not any(each in alive for each in self._leaders) and alive:
            self._leaders = [min(alive, key=str)]
        return [alive[each] for each in self._leaders if each in alive]

    def left_over(self) -> list[str]:
        """Return what is in etcd of splits, merges and divisions, in words."""
        sealed = self.seals()
        return [
            *super().left_over(),
            *(f"etcd has {kv.key!r}" for kv in self.kvs(journal_splits_prefix(self.keys.root))),
            *(
                f"{spec.id} has {journal} among its sources, which is sealed"
                for spec, _ in self.specs().values()
                for journal in sealed
                if reads(spec, journal)
            ),
        ]

    # -- the members' part

    def service(self, member: SimulatedConsumer) -> JournalSplits:
        """Return what serves a member's peers.

        Raises:
            SplitDelayedError: it does not serve yet.
        """
        found = self._services.get(member.member_id)
        if found is None:
            raise SplitDelayedError(f"{member.member_id} does not serve yet")
        return found

    def _start_duties(
        self, member: SimulatedConsumer, local_shards: LocalShards, group: TaskGroup
    ) -> None:
        assert member.key_space is not None, "it runs"
        membership = LocalMember(member.member_id, member.key_space, member.etcd())
        self._services[member.member_id] = JournalSplits(membership, local_shards, member.journals)
        splitter = JournalSplitter(
            membership,
            member.journals,
            member.application,
            LinkedPrimaries(self, member),
            leads=lambda: member in self.leaders(),
            clock=self.clock,
        )
        group.start_soon(splitter.run(), name="divide journals")

    def _new_application(self, to_table: Link) -> Application[Any]:
        del to_table
        checker = self._divisions
        return RelayingKeeper(
            open_store=self._open_relaying,
            witness=checker,
            whims=self,
            group_of=recording_group,
            order=checker,
        )

    def _open_relaying(self, shard: Shard) -> DividedStore:
        life = self.life_of(shard.id)
        return DividedStore(
            shard,
            life,
            observer=LifeObserver(self._divisions, life),
            witness=self._divisions,
            piecewise=self.piecewise,
            group_of=group_of_entry,
        )


class LinkedPrimaries:
    """Reaches the primaries of shards for the member that divides journals; implements `PrimaryCaller`."""

    def __init__(self, cluster: DivisionCluster, member: SimulatedConsumer) -> None:
        """Keep the arguments; no call is made yet.

        Args:
            cluster: Has the members.
            member: Who asks.
        """
        self._cluster = cluster
        self._member = member

    async def leave(self, shard_id: str, journal: str, *, timeout_seconds: float) -> HeldKey:
        """Have a shard's primary leave a divided journal; return its assignment."""

        async def serve(splits: JournalSplits) -> LeaveJournalResponse:
            return await splits.leave(shard_id, journal)

        left = await self._ask(shard_id, serve, timeout_seconds)
        return HeldKey(left.assignment_key, left.assignment_create_revision)

    async def committed_through(self, shard_id: str, source: str, *, timeout_seconds: float) -> int:
        """Return through where the committed checkpoint of a shard's primary has read a source, bytes."""

        async def serve(splits: JournalSplits) -> int:
            return splits.source_progress(shard_id, source).read_through

        return await self._ask(shard_id, serve, timeout_seconds)

    async def _ask(
        self,
        shard_id: str,
        serve: Callable[[JournalSplits], Awaitable[T]],
        timeout_seconds: float,
    ) -> T:
        key_space, cluster = self._member.key_space, self._cluster
        assert key_space is not None, "it runs"
        for assignment in key_space.assignments_of(ItemId(shard_id)):
            if assignment.slot == 0:
                target = cluster.by_id(assignment.member_id)
                asked = partial(_served, cluster, target, serve)
                try:
                    async with asyncio.timeout(timeout_seconds):
                        return await cluster.call(target, asked)
                except TimeoutError as error:
                    raise SplitDelayedError(f"{target.member_id} does not answer") from error
        raise EndpointError(shard_id, "it has no primary now")


async def _served(
    cluster: DivisionCluster,
    target: SimulatedConsumer,
    serve: Callable[[JournalSplits], Awaitable[T]],
) -> T:
    return await serve(cluster.service(target))
