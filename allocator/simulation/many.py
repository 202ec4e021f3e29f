"""Many runs over several processes, with each outcome reported as its run ends."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from types import FrameType
from typing import Protocol

from broadsheet.allocator.simulation.run import simulate
from broadsheet.allocator.simulation.scenario import Scenario

SEED_SECONDS_MAX = 120
"""Real time that one run may take: a good run takes a fraction of a second."""
CHUNK_SEEDS = 10
"""Seeds given to a process at a time."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one seed."""

    seed: int
    text: str
    """The report, for people."""
    ok: bool


class StuckError(Exception):
    """A run does not end, because it loops without waiting for anything."""


class Judged(Protocol):
    """The outcome of a run; its text is for people."""

    @property
    def ok(self) -> bool:
        """True if every invariant held."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """Runs that differ only in their seed."""

    run: Callable[..., Judged]
    """Called with a seed, and with the keyword `sink`; with more than one job it must be picklable."""
    module: str
    """The module that `python -m` runs to repeat one of them."""
    arguments: tuple[str, ...] = ()
    """Its arguments besides the seed."""

    def replay(self, seed: int) -> str:
        """Return the command that repeats a seed's run with its trace."""
        command = " ".join(("python -m", self.module, *self.arguments))
        return f"replay: {command} --seed {seed} --trace"


def clusters(scenario: Scenario | None = None, *, arguments: tuple[str, ...] = ()) -> Family:
    """Return the family of simulated clusters.

    Args:
        scenario: The scenario to draw them from; with more than one job it must be picklable.
        arguments: Command-line arguments that select the same scenario.
    """
    return Family(
        partial(simulate, scenario=scenario), "broadsheet.allocator.simulation", arguments
    )


def run_seed(
    seed: int, family: Family, *, sink: Callable[[str], object] | None = None
) -> RunResult:
    """Run one seed; a defect that breaks the run itself is an outcome too."""
    try:
        with _alarm(SEED_SECONDS_MAX):
            judged = family.run(seed, sink=sink)
    except Exception as error:
        cause = "".join(traceback.format_exception(error, limit=-8))
        return RunResult(seed, f"seed {seed}: {cause}{family.replay(seed)}", ok=False)
    text = str(judged) if judged.ok else f"{judged}\n{family.replay(seed)}"
    return RunResult(seed, text, ok=judged.ok)


def run_seeds(seeds: Iterable[int], family: Family, *, jobs: int = 1) -> Iterator[RunResult]:
    """Run many seeds, and yield each outcome as it comes.

    Args:
        seeds: The seeds to run.
        family: The family of runs.
        jobs: Processes to use.
    """
    todo = list(seeds)
    if jobs == 1:
        yield from (run_seed(seed, family) for seed in todo)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        chunks = [todo[start : start + CHUNK_SEEDS] for start in range(0, len(todo), CHUNK_SEEDS)]
        running = [pool.submit(_run_chunk, chunk, family) for chunk in chunks]
        try:
            for finished in as_completed(running):
                yield from finished.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_chunk(seeds: list[int], family: Family) -> list[RunResult]:
    return [run_seed(seed, family) for seed in seeds]


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """Raise `StuckError` in the main thread after a real time."""

    def ring(_: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame, limit=6))
        raise StuckError(f"no end after {seconds} s of real time, at\n{where}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
