"""One chaos run: streams flow, faults strike as the schedule says, and in the end every sum must be right, once.

journals and shards made ─► producers, witness and faults side by side ─► all streams ended ─► every member alive,
its lease renewed ─► every sum there, every input read ─► members leave by themselves ─► the sums are read once more,
and compared
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self

import psutil

from broadsheet.cli.journals import space as journal_space
from broadsheet.cli.shards import space as shard_space
from broadsheet.consumer.client import ShardClient
from broadsheet.examples.stream_sum.check import Comparison, all_sums, compare
from broadsheet.examples.stream_sum.messages import CHUNK_JOURNALS, SUM_JOURNALS
from broadsheet.examples.stream_sum.publish import Producers
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EmbeddedServerError, ServiceError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire import journal_pb2
from broadsheet.wire.shard_pb2 import ApplyRequest
from tests.chaos.cluster_plan import ClusterPlan
from tests.chaos.hosts import Hosts
from tests.chaos.leases import MemberLeases, Renewals
from tests.chaos.report import ChaosError, ChaosReport, forbidden_lines
from tests.chaos.schedule import (
    JUMP_SECONDS,
    OF_SERVICES,
    OF_SHARDS,
    PAUSE_SECONDS,
    Fault,
    FaultKind,
    make_schedule,
)
from tests.chaos.services import ChaosServices
from tests.chaos.shard_faults import SHARDS, ShardFaults
from tests.chaos.witness import Witness
from tests.support.eventually import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "stream_sum"
SETTLE_SECONDS = 90.0
"""Longest wait for the last sums after the last fault: a shard that failed often waits up to 30 s for an attempt."""
END_SECONDS = 60.0
"""Longest wait for the producers' last appends."""
PROGRESS_SECONDS = 5.0
STORED_FRAGMENT_BYTES = 1 << 16
"""So that even a short run has sealed fragments, which a store keeps."""
ZOMBIE_SECONDS = 1.5
"""How long etcd is down for a member that woke up without its lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosRun:
    """Everything a run needs."""

    seed: int
    seconds: float
    schedule: tuple[Fault, ...]
    replay: str
    """The command that runs the same again."""
    plan: ClusterPlan
    services: ChaosServices
    hosts: Hosts
    """Entered."""
    tell: Callable[[str], None]
    """Shows a line of progress."""
    _hurts: Counter[object] = field(default_factory=Counter)
    """Faults that last, by victim: one that was hurt twice is healed once, when the last is over."""

    @property
    def _leases(self) -> MemberLeases:
        return MemberLeases(self.plan.etcd_config(), self.plan.root)

    @classmethod
    def planned(
        cls,
        seed: int,
        *,
        seconds: float,
        plan: ClusterPlan,
        services: ChaosServices,
        hosts: Hosts,
        tell: Callable[[str], None],
        pause_seconds: float = PAUSE_SECONDS,
        kinds: Collection[FaultKind] = (),
    ) -> Self:
        """Return a run of the faults that a seed makes for these hosts, and show them.

        Args:
            seed: Chooses streams and faults.
            seconds: How long streams flow and faults strike.
            plan: Of the cluster.
            services: Started.
            hosts: Entered.
            tell: Shows a line.
            pause_seconds: Mean time from one fault to the next.
            kinds: What may happen; anything that can, if there are none.
        """
        schedule = make_schedule(
            seed,
            seconds=seconds,
            members=plan.members,
            lease_seconds=plan.lease_seconds,
            pause_seconds=pause_seconds,
            kinds=[
                kind
                for kind in hosts.kinds
                if plan.may_suffer(kind) and (not kinds or kind in kinds)
            ],
        )
        tell(f"seed {seed}")
        for fault in schedule:
            tell(str(fault))
        tell("it begins")
        return cls(
            seed=seed,
            seconds=seconds,
            schedule=schedule,
            replay=f"python -m tests.chaos --hosts {hosts.name} --seed {seed} --seconds {seconds:g} "
            f"--pause {pause_seconds:g} {plan.options}"
            + "".join(f" --kind {kind.name.lower()}" for kind in kinds),
            plan=plan,
            services=services,
            hosts=hosts,
            tell=tell,
        )

    async def run(self) -> ChaosReport:
        """Run it all.

        Raises:
            ChaosError: a sum is missing, wrong or there twice, or something did not come back; with all that is known.
        """
        producers = Producers(seed=self.seed)
        witness = Witness(producers)
        try:
            async with AsyncExitStack() as stack:
                journals = await stack.enter_async_context(
                    JournalClient(self.services.broker.address)
                )
                shard_faults = ShardFaults(
                    journals, self.hosts.address, Random(self.seed), store=self.plan.store
                )
                await self.apply_specs(journals, shard_faults)
                group = await stack.enter_async_context(TaskGroup())
                group.start_soon(witness.run(journals), name="witness")
                await self._suffer(journals, producers, witness, shard_faults)
                await self._settle(journals, witness)
                group.stop()
            await self._stop_and_compare(producers)
        except Exception as error:
            logs = {**self.services.logs(), **self.hosts.logs()}
            raise ChaosError(
                error, replay=self.replay, schedule=self.schedule, logs=logs
            ) from error
        remarks = (
            f"FAILED by name, because another author took a number: {shard_faults.refused}",
            f"fragments that the broker lost from its disk, and had in its store alone: {self.services.fragments_lost}",
        )
        return ChaosReport.of(producers, witness, schedule=self.schedule, remarks=remarks)

    async def apply_specs(
        self, journals: JournalClient, shard_faults: ShardFaults | None = None
    ) -> None:
        """Make the journals and shards of the example, and those that faults of shards strike, if there are any."""
        await journals.apply(self._journal_changes())
        text = (EXAMPLE / "shards.yaml").read_text()
        space = shard_space.parse_shard_space(text, "shards.yaml")
        if not self.plan.recorded:
            common = space.common
            common.recovery_log_prefix = common.hint_prefix = ""
            common.hint_backups = common.hot_standbys = 0
        changes = shard_space.changes_of(shard_space.push_down(space))
        if shard_faults is not None:
            like = (await journals.get(CHUNK_JOURNALS[0])).spec
            spec = await shard_faults.create(like, changes[0].upsert)
            changes = [*changes, ApplyRequest.Change(upsert=spec)]
        async with ShardClient(await self.hosts.address()) as client:
            await client.apply(changes)

    def _journal_changes(self) -> list[journal_pb2.ApplyRequest.Change]:
        text = (EXAMPLE / "journals.yaml").read_text()
        tree = journal_space.parse_journal_space(text, "journals.yaml")
        changes = journal_space.changes_of(tree)
        if self.plan.fragment_store:
            for change in changes:
                fragment = change.upsert.fragment
                fragment.length = STORED_FRAGMENT_BYTES
                fragment.stores.append(self.plan.fragment_store)
        return changes

    async def _suffer(
        self,
        journals: JournalClient,
        producers: Producers,
        witness: Witness,
        shard_faults: ShardFaults,
    ) -> None:
        """Publish and strike until the run's time is over and every fault undone."""
        began = time.monotonic()
        async with TaskGroup() as group:
            publishing = group.start_soon(producers.run(journals), name="producers")
            watching = group.start_soon(
                self._watch(producers, witness, began=began), name="progress"
            )
            async with TaskGroup() as faults:
                for index, fault in enumerate(self.schedule):
                    strike = self._strike(fault, producers, shard_faults, began=began)
                    faults.start_soon(strike, name=f"fault {index}")
            await _sleep_until(began + self.seconds)
            producers.end()
            async with asyncio.timeout(END_SECONDS):
                await publishing
            watching.cancel()

    async def _strike(
        self,
        fault: Fault,
        producers: Producers,
        shard_faults: ShardFaults,
        *,
        began: float,
    ) -> None:
        """Do one thing at its time, and undo it."""
        await _sleep_until(began + fault.at_seconds)
        self.tell(f"  {fault}")
        match fault.kind:
            case FaultKind.PRODUCER_CLOCK:
                # For good: a clock of messages never goes back.
                producers.set_clock_ahead(fault.member, JUMP_SECONDS)
            case FaultKind.ETCD_SLOW:
                self.hosts.delay_etcd(fault.round_trip_seconds)
                await asyncio.sleep(fault.lasts_seconds)
                self.hosts.delay_etcd(0.0)
            case kind if kind in OF_SHARDS:
                await shard_faults.strike(kind)
            case kind if kind in OF_SERVICES:
                await self.services.restart(fault)
            case _:
                await self._hurt(fault)

    async def _hurt(self, fault: Fault) -> None:
        """Hurt a member, and heal it."""
        victim = await self.hosts.hurt(fault.kind, fault.member)
        self._hurts[victim] += 1
        if fault.kind is FaultKind.ZOMBIE:
            await self._leases.revoke(self.hosts.suffix(fault.member))
        await asyncio.sleep(fault.lasts_seconds)
        if fault.kind is FaultKind.ZOMBIE:
            # It wakes in the belief to be the primary still, and nobody can tell it otherwise: only fences stop it.
            async with self.services.etcd_down():
                await self._heal(victim)
                await asyncio.sleep(ZOMBIE_SECONDS)
        else:
            await self._heal(victim)

    async def _heal(self, victim: object) -> None:
        self._hurts[victim] -= 1
        if not self._hurts[victim]:
            await self.hosts.heal(victim)

    async def _watch(self, producers: Producers, witness: Witness, *, began: float) -> None:
        """Show how far it has come; end the run early if it cannot come right any more."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            expected = len(producers.expected)
            self.tell(
                f"{time.monotonic() - began:6.1f} s  {expected:,} streams ended, {witness.sums:,} sums there, "
                f"longest wait for one {witness.longest_gap_seconds:.1f} s; resident MiB: broker "
                f"{_broker_mib(self.services)}, members "
                f"{', '.join(map(_resident_mib, self.hosts.pids()))}"
            )
            self._check(witness.compare())

    async def _settle(self, journals: JournalClient, witness: Witness) -> None:
        """Wait until all is well: nothing is hurt any more."""
        self.tell("  every fault is over")
        await self._check_members()

        def all_there() -> bool:
            comparison = witness.compare()
            self._check(comparison)
            assert comparison.exact, "; ".join(comparison.differences)
            return True

        await eventually(
            all_there, timeout_seconds=SETTLE_SECONDS, interval_seconds=0.2, message="every sum"
        )
        heads = {journal: await journals.write_head(journal) for journal in CHUNK_JOURNALS}
        await eventually(
            lambda: self._all_read(heads),
            timeout_seconds=SETTLE_SECONDS,
            interval_seconds=0.2,
            message="every input is read, also what counts for nothing",
        )

    async def _check_members(self) -> None:
        """Return once every member serves, and none is about to end for a lease that a fault has cost it."""
        renewals = Renewals(self._leases)
        for index in range(self.plan.members):

            async def lasts(index: int = index) -> bool:
                await self.hosts.check_alive()
                return await renewals.renews(self.hosts.suffix(index))

            await eventually(
                lasts,
                timeout_seconds=SETTLE_SECONDS,
                interval_seconds=0.1,
                message=f"member {index} renews its lease",
            )

    async def _all_read(self, heads: dict[str, int]) -> bool:
        try:
            async with ShardClient(await self.hosts.address()) as client:
                for listed in (await client.list()).shards:
                    if listed.spec.id not in SHARDS:
                        continue  # What becomes of the others has been seen.
                    journals = [source.journal for source in listed.spec.sources]
                    wanted = {journal: heads[journal] for journal in journals}
                    await client.stat(listed.spec.id, read_through=wanted, timeout_seconds=5.0)
        except (ServiceError, TimeoutError) as error:
            raise AssertionError(str(error)) from error
        return True

    async def _stop_and_compare(self, producers: Producers) -> None:
        await self.hosts.stop()
        async with JournalClient(self.services.broker.address) as journals:
            await self._compare(producers, journals)
            if not self.plan.ends_on_empty_disk:
                return
            await self._store_sums(journals)
        self.tell("  the broker starts on an empty disk")
        await self.services.lose_broker_disk()
        async with JournalClient(self.services.broker.address) as journals:
            await journals.apply(self._journal_changes())
            await self._compare(producers, journals)

    async def _compare(self, producers: Producers, journals: JournalClient) -> None:
        comparison = compare(producers.expected, await all_sums(journals))
        if not comparison.exact:
            raise AssertionError("; ".join(comparison.differences))
        self._check(comparison)

    async def _store_sums(self, journals: JournalClient) -> None:
        """Wait until the store has every sum: a broker that was killed seals what it finds."""
        await self.services.restart(Fault(at_seconds=0.0, kind=FaultKind.BROKER))
        for journal in SUM_JOURNALS:

            async def is_stored(journal: str = journal) -> bool:
                listed = await journals.list_fragments(journal)
                return all(each.spec.backing_store for each in listed)

            await eventually(
                is_stored, timeout_seconds=SETTLE_SECONDS, message=f"{journal} is stored"
            )

    def _check(self, comparison: Comparison) -> None:
        """Raise what no patience helps against."""
        if not comparison.only_missing:
            raise WrongSumsError("; ".join(comparison.differences))
        if lines := forbidden_lines(self.hosts.logs()):
            raise WrongSumsError("\n".join(lines))


class WrongSumsError(Exception):
    """A sum is wrong, or there twice, or a shard met a chunk in the wrong order."""


def _broker_mib(services: ChaosServices) -> str:
    try:
        return _resident_mib(services.broker_pid)
    except EmbeddedServerError:
        return "-"  # It was killed, and is about to be started.


def _resident_mib(pid: int) -> str:
    """Return a process's resident memory; a dash if it is not there."""
    try:
        return str(psutil.Process(pid).memory_info().rss >> 20)
    except psutil.Error:
        return "-"


async def _sleep_until(monotonic_seconds: float) -> None:
    await asyncio.sleep(max(0.0, monotonic_seconds - time.monotonic()))
