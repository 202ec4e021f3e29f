"""One run: a world drawn from a seed, a time of faults, a time of quiet, and checks throughout.

The same seed gives the same run, or the simulator is not deterministic: two runs of one seed have the same trace, and
the trace is always hashed.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from logging import CRITICAL
from typing import Protocol, TypeVar

import structlog

from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.virtual_loop import (
    current_process,
    run_virtual,
    running_loop,
)

Range = tuple[float, float]
IntRange = tuple[int, int]
Sink = Callable[[str], object]
"""Gets every line of a trace, and the members' log lines."""

RECENT_LINES = 60
"""Lines of the trace kept for a report on a failure."""
STORIES_MAX = 4
"""Members whose stories a report has."""
END_SECONDS_MAX = 600.0
"""Bound after which a cancelled member that has not ended counts as stuck."""


class Trace:
    """The events of a run in order, with the virtual time as a prefix."""

    def __init__(self, now_seconds: Callable[[], float], *, sink: Sink | None = None) -> None:
        """Start empty.

        Args:
            now_seconds: Virtual time.
            sink: Gets each line at once.
        """
        self._now_seconds = now_seconds
        self._sink = sink
        self._hash = hashlib.sha256()
        self.recent: deque[str] = deque(maxlen=RECENT_LINES)
        """The last lines, oldest first."""

    def add(self, text: str) -> None:
        """Add an event that happens now."""
        line = f"{self._now_seconds():10.4f}  {text}"
        self._hash.update(line.encode())
        self.recent.append(line)
        if self._sink is not None:
            self._sink(line)

    def digest(self) -> str:
        """Return the hash of all lines."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    """An invariant that did not hold."""

    invariant: str
    """Its name, such as `I3`."""
    problem: str
    revision: int = 0
    """The revision of etcd that broke it; 0 if it is not about one."""

    def __str__(self) -> str:
        where = f" at revision {self.revision}" if self.revision else ""
        return f"{self.invariant}{where}: {self.problem}"


class Storyteller(Protocol):
    """A part of a run that has state machines."""

    def story(self) -> str:
        """Return its machines' recent events, as text."""
        ...


