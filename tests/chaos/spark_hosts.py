"""Members as tasks of Spark executors: Spark starts each again when its process has ended.

A fault hits the member's Python worker, which is where it lives; `HOST` hits the executor's JVM above it. Etcd may be
down when a worker is looked for, so the last known one of each member is remembered.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psutil

from broadsheet.allocator.errors import EtcdError
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.errors import ClusterStoppedError
from tests.chaos.application import ChaosSums
from tests.chaos.broker_door import BrokerDoor
from tests.chaos.cluster_plan import ClusterPlan
from tests.chaos.schedule import FaultKind
from tests.support.eventually import eventually
from tests.support.spark import process_listening_at
from tests.support.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broadsheet.spark_bridge.cluster.membership import MemberInfo
    from broadsheet.spark_bridge.standalone import StandaloneCluster

READY_SECONDS = 90.0
"""Longest wait for a member: an executor may have to be started first."""
_LOOK_SECONDS = 0.5


class SparkHosts:
    """Hosts members on the executors of a standalone Spark."""

    name = "spark"
    kinds: tuple[FaultKind, ...] = tuple(
        kind for kind in FaultKind if kind is not FaultKind.MEMBER_CLOCK
    )
    """Executors of one machine have one clock."""

    def __init__(
        self, plan: ClusterPlan, *, spark: SparkSession, standalone: StandaloneCluster
    ) -> None:
        """Describe the members; entering starts them.

        Args:
            plan: Of the cluster.
            spark: A session on `standalone`.
            standalone: Has a slot for each member.
        """
        self._standalone = standalone
        self._door = BrokerDoor(plan.broker_address)
        self._etcd_door = TcpProxy(plan.etcd_endpoint)
        self._plan = plan
        self._spark = spark
        self._started: ShardCluster | None = None
        self._members = plan.members
        self._directory = plan.directory
        self._workers: dict[int, tuple[MemberInfo, psutil.Process]] = {}
        """Each member's newest life and its process, by the member's index."""
        self._group = TaskGroup()

    @property
    def _cluster(self) -> ShardCluster:
        assert self._started is not None, "entered"
        return self._started

    def _new_cluster(self) -> ShardCluster:
        plan = self._plan
        return ShardCluster(
            self._spark,
            functools.partial(ChaosSums, plan.store, plan.states),
            members=plan.members,
            root=plan.root,
            etcd=plan.etcd_config(self._etcd_door.endpoint),
            broker=self._door.address,
            start_timeout_seconds=READY_SECONDS,
            lease_ttl_seconds=plan.lease_seconds,
            # Members die in a row here; no shard is to blame, and none may be held back.
            shards=ShardConfig(young_deaths_max=0),
        )

    async def address(self) -> str:
        """Return where a member serves that is alive now; wait for one."""

        def serving() -> str | None:
            alive = (each for each in self._workers.values() if _is_awake(each[1]))
            return next((member.endpoint for member, _ in alive), None)

        address = await eventually(
            serving, timeout_seconds=READY_SECONDS, message="no member serves"
        )
        assert address is not None, "eventually returns what is true"
        return address

    def suffix(self, member: int) -> str:
        """Return the suffix of the member's present life."""
        return self._workers[member][0].member_id.suffix

    def pids(self) -> list[int]:
        """Return the processes of the members' present lives."""
        return [worker.pid for _, worker in self._workers.values()]

    async def hurt(self, kind: FaultKind, member: int) -> object:
        """Send the member's Python worker, or its executor, a signal."""
        _, worker = self._workers[member]
        # What was hit before may not have come back yet.
        with suppress(psutil.NoSuchProcess, LookupError):
            match kind:
                case FaultKind.KILL:
                    worker.kill()
                case FaultKind.FREEZE | FaultKind.HICCUP | FaultKind.ZOMBIE:
                    worker.suspend()
                case FaultKind.DRAIN:
                    worker.terminate()
                case FaultKind.BROKER_CUT:
                    self._door.cut_off(worker.pid)
                case FaultKind.HOST:
                    _executor_of(worker).kill()
                case _:
                    raise AssertionError(f"{kind} is not for members")
        return worker

    async def heal(self, victim: object) -> None:
        """Let a process go on that is frozen, or cut off."""
        assert isinstance(victim, psutil.Process)
        self._door.let_in(victim.pid)
        with suppress(psutil.NoSuchProcess):  # It may have been killed meanwhile.
            victim.send_signal(signal.SIGCONT)

    def delay_etcd(self, round_trip_seconds: float) -> None:
        """Let what members and the driver send to etcd, and are answered, take so long from now on."""
        self._etcd_door.delay_seconds = round_trip_seconds / 2

    async def check_alive(self) -> None:
        """Return once every member serves."""
        await eventually(
            lambda: sum(_is_awake(worker) for _, worker in self._workers.values()) == self._members,
            timeout_seconds=READY_SECONDS,
            message="not every member serves",
        )

    async def stop(self) -> None:
        """Let every member leave by itself."""
        await asyncio.to_thread(self._cluster.stop)

    def logs(self) -> Mapping[str, str]:
        """What each executor has written for the members that it hosted."""
        directory = self._standalone.directory
        return {
            str(path.parent.relative_to(directory)): path.read_text(errors="replace")
            for path in sorted(directory.glob("work-*/app-*/*/stderr"))
        }

    async def __aenter__(self) -> Self:
        await self._door.__aenter__()
        await self._etcd_door.__aenter__()
        self._started = self._new_cluster()
        await asyncio.to_thread(self._cluster.start)
        await self._group.__aenter__()
        self._group.start_soon(self._look_for_workers(), name="look for workers")
        await self.check_alive()  # So that every member has been seen.
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._group.stop()
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            for _, worker in self._workers.values():
                await self.heal(worker)
            await asyncio.to_thread(self._cluster.stop)
            await self._etcd_door.__aexit__(None, None, None)
            await self._door.__aexit__(None, None, None)
            for name, log in self.logs().items():  # Spark's directory goes with it.
                (self._directory / f"{name.replace('/', '-')}.log").write_text(log)

    async def _look_for_workers(self) -> None:
        while True:
            for member in await asyncio.to_thread(self._announced):
                self._note(member)
            await asyncio.sleep(_LOOK_SECONDS)

    def _announced(self) -> tuple[MemberInfo, ...]:
        try:
            return self._cluster.members()
        except (EtcdError, TimeoutError):
            return ()  # It is down.
        except ClusterStoppedError:
            return ()  # By us.

    def _note(self, member: MemberInfo) -> None:
        known = self._workers.get(member.partition)
        if known is not None and known[0].member_id == member.member_id:
            return
        try:
            process = process_listening_at(member.endpoint)
        except (LookupError, psutil.NoSuchProcess):
            return  # Its lease has not ended yet, but its process has.
        self._workers[member.partition] = (member, process)


def _is_awake(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (
            psutil.STATUS_STOPPED,
            psutil.STATUS_ZOMBIE,
        )
    except psutil.NoSuchProcess:
        return False


def _executor_of(worker: psutil.Process) -> psutil.Process:
    for parent in worker.parents():
        if parent.name() == "java":
            return parent
    raise LookupError("the executor is gone")
