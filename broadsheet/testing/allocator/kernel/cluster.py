"""The processes of a run: they start, are killed between two steps, stop and resume, and end with the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from random import Random
from textwrap import indent
from typing import ClassVar, Generic, TypeVar

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import KeyValue, Operation
from broadsheet.runtime.clock import Clock
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.allocator.kernel.run import IntRange, Range, RunContext, RunScenario
from broadsheet.testing.allocator.kernel.virtual_loop import Process, VirtualClock, running_loop

ROOT = "/simulated"


class State(Enum):
    """State of a member's process."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """Stopped; it may continue."""
    DEAD = "dead"
    """Killed: it never continues."""
    ENDED = "ended"
    """Its program ended."""


@dataclass(eq=False, kw_only=True)
class SimulatedProcess(ABC):
    """A member as a process: its program, and its links to everything else."""

    member_id: MemberId
    process: Process
    killed: bool = False
    """True if it is stopped for ever, or will be after its last steps."""
    ended: bool = False
    """True if its program ended."""

    @property
    @abstractmethod
    def links(self) -> tuple[Link, ...]:
        """Its links to everything else."""

    @abstractmethod
    async def live(self) -> None:
        """Run its program."""

    @abstractmethod
    def machine_stories(self) -> str:
        """Return the recent events of its program's state machines, as text."""

    def story(self) -> str:
        """Return its name and state, and its machines' recent events."""
        told = self.machine_stories() or "nothing happened"
        return f"{self.member_id}, {self.state.value}:\n{indent(told, '  ')}"

    @property
    def state(self) -> State:
        """The state of the process."""
        if self.ended:
            return State.ENDED
        if self.killed:
            return State.DEAD
        return State.STOPPED if self.process.stopped else State.ALIVE

    def kill(self, *, after_steps: int = 0) -> None:
        """Stop the process for ever, as SIGKILL does: its keys stay in etcd.

        Args:
            after_steps: Steps that its tasks still take.
        """
        self.killed = True
        self.process.stop_after(after_steps)

    def resume(self) -> None:
        """Continue, or do not stop after all; a killed process does neither."""
        if not self.killed:
            self.process.go_on()

    def let_end(self) -> None:
        """Continue even if it was killed, cut off from everything, so that it can be cancelled."""
        for link in self.links:
            link.cut_off(refuses=True)
        self.process.get_unstuck()
        self.process.go_on()


MemberT = TypeVar("MemberT", bound=SimulatedProcess)
ScenarioT_co = TypeVar("ScenarioT_co", bound=RunScenario, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """The parts that all members of a run share."""

    etcd: FakeEtcd
    keys: Keys
    clock: Clock
    latency_seconds: Range
    """Latency of messages without faults."""


class SimulatedCluster(Generic[MemberT, ScenarioT_co]):
    """An etcd, the members of a run, and what acts on them from outside."""

    AUTHOR: ClassVar[str]
    """Named in etcd as the author of what is written from outside of all members."""

    def __init__(
        self, context: RunContext, scenario: ScenarioT_co, *, drawn_as: str, etcd: FakeEtcd
    ) -> None:
        """Set up an empty cluster.

        Args:
            context: The run.
            scenario: The shapes and bounds.
            drawn_as: Distinguishes this cluster's source of randomness from others of the seed.
            etcd: Not used yet.
        """
        self.seed = context.seed
        self.scenario = scenario
        self.random = Random(f"{context.seed} {drawn_as}")
        self.trace = context.trace
        self.keys = Keys(ROOT)
        self.clock = VirtualClock(running_loop())
        self.etcd = etcd
        self.members: list[MemberT] = []
        """All members of the run, oldest first."""
        self.latency_seconds: Range = (0.0, 0.0)
        """Latency of messages without faults; drawn by the subclass."""
        self._group = context.group

    def draw(self, bounds: IntRange) -> int:
        """Draw a number from a range."""
        return self.random.randint(*bounds)

    def random_of(self, member_id: MemberId) -> Random:
        """Return a member's source of randomness."""
        return Random(f"{self.seed} {member_id}")

    def alive(self) -> list[MemberT]:
        """Return members that make progress."""
        return [member for member in self.members if member.state is State.ALIVE]

    def present(self) -> list[MemberT]:
        """Return members that are not gone for good; they include stopped ones."""
        return [m for m in self.members if m.state in (State.ALIVE, State.STOPPED)]

    def start(self, member: MemberT, text: str = "") -> None:
        """Start a new member's program in its process.

        Args:
            member: Has not run yet.
            text: Added to the trace.
        """
        self.members.append(member)
        self.trace.add(f"{member.member_id} starts{text}")
        member.process.run(
            lambda: self._group.start_soon(self.live(member), name=f"member {member.member_id}")
        )

    async def live(self, member: MemberT) -> None:
        """Run a member's program."""
        await member.live()

    def write(self, *operations: Operation) -> None:
        """Write to etcd from outside of all members."""
        self.etcd.perform((), operations, author=self.AUTHOR)

    def kvs(self, prefix: bytes) -> list[KeyValue]:
        """Return the keys with `prefix`."""
        return [kv for key, kv in self.etcd.store.kvs.items() if key.startswith(prefix)]

    def shut_down(self) -> None:
        """End the run: every process continues, cannot reach anything, and is cancelled."""
        self.etcd.observers.clear()
        self.etcd.close()
        for member in self.members:
            member.let_end()
        self._group.stop()
