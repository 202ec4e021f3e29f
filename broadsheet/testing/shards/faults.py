"""Injects faults into a simulated shard, one at a time, drawn from its seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broadsheet.allocator.model import ItemId
from broadsheet.testing.allocator.kernel.faults import Action, FaultBounds, FaultInjector, mend
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.shards.cluster import SHARD, ConsumerCluster
from broadsheet.testing.shards.history_checker import LOG
from broadsheet.testing.shards.member import SimulatedConsumer
from broadsheet.testing.shards.scenario import ShardFault
from broadsheet.wire.journal_pb2 import Status

BOUNDS: Final = FaultBounds(loss_max=0.35, late_max=0.25, history_kept_max=10)
RESTART_SECONDS_MAX: Final = 3.0
IDLE_SECONDS: Final = 4.0
"""Time after which an idle process is killed, even if it has not done the drawn number of steps."""
_REFUSALS: Final = (
    Status.NO_JOURNAL_PRIMARY_BROKER,
    Status.INSUFFICIENT_JOURNAL_BROKERS,
    Status.NOT_JOURNAL_BROKER,
)


class ShardFaults(FaultInjector[ShardFault, SimulatedConsumer]):
    """Draws and injects faults, and undoes those that pass."""

    _cluster: ConsumerCluster

    def __init__(self, cluster: ConsumerCluster) -> None:
        super().__init__(cluster, cluster.scenario.faults, BOUNDS)

    def actions(self) -> Mapping[ShardFault, Action]:
        """Return the action of each fault."""
        return {
            ShardFault.CRASH: self._crash,
            ShardFault.PAUSE: self._pause,
            ShardFault.LEASE_LOST: self._lose_lease,
            ShardFault.HAND_OVER: self._hand_over,
            ShardFault.REASSIGN: self._reassign,
            ShardFault.ETCD_CUT: lambda: self._cut(lambda member: member.to_etcd),
            ShardFault.ETCD_LOSSY: lambda: self._lossy(lambda member: member.to_etcd),
            ShardFault.BROKER_CUT: lambda: self._cut(lambda member: member.to_journals),
            ShardFault.BROKER_LOSSY: lambda: self._lossy(lambda member: member.to_journals),
            ShardFault.BROKER_RESTART: self._restart_broker,
            ShardFault.BROKER_REFUSES: self._refuse,
            ShardFault.REGISTERS_LOST: self._lose_registers,
            ShardFault.TABLE_LOSSY: self._lossy_table,
            ShardFault.COMPACTION: self._compact,
            ShardFault.SPEC_CHANGED: self._change_spec,
            ShardFault.APPLICATION_FAILS: self._fail_application,
        }

    def end(self) -> None:
        """End all passing faults; from now on only members act."""
        self._cluster.application_fails = False
        self._cluster.broker.refuses = Status.OK
        super().end()

    def target(self) -> ItemId:
        """Return the shard that a fault hits."""
        return SHARD

    def calm(self, member: SimulatedConsumer) -> None:
        """Let a process resume, or die now if it was to die later."""
        if member.killed:
            member.kill()
        else:
            member.resume()

    # -- processes

    def _crash(self) -> str | None:
        member = self._victim()
        if member is None:
            return None
        steps = self._cluster.draw(self._cluster.scenario.process_steps)
        member.kill(after_steps=steps)
        self.later(IDLE_SECONDS, member.process.stop)
        return f"{member.member_id} after {steps} steps"

    def _pause(self) -> str | None:
        member = self._victim()
        if member is None:
            return None
        steps = self._cluster.draw(self._cluster.scenario.process_steps)
        member.process.stop_after(steps)
        seconds = self.passes(member.resume)
        replaced = self.random.random() < 0.7
        if replaced:
            self.later(self.random.uniform(0.0, seconds), lambda: self._replace(member))
        return f"{member.member_id} after {steps} steps, for {seconds:.1f} s"

    def _lose_lease(self) -> str | None:
        member = self._victim()
        if member is None:
            return None
        self._cluster.revoke(member)
        return str(member.member_id)

    def _hand_over(self) -> str | None:
        shard = self.target()
        primary = self._cluster.primary(shard)
        others = [member for member in self._cluster.present() if member is not primary]
        if not others:
            return None
        member = self.random.choice(others)
        self._cluster.promote(member, shard)
        return f"{shard} to {member.member_id}"

    def _reassign(self) -> str | None:
        shard = self.target()
        member = self._cluster.primary(shard)
        if member is None or member.is_gone:
            return None
        self._cluster.promote(member, shard)
        return f"{shard} at {member.member_id}"

    def _replace(self, member: SimulatedConsumer) -> None:
        shards = self._cluster.shards()
        if not member.killed and any(self._cluster.primary(each) is member for each in shards):
            self._cluster.revoke(member)

    # -- links

    def _cut(self, link_of: Callable[[SimulatedConsumer], Link]) -> str | None:
        member = self._victim()
        if member is None:
            return None
        link = link_of(member)
        self.cut_off(link)
        seconds = self.passes(link.mend)
        return f"{member.member_id} for {seconds:.1f} s"

    def _lossy(self, link_of: Callable[[SimulatedConsumer], Link]) -> str | None:
        member = self._victim()
        if member is None:
            return None
        seconds = self.make_lossy(link_of(member))
        return f"{member.member_id} for {seconds:.1f} s"

    def _lossy_table(self) -> str | None:
        if self._cluster.recorded:
            return None
        return self._lossy(lambda member: member.to_table)

    # -- services

    def _restart_broker(self) -> str:
        links = [member.to_journals for member in self._cluster.members]
        for link in links:
            link.cut_off(refuses=True)
        seconds = self.random.uniform(0.1, RESTART_SECONDS_MAX)
        self.later(seconds, lambda: mend(links))
        return f"for {seconds:.1f} s"

    def _refuse(self) -> str:
        broker = self._cluster.broker
        broker.refuses = self.random.choice(_REFUSALS)

        def serve() -> None:
            broker.refuses = Status.OK

        seconds = self.passes(serve)
        return f"{Status.Name(broker.refuses)} for {seconds:.1f} s"

    def _lose_registers(self) -> str | None:
        if not self._cluster.recorded:
            return None
        self._cluster.broker.lose_registers(LOG)
        return LOG

    def _compact(self) -> str | None:
        revision = self.compact()
        return None if revision is None else f"up to {revision}"

    def _change_spec(self) -> str:
        self._cluster.put_spec()
        return "other durations"

    def _fail_application(self) -> str:
        self._cluster.application_fails = True

        def work() -> None:
            self._cluster.application_fails = False

        seconds = self.random.uniform(0.1, 2.0)
        self.later(seconds, work)
        return f"for {seconds:.1f} s"

    def _victim(self) -> SimulatedConsumer | None:
        """Return a running member, most often the primary."""
        running = self._cluster.alive()
        primary = self._cluster.primary(self.target())
        if primary in running and self.random.random() < 0.8:
            return primary
        return self.random.choice(running) if running else None