class Findings:
    """The findings of a run's invariants: the first violation ends the run, and is reported with the stories of those
    who had a part in it.
    """

    def __init__(self, tell: Callable[[str], object] = lambda _: None) -> None:
        """Begin with none.

        Args:
            tell: Called with each violation as text.
        """
        self._tell = tell
        self.violation: InvariantViolation | None = None
        """The first one."""
        self.stories: tuple[str, ...] = ()
        """Of those involved in it."""
        self.involved: Callable[[], Iterable[Storyteller]] = tuple
        """Returns who had a part in what is being found."""

    def violate(self, violation: InvariantViolation) -> None:
        """Record a violation."""
        self._tell(f"VIOLATION {violation}")
        # The first one is reported, because later ones often follow from it.
        if self.violation is None:
            self.violation = violation
            # Told now, because the machines go on until the run has ended.
            self.stories = tuple(each.story() for each in islice(self.involved(), STORIES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScenario:
    """A family of runs, from which a seed selects one: the part that all simulators have.

    Ranges are inclusive; where a run falls in them is drawn from its seed.
    """

    steps: IntRange
    """Faults before the quiet period."""
    pause_seconds: Range
    """Between two of them."""
    haste: float = 0.0
    """Share of pauses that are `HASTE_SECONDS_MAX` at most, so that faults overlap."""
    passing_seconds: Range
    """How long a transient fault lasts."""
    latencies_seconds: Sequence[Range]
    """One is drawn: of each message of a member, while nothing is wrong."""
    settle_seconds_max: float = 400.0
    """How long after the last fault all expectations must be met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The outcome of one run: the part that all simulators have. The kernel fills it in."""

    seed: int = -1
    trace_hash: str = ""
    """The same for the same seed, scenario and code."""
    virtual_seconds: float = 0.0
    violation: InvariantViolation | None = None
    recent: tuple[str, ...] = ()
    """The last lines of the trace, if there is a violation."""
    stories: tuple[str, ...] = ()
    """The recent events of the state machines involved in it."""

    @property
    def ok(self) -> bool:
        """True if every invariant held."""
        return self.violation is None

    def summary(self) -> str:
        """Return what a good run did, in one line."""
        return f"{self.virtual_seconds:.0f} virtual s"

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: ok, {self.summary()}, trace {self.trace_hash[:16]}"
        return "\n".join((f"seed {self.seed}: {self.violation}", *self.recent, *self.stories))


ReportT = TypeVar("ReportT", bound=RunReport)
ReportT_co = TypeVar("ReportT_co", bound=RunReport, covariant=True)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The parts that the kernel gives to the simulation of one seed."""

    seed: int
    group: TaskGroup
    """Runs the members, and whatever else lives as long as the run."""
    trace: Trace
    findings: Findings


class FaultSource(Protocol):
    """The faults of a run, one at a time."""

    def count(self) -> int:
        """Draw how many faults there will be."""
        ...

    def pause_seconds(self) -> float:
        """Draw the pause before the next one."""
        ...

    def next(self) -> None:
        """Inject the next one. If it is impossible at the moment, nothing changes."""
        ...

    def end(self) -> None:
        """End those that pass."""
        ...


class Simulation(Protocol[ReportT_co]):
    """The part of a run that differs between simulators."""

    @property
    def faults(self) -> FaultSource:
        """Its faults."""
        ...

    @property
    def unhandled(self) -> str:
        """The invariant by which no error goes unhandled."""
        ...

    def begin(self) -> None:
        """Populate the world."""
        ...

    async def calm(self) -> None:
        """Stop whatever acts from outside besides the faults, which end next."""
        ...

    async def settle(self) -> None:
        """Let only members act until the world is at rest, and check it; return at the first violation."""
        ...

    def involved(self) -> Iterable[Storyteller]:
        """Return the members that had a part in what an invariant is finding now, the likeliest first."""
        ...

    def shut_down(self) -> None:
        """End every process, and whatever else the run's task group runs."""
        ...

    def report(self) -> ReportT_co:
        """Return the outcome, without the part that the kernel fills in."""
        ...


def run_simulation(
    seed: int, new_simulation: Callable[[RunContext], Simulation[ReportT]], *, sink: Sink | None
) -> ReportT:
    """Run one simulation through the course of events of a seed.

    It must not be called from a running event loop, because it runs a separate one. While it runs, the process-wide
    random generator is seeded and logs go to `sink`; both are restored.

    Args:
        seed: Selects the world and the course of events; the same seed gives the same run.
        new_simulation: Makes the simulation, on the loop that it will run on.
        sink: Gets every line of the trace, and the members' log lines.
    """
    state = random.getstate()
    # Jitter that is not injected comes from the process-wide generator.
    random.seed(seed)
    try:
        with logs_to(sink):
            return run_virtual(_run(seed, new_simulation, sink))
    finally:
        random.setstate(state)


async def _run(
    seed: int, new_simulation: Callable[[RunContext], Simulation[ReportT]], sink: Sink | None
) -> ReportT:
    """Run to the end, or to the first violation."""
    loop = running_loop()
    trace = Trace(loop.time, sink=sink)
    findings = Findings(trace.add)
    async with TaskGroup() as group:
        simulation = new_simulation(RunContext(seed, group, trace, findings))
        findings.involved = simulation.involved

        def on_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            problem = f"{context.get('message')}: {context.get('exception')!r}"
            findings.violate(InvariantViolation(simulation.unhandled, problem))

        loop.set_exception_handler(on_unhandled)
        try:
            simulation.begin()
            await _time_of_faults(simulation.faults, findings)
            await simulation.calm()
            simulation.faults.end()
            await simulation.settle()
        finally:
            # Also after an error of a check, because a stopped process could not even be cancelled.
            loop.end_at(loop.time() + END_SECONDS_MAX)
            simulation.shut_down()
    return replace(
        simulation.report(),
        seed=seed,
        trace_hash=trace.digest(),
        virtual_seconds=loop.time(),
        violation=findings.violation,
        recent=tuple(trace.recent) if findings.violation else (),
        stories=findings.stories,
    )


async def _time_of_faults(faults: FaultSource, findings: Findings) -> None:
    for _ in range(faults.count()):
        await asyncio.sleep(faults.pause_seconds())
        if findings.violation is not None:
            return
        faults.next()


@contextmanager
def logs_to(sink: Sink | None) -> Iterator[None]:
    """Send structured logs to `sink`, or discard them, for a while."""

    def show(_: object, method: str, event: structlog.typing.EventDict) -> str:
        process = current_process()
        text = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        now = asyncio.get_running_loop().time()
        assert sink is not None, "without a sink nothing gets here"
        sink(f"{now:10.4f}      [{process.name if process else '-'}] {event['event']} {text}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[show],
        wrapper_class=structlog.make_filtering_bound_logger(CRITICAL if sink is None else 0),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
