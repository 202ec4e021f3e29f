"""Members as plain processes, `shardctl serve`, each started again when it has ended: what a supervisor would do."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from broadsheet.embedded.broker import package_environment
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.examples.stream_sum.app import STATE_DIRECTORY_VARIABLE, STORE_VARIABLE
from broadsheet.runtime.task_group import TaskGroup
from tests.chaos.broker_door import BrokerDoor
from tests.chaos.clock_shim.sitecustomize import OFFSET_FILE_VARIABLE
from tests.chaos.cluster_plan import ClusterPlan
from tests.chaos.schedule import JUMP_SECONDS, PROCESS_FAULTS, FaultKind
from tests.support.eventually import eventually
from tests.support.tcp_proxy import TcpProxy

APPLICATION = "tests.chaos.application:create"
RESTART_SECONDS = 0.2
"""Between the end of a process and the start of its next life."""
READY_SECONDS = 60.0
"""Longest wait for a member; it waits for etcd itself."""
STOP_SECONDS = 45.0
CLOCK_SHIM = Path(__file__).parent / "clock_shim"
REPOSITORY = Path(__file__).parents[2]
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Life:
    """One process of one member."""

    name: str
    process: EmbeddedMemberProcess
    log_file: Path
    clock_file: Path

    @property
    def is_over(self) -> bool:
        return self.process.exit_code is not None

    @property
    def has_served(self) -> bool:
        return self.process.address_or_none() is not None

    async def ended(self) -> None:
        """Wait, for ever, until it is over."""
        await eventually(
            lambda: self.is_over, timeout_seconds=math.inf, interval_seconds=_LOOK_SECONDS
        )


class ProcessHosts:
    """Hosts members as processes of this machine."""

    name = "processes"
    kinds: tuple[FaultKind, ...] = PROCESS_FAULTS

    def __init__(self, plan: ClusterPlan) -> None:
        """Describe the members; entering starts them."""
        self._plan = plan
        self._door = BrokerDoor(plan.broker_address)
        self._etcd_door = TcpProxy(plan.etcd_endpoint)
        self._lives: list[list[_Life]] = [[] for _ in range(plan.members)]
        self._frozen: set[str] = set()
        self._leaving: set[str] = set()
        """Lives that were told to leave."""
        self._stopping = asyncio.Event()
        self._group = TaskGroup()

    async def address(self) -> str:
        """Return where a member serves that is alive now; wait for one."""

        def serving() -> str | None:
            found = (self._address_or_none(index) for index in range(len(self._lives)))
            return next(filter(None, found), None)

        address = await eventually(
            serving, timeout_seconds=READY_SECONDS, message="no member serves"
        )
        assert address is not None, "eventually returns what is true"
        return address

    def suffix(self, member: int) -> str:
        """Return the suffix of the member's present life."""
        return self._lives[member][-1].name

    def pids(self) -> list[int]:
        """Return the processes of the members' present lives."""
        return [lives[-1].process.pid for lives in self._lives if lives]

    async def hurt(self, kind: FaultKind, member: int) -> object:
        """Send the member's present process a signal."""
        life = self._lives[member][-1]
        match kind:
            case FaultKind.KILL:
                life.process.send_signal(signal.SIGKILL)
            case FaultKind.FREEZE | FaultKind.HICCUP | FaultKind.ZOMBIE:
                self._frozen.add(life.name)
                life.process.send_signal(signal.SIGSTOP)
            case FaultKind.DRAIN:
                self._leaving.add(life.name)
                life.process.send_signal(signal.SIGTERM)
            case FaultKind.BROKER_CUT:
                self._door.cut_off(life.process.pid)
            case FaultKind.MEMBER_CLOCK:
                life.clock_file.write_text(f"{JUMP_SECONDS}")
            case _:
                raise AssertionError(f"{kind} is not for processes")
        return life

    async def heal(self, victim: object) -> None:
        """Let a process go on that is frozen, cut off, or in another time."""
        assert isinstance(victim, _Life)
        self._door.let_in(victim.process.pid)
        victim.clock_file.write_text("0")
        self._frozen.discard(victim.name)
        victim.process.send_signal(signal.SIGCONT)

    def delay_etcd(self, round_trip_seconds: float) -> None:
        """Let what members send to etcd, and are answered, take so long from now on."""
        self._etcd_door.delay_seconds = round_trip_seconds / 2

    async def check_alive(self) -> None:
        """Return once every member serves."""
        await eventually(
            lambda: all(self._address_or_none(index) for index in range(len(self._lives))),
            timeout_seconds=READY_SECONDS,
            message="not every member serves",
        )

    async def stop(self) -> None:
        """Let every member leave by itself; it must end well."""
        self._stopping.set()  # Whoever is there now is its member's last life.
        last = [lives[-1] for lives in self._lives]
        # The signal kills a process that has just begun, or is all but over, for nothing there handles it.
        await eventually(
            lambda: all(life.is_over or life.has_served for life in last),
            timeout_seconds=READY_SECONDS,
            message="a member that was started again does not serve",
        )
        for life in last:
            if life.name not in self._leaving:
                life.process.send_signal(signal.SIGTERM)
        await eventually(lambda: all(life.is_over for life in last), timeout_seconds=STOP_SECONDS)
        for life in last:
            assert life.process.exit_code == 0, f"{life.name} ended with {life.process.exit_code}"

    def logs(self) -> Mapping[str, str]:
        """What each process has written."""
        return {
            life.name: life.log_file.read_text(errors="replace")
            for lives in self._lives
            for life in lives
            if life.log_file.exists()
        }

    async def __aenter__(self) -> Self:
        await self._door.__aenter__()
        await self._etcd_door.__aenter__()
        await self._group.__aenter__()
        for index in range(self._plan.members):
            self._group.start_soon(self._supervise(index), name=f"supervise {index}")
        await self.check_alive()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._group.stop()
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            for lives in self._lives:
                for life in lives:
                    life.process.kill()
            await self._etcd_door.__aexit__(None, None, None)
            await self._door.__aexit__(None, None, None)

    async def _supervise(self, index: int) -> None:
        while not self._stopping.is_set():
            life = self._start(index)
            self._lives[index].append(life)
            await life.ended()
            with suppress(TimeoutError):
                async with asyncio.timeout(RESTART_SECONDS):
                    await self._stopping.wait()

    def _start(self, index: int) -> _Life:
        plan = self._plan
        name = f"member-{index}-{len(self._lives[index])}"
        arguments = {
            "--root": plan.root,
            "--etcd": self._etcd_door.endpoint,
            "--broker": self._door.address,
            "--zone": f"zone-{index}",
            "--suffix": name,
            "--replaces": f"member-{index}-",
            "--port": "0",
            "--lease-ttl": f"{plan.lease_seconds:g}",
            "--drain-alone-seconds": "0.5",
            # Members die in a row here; no shard is to blame, and none may be held back.
            "--young-deaths-max": "0",
        }
        log_file = plan.directory / f"{name}.log"
        clock_file = plan.directory / f"{name}.clock"
        process = EmbeddedMemberProcess(
            APPLICATION,
            [part for pair in arguments.items() for part in pair],
            log_file=log_file,
            variables={
                **_login(plan),
                STORE_VARIABLE: plan.store,
                STATE_DIRECTORY_VARIABLE: str(plan.states),
                OFFSET_FILE_VARIABLE: str(clock_file),
                "PYTHONPATH": os.pathsep.join(
                    (str(CLOCK_SHIM), str(REPOSITORY), package_environment()["PYTHONPATH"])
                ),
            },
        )
        return _Life(name, process, log_file, clock_file)

    def _address_or_none(self, index: int) -> str | None:
        lives = self._lives[index]
        if not lives or lives[-1].is_over or lives[-1].name in self._frozen:
            return None
        return lives[-1].process.address_or_none()


def _login(plan: ClusterPlan) -> dict[str, str]:
    """Return the variables that log a member in to etcd, if it asks for that."""
    if plan.etcd_user is None or plan.etcd_password is None:
        return {}
    return {"ETCD_USER": plan.etcd_user, "ETCD_PASSWORD": plan.etcd_password}
