"""Injects faults into a simulated shard, one at a time, drawn from its seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Final

from broadsheet.allocator.simulation.network import Link
from broadsheet.consumer.protocol.journal_pb2 import Status
from broadsheet.consumer.simulation.cluster import ConsumerCluster
from broadsheet.consumer.simulation.history_checker import LOG
from broadsheet.consumer.simulation.member import SimulatedConsumer
from broadsheet.consumer.simulation.scenario import Fault

LOSS_MAX: Final = 0.35
LATE_MAX: Final = 0.25
HISTORY_KEPT_MAX: Final = 10
"""Most revisions that a compaction keeps."""
RESTART_SECONDS_MAX: Final = 3.0
IDLE_SECONDS: Final = 4.0
"""Time after which an idle process is killed, even if it has not done the drawn number of steps."""
_REFUSALS: Final = (
    Status.NO_JOURNAL_PRIMARY_BROKER,
    Status.INSUFFICIENT_JOURNAL_BROKERS,
    Status.NOT_JOURNAL_BROKER,
)


class ShardFaults:
    """Draws and injects faults, and undoes those that pass."""

    def __init__(self, cluster: ConsumerCluster) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._actions: dict[Fault, Callable[[], str | None]] = {
            Fault.CRASH: self._crash,
            Fault.PAUSE: self._pause,
            Fault.LEASE_LOST: self._lose_lease,
            Fault.HAND_OVER: self._hand_over,
            Fault.REASSIGN: self._reassign,
            Fault.ETCD_CUT: lambda: self._cut(lambda member: (member.to_etcd,)),
            Fault.ETCD_LOSSY: lambda: self._lossy(lambda member: (member.to_etcd,)),
            Fault.BROKER_CUT: lambda: self._cut(lambda member: (member.to_journals,)),
            Fault.BROKER_LOSSY: lambda: self._lossy(lambda member: (member.to_journals,)),
            Fault.BROKER_RESTART: self._restart_broker,
            Fault.BROKER_REFUSES: self._refuse,
            Fault.REGISTERS_LOST: self._lose_registers,
            Fault.TABLE_LOSSY: self._lossy_table,
            Fault.COMPACTION: self._compact,
            Fault.SPEC_CHANGED: self._change_spec,
            Fault.APPLICATION_FAILS: self._fail_application,
        }

    def next(self) -> None:
        """Inject the next fault. One that is impossible at the moment changes nothing."""
        faults = self._cluster.scenario.faults
        fault = self._random.choices(list(faults), list(faults.values()))[0]
        what = self._actions[fault]()
        if what is not None:
            self._cluster.trace.add(f"{fault.value}: {what}")

    def end(self) -> None:
        """End all passing faults; from now on only members act."""
        cluster = self._cluster
        cluster.application_fails = False
        cluster.broker.refuses = Status.OK
        for member in cluster.members:
            for link in member.links:
                link.heal(cluster.latency_seconds)
            if member.killed:
                member.process.stop()
            else:
                member.process.go_on()
        cluster.trace.add("quiet")

    # -- processes

    def _crash(self) -> str | None:
        member = self._victim()
        if member is None:
            return None
        steps = self._cluster.draw(self._cluster.scenario.process_steps)
        member.killed = True
        member.process.stop_after(steps)
        self._later(IDLE_SECONDS, member.process.stop)
        return f"{member.member_id} after {steps} steps"

    def _pause(self) -> str | None:
        member = self._victim()
        if member is None:
            return None
        steps = self._cluster.draw(self._cluster.scenario.process_steps)
        member.process.stop_after(steps)
        seconds = self._passes(lambda: self._wake(member))
        replaced = self._random.random() < 0.7
        if replaced:
            self._later(self._random.uniform(0.0, seconds), lambda: self._replace(member))
        return f"{member.member_id} after {steps} steps, for {seconds:.1f} s"

    def _lose_lease(self) -> str | None:
        member = self._victim()
        if member is None:
            return None
        self._cluster.revoke(member)
        return str(member.member_id)

    def _hand_over(self) -> str | None:
        others = [
            member for member in self._cluster.candidates() if member is not self._cluster.primary()
        ]
        if not others:
            return None
        member = self._random.choice(others)
        self._cluster.promote(member)
        return f"to {member.member_id}"

    def _reassign(self) -> str | None:
        member = self._cluster.primary()
        if member is None or member.is_gone:
            return None
        self._cluster.promote(member)
        return str(member.member_id)

    def _wake(self, member: SimulatedConsumer) -> None:
        if not member.killed:
            member.process.go_on()

    def _replace(self, member: SimulatedConsumer) -> None:
        if self._cluster.primary() is member and not member.killed:
            self._cluster.revoke(member)

    # -- links

    def _cut(self, links_of: Callable[[SimulatedConsumer], Sequence[Link]]) -> str | None:
        member = self._victim()
        if member is None:
            return None
        refuses = self._random.random() < 0.5
        for link in links_of(member):
            link.cut_off(refuses=refuses)
        seconds = self._passes(lambda: _mend(links_of(member)))
        return f"{member.member_id} for {seconds:.1f} s"

    def _lossy(self, links_of: Callable[[SimulatedConsumer], Sequence[Link]]) -> str | None:
        member = self._victim()
        if member is None:
            return None
        latency_seconds = self._cluster.latency_seconds
        for link in links_of(member):
            link.loss = self._random.uniform(0.0, LOSS_MAX)
            link.late = self._random.uniform(0.0, LATE_MAX)

        def heal() -> None:
            for link in links_of(member):
                link.heal(latency_seconds)

        seconds = self._passes(heal)
        return f"{member.member_id} for {seconds:.1f} s"

    def _lossy_table(self) -> str | None:
        if self._cluster.recorded:
            return None
        return self._lossy(lambda member: (member.to_table,))

    # -- services

    def _restart_broker(self) -> str:
        links = [member.to_journals for member in self._cluster.members]
        for link in links:
            link.cut_off(refuses=True)
        seconds = self._random.uniform(0.1, RESTART_SECONDS_MAX)
        self._later(seconds, lambda: _mend(links))
        return f"for {seconds:.1f} s"

    def _refuse(self) -> str:
        broker = self._cluster.broker
        broker.refuses = self._random.choice(_REFUSALS)

        def serve() -> None:
            broker.refuses = Status.OK

        seconds = self._passes(serve)
        return f"{Status.Name(broker.refuses)} for {seconds:.1f} s"

    def _lose_registers(self) -> str | None:
        if not self._cluster.recorded:
            return None
        self._cluster.broker.lose_registers(LOG)
        return LOG

    def _compact(self) -> str | None:
        etcd = self._cluster.etcd
        revision = etcd.store.revision - self._random.randint(0, HISTORY_KEPT_MAX)
        if revision <= etcd.store.compacted_revision:
            return None
        etcd.compact(revision)
        return f"up to {revision}"

    def _change_spec(self) -> str:
        self._cluster.put_spec()
        return "other durations"

    def _fail_application(self) -> str:
        self._cluster.application_fails = True

        def work() -> None:
            self._cluster.application_fails = False

        seconds = self._random.uniform(0.1, 2.0)
        self._later(seconds, work)
        return f"for {seconds:.1f} s"

    # -- victims and times

    def _victim(self) -> SimulatedConsumer | None:
        """Return a running member, most often the primary."""
        running = [m for m in self._cluster.members if m.is_running and not m.killed]
        primary = self._cluster.primary()
        if primary in running and self._random.random() < 0.8:
            return primary
        return self._random.choice(running) if running else None

    def _passes(self, undo: Callable[[], object]) -> float:
        """Undo a fault after a while; return the time until then."""
        seconds = self._random.uniform(*self._cluster.scenario.passing_seconds)
        self._later(seconds, undo)
        return seconds

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        # In no process, because it must not stop with one.
        asyncio.get_running_loop().call_later(seconds, action, context=Context())


def _mend(links: Sequence[Link]) -> None:
    for link in links:
        link.mend()
