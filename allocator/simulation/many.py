"""Many runs, over several processes, told as they end."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from types import FrameType

from allocator.simulation.run import simulate
from allocator.simulation.scenario import Report, Scenario

SEED_SECONDS_MAX = 120
"""Real time that one run may take: it takes a fraction of a second, or for ever."""
CHUNK_SEEDS = 10
"""Seeds given to a process at a time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    text: str
    """The report, for people."""
    ok: bool


class StuckError(Exception):
    """A run does not end: something goes round in circles without waiting for anything."""


def run_seed(
    seed: int, scenario: Scenario | None = None, *, sink: Callable[[str], object] | None = None
) -> Outcome:
    """Run one seed; a defect that breaks the run itself is an outcome too."""
    try:
        with _alarm(SEED_SECONDS_MAX):
            report: Report = simulate(seed, scenario, sink=sink)
    except Exception as error:
        cause = "".join(traceback.format_exception(error, limit=-8))
        return Outcome(seed, f"seed {seed}: {cause}{replay(seed)}", ok=False)
    return Outcome(seed, str(report), ok=report.ok)


def run_seeds(
    seeds: Iterable[int], scenario: Scenario | None = None, *, jobs: int = 1
) -> Iterator[Outcome]:
    """Run many seeds, and yield each outcome as it comes.

    Args:
        seeds: Which.
        scenario: The family of runs; with more than one job it must be picklable.
        jobs: Processes to use.
    """
    todo = list(seeds)
    if jobs == 1:
        yield from (run_seed(seed, scenario) for seed in todo)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        chunks = [todo[start : start + CHUNK_SEEDS] for start in range(0, len(todo), CHUNK_SEEDS)]
        running = [pool.submit(_run_chunk, chunk, scenario) for chunk in chunks]
        try:
            for finished in as_completed(running):
                yield from finished.result()
        finally:
            pool.shutdown(cancel_futures=True)


def replay(seed: int) -> str:
    """Return the command that shows a seed's run again."""
    return f"replay: python -m allocator.simulation --seed {seed} --trace"


def _run_chunk(seeds: list[int], scenario: Scenario | None) -> list[Outcome]:
    return [run_seed(seed, scenario) for seed in seeds]


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
